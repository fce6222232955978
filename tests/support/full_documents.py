"""Makes a session that holds everything, and an artifact for two shapes, to damage them."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

import msgspec

from collage_engine.records.pin import LimitVerdict
from collage_engine.records.placement import (
    Conversion,
    DeploymentRow,
    LayerTime,
    MachineState,
    MemorySeen,
    MemoryUse,
    Run,
    Unmeasured,
)
from collage_engine.records.precision import (
    Accuracy,
    RoundedProduct,
    RoundingTrial,
    RunTolerance,
)
from collage_engine.records.shapes import ShapeChoice, ShapeRow, Sharing
from collage_engine.records.toolchain import TuneCounts
from collage_engine.store.session_file import load_session, save_session

SESSION = Path(__file__).resolve().parents[1] / "data" / "mnist.collage"
BATCHES = (1, 3)
"""Sizes of the batch for which the artifact for two shapes is made."""


def _full(run: Run, name: str) -> Run:
    """Returns a run with a value in every field that only some runs have."""
    rows = [
        ShapeRow(
            choice=ShapeChoice(dims={"batch": batch}, shapes={"Input3": (batch, 1, 28, 28)}),
            inputs={"Input3": (batch, 1, 28, 28)},
            run=name,
            latency_us=10.0 * batch,
            spread_us=(9.0 * batch, 11.0 * batch),
            items=batch,
            items_per_s=1e5,
            toolchains=("tvm", "onednn"),
            partitions=2,
            best_single="tvm",
            best_single_us=12.0 * batch,
            distinct=9,
            measured=7,
        )
        for batch in BATCHES
    ]
    ways = [
        DeploymentRow(
            run=name,
            streams=streams,
            threads=2 // streams,
            items_per_s=1e5 * streams,
            toolchains=("tvm",),
            best_single="tvm",
            best_single_items_per_s=9e4,
        )
        for streams in (1, 2)
    ]
    assert run.placement is not None
    conversion = Conversion(node=0, source="NCHW", target="NHWC", us=1.5)
    trial = RoundingTrial(toolchain="tvm", rounded=1, emulated_error=2e-3, max_rel_error=1e-3)
    product = RoundedProduct(operator=0, operations=1e6, error=1e-3, rounded=True)
    return msgspec.structs.replace(
        run,
        id=name,
        name=name,
        placement=msgspec.structs.replace(
            run.placement,
            conversions=(conversion,),
            layers=(LayerTime(name="a kernel", us=9.0, gap_us=1.0, partition=0, operators=(0,)),),
        ),
        rivals=[run.placement],
        memory=MemoryUse(
            seen=MemorySeen(peak_bytes=10**8, base_bytes=10**7),
            weights_bytes=10**6,
            stored={"tvm": 10**6},
            artifact_bytes=10**7,
        ),
        tuning=TuneCounts(workloads=3, tuned=1, improved=1, tried=40),
        tolerance=RunTolerance(value=1e-4, source="user", default=1e-4, noise={"y": 1e-6}),
        machine=[MachineState(at="2026-01-01T00:00:00+00:00", mhz=3000.0, busy="by nobody")] * 2,
        warnings=["something"],
        limits=[
            LimitVerdict(
                constraint="max_runtimes", text="at most 1 runtime", state="honoured", price_us=1.0
            )
        ],
        accuracy=Accuracy(
            precision="bf16",
            tolerance=2e-2,
            samples=3,
            max_rel_error=1e-2,
            products=(product,),
            tried=(trial,),
        ),
        tied=["collage", "tvm alone"],
        ended="budget",
        unmeasured=Unmeasured(candidates=2, share=0.2, contenders=1, stages=("measure",)),
        first_answer_s=1.5,
        measured_on="host-a",
        streams=2,
        deployments=ways,
        shapes=rows,
        sharing=Sharing(
            bytes=10**7,
            apart_bytes=2 * 10**7,
            padded=("batch",),
            not_padded={"sequence": "no two shapes differ in it alone"},
        ),
    )


@cache
def full_session() -> bytes:
    """Returns a session of this version with two runs that have everything a run can have."""
    document = load_session(SESSION)
    document.runs = [_full(document.runs[0], name) for name in ("r1", "r2")]
    with tempfile.TemporaryDirectory(prefix="collage-full-") as scratch:
        path = Path(scratch) / "s.collage"
        save_session(document, path)
        load_session(path)  # what is refused as it is would hide what mutations find
        return path.read_bytes()


@cache
def _made_once() -> Path:
    """Returns the artifact for two shapes, in a folder that lives as long as this process."""
    from collage_engine.artifact.combine import combine_artifacts
    from collage_engine.model.importer import import_model
    from collage_engine.model.padding import paddable_dimensions
    from tests.support.artifact_cases import artifact_of, cover_in_turn
    from tests.zoo.net import Net

    net = Net("two shapes", opset=13, seed=5)
    x = net.input("image", ["batch", 16])
    net.output(net.dense(net.op("Relu", net.dense(x, 16, 32)), 32, 5), shape=["batch", 5])
    scratch = tempfile.TemporaryDirectory(prefix="collage-full-")
    _kept.append(scratch)
    folder = Path(scratch.name)
    (folder / "m.onnx").write_bytes(net.model().SerializeToString(deterministic=True))
    made = []
    for batch in BATCHES:
        model = import_model(folder / "m.onnx", {"image": (batch, 16)})
        made.append(artifact_of(model, cover_in_turn(model, ["tvm"]), folder / str(batch)))
    dims = [{"batch": batch} for batch in BATCHES]
    proofs = paddable_dimensions(net.model(), ["batch"])
    combine_artifacts(made, dims, folder / "both", padding=proofs)
    return folder / "both"


_kept: list[tempfile.TemporaryDirectory[str]] = []
"""Folders that are removed when the process ends."""


def one_shape(folder: Path) -> Path:
    """Copy an artifact for one shape."""
    return Path(shutil.copytree(_made_once().parent / str(BATCHES[0]) / "artifact", folder))


def two_shapes(folder: Path) -> Path:
    """Copy an artifact with an entry for each of two batches, which pads between them."""
    return Path(shutil.copytree(_made_once(), folder))
