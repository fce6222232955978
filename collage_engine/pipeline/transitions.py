"""What launches and hand-overs cost here: measured once per machine, versions and threads.

The method is ``machine.constants``': chains of small partitions, built and run as whole modules,
against the same partition timed alone. The work in them is one ReLU on a vector, so that what
is measured is the handing on and not the work.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from collage_engine.lowering.reference import TrueValues
from collage_engine.machine.constants import LAUNCH, LONG, SHORT, measure_constants, pair_name
from collage_engine.measure.keys import KeyMaker
from collage_engine.measure.measurer import Group, Measurer, measuring_environment
from collage_engine.measure.store import remembered
from collage_engine.model.importer import ImportedModel, import_model
from collage_engine.partition.candidate import make_record
from collage_engine.pipeline import cancel
from collage_engine.pipeline.workspace import Menu, Workspace, threads_of
from collage_engine.placement.field import ConfirmSettings, Field
from collage_engine.placement.rival import Outcome, Rival
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance

ELEMENTS = 256
ROUNDS = 7


def transition_constants(
    workspace: Workspace, menu: Menu, settings: RunSettings, now: Callable[[str], None]
) -> dict[str, float]:
    """``launch`` and ``pair:<from>:<to>`` in µs for every pair of instances of the menu.

    Instances of one toolchain share its default's figures: configurations change what is
    computed, not how it is called. Kept in the store under what they depend on.
    """
    defaults: dict[str, ToolchainInstance] = {}
    for offer in menu.offers:
        defaults.setdefault(offer.instance.toolchain, offer.instance)
    about = {
        "fingerprint": menu.keys.fingerprint,
        "tvm": menu.keys.tvm_version,
        "threads": threads_of(settings),
        "versions": {name: menu.keys.versions.get(name, "") for name in sorted(defaults)},
        "sources": {name: menu.keys.sources.get(name, "") for name in sorted(defaults)},
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]

    def make() -> dict[str, float]:
        now("hand-over costs of this machine, once")
        with tempfile.TemporaryDirectory(dir=workspace.folder) as scratch:
            return _measure(Path(scratch), list(defaults.values()), menu, settings)

    by_toolchain: dict[str, float] = remembered(workspace.store, f"transitions:{digest}", make)
    constants = {LAUNCH: by_toolchain.get(LAUNCH, 0.0)}
    for source in menu.offers:
        for target in menu.offers:
            us = by_toolchain.get(pair_name(source.instance.toolchain, target.instance.toolchain))
            if us is not None:
                constants[pair_name(source.instance.id, target.instance.id)] = us
    return constants


def chain_model(length: int) -> bytes:
    """``length`` ReLUs in a row on one vector, as ONNX."""
    from onnx import TensorProto, helper

    names = ["x", *(f"v{k}" for k in range(1, length)), "y"]
    nodes = [
        helper.make_node("Relu", [names[k]], [names[k + 1]], name=f"relu{k}") for k in range(length)
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, ELEMENTS]) for name in ("x", "y")
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    content: bytes = model.SerializeToString()
    return content


def _measure(
    scratch: Path, instances: Sequence[ToolchainInstance], menu: Menu, settings: RunSettings
) -> dict[str, float]:
    models = {}
    for length in (SHORT, LONG):
        path = scratch / f"chain{length}.onnx"
        path.write_bytes(chain_model(length))
        models[length] = import_model(path)
    by_name = {instance.toolchain: instance for instance in instances}
    alone = _alone(scratch, models[SHORT], instances, menu, settings)

    def build_and_time(chains: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], float]:
        found: dict[tuple[str, ...], float] = {}
        for length, model in models.items():
            wanted = [chain for chain in chains if len(chain) == length]
            found.update(_time_chains(scratch / f"built{length}", model, wanted, by_name))
        return found

    return measure_constants(list(by_name), alone.__getitem__, build_and_time)


def _inputs() -> dict[str, np.ndarray]:
    return {"x": np.linspace(-1, 1, ELEMENTS, dtype=np.float32).reshape(1, ELEMENTS)}


def _alone(
    scratch: Path,
    model: ImportedModel,
    instances: Sequence[ToolchainInstance],
    menu: Menu,
    settings: RunSettings,
) -> dict[str, float]:
    """One ReLU by itself, measured as every candidate is."""
    truth = scratch / "values"
    truth.mkdir()
    TrueValues.record(model, _inputs(), truth, cancel.EVENT)
    form = KeyMaker(model.graph, model.constant).form(model.graph.to_indices((0,)))
    records = []
    for instance in instances:
        record = make_record(model.graph, instance, (0,), rule="transition")
        records.append(msgspec.structs.replace(record, key=menu.keys.key(form, instance)))
    env = measuring_environment([i.toolchain for i in instances], threads_of(settings))
    with Measurer(model.record.path, {}, truth, env=env) as measurer:
        costs = measurer.measure([Group((0,), tuple(records))], cancel=cancel.EVENT).costs
    return {
        record.instance.toolchain: cost.median_us
        for record in records
        if (cost := costs.get(record.key)) is not None and cost.median_us is not None
    }


def _time_chains(
    folder: Path,
    model: ImportedModel,
    chains: Sequence[tuple[str, ...]],
    instances: dict[str, ToolchainInstance],
) -> dict[tuple[str, ...], float]:
    """Whole modules of chains, timed against each other; those that cannot be built are left out.

    None may spin: hand-overs matter where toolchains share a process, and there none does.
    """
    inputs = _inputs()
    outcomes = {
        chain: Outcome(
            rival=Rival(
                name=" → ".join(dict.fromkeys(chain)),
                kind="collage",
                cover=tuple((instances[name], (k,)) for k, name in enumerate(chain)),
            )
        )
        for chain in chains
    }
    everyone = list(outcomes.values())
    quick = ConfirmSettings(round_s=0.01, hopeless_beyond=1e9, drop_beyond=1e9)
    field = Field(model, inputs, {"y": np.maximum(inputs["x"], 0)}, 1e-4, folder, quick,
                  cancel.EVENT, lambda done, total, now: None)  # fmt: skip
    try:
        field.build(everyone)
        field.gather(everyone)
        rounds = field.rounds(everyone, ROUNDS, 30.0)
    finally:
        field.close()
    return {
        chain: float(np.median([median for median, _ in rounds[id(outcome)]]))
        for chain, outcome in outcomes.items()
        if rounds.get(id(outcome))
    }
