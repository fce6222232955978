"""A session's placement is built again from the very instances that were measured.

The pipeline's jobs work on the file that the run is of.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from collage_engine.candidates.open_model import OpenModel
from collage_engine.kernels.choices import write_table
from collage_engine.lowering.build import BuildCover, BuildJob
from collage_engine.model.importer import import_model
from collage_engine.records.placement import Placement
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run import export as exporting
from collage_engine.support.errors import ModelError, SessionError
from collage_engine.timing.bench import ModelBench
from collage_engine.timing.child import OpenRequest
from collage_engine.timing.tuning_job import ListTasks, work
from tests import zoo
from tests.support.covers import candidate_on
from tests.support.runs import partition, run_record
from tests.support.toolchain_cases import Net


class _Built(Exception):
    """Ends an export where the building would begin."""


def test_tuned_kernels_are_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "cache"))
    onnx.save(zoo.build("tiny"), tmp_path / "tiny.onnx")
    taken: list[ToolchainInstance] = []

    def build(model: object, cover: list, spin: bool, lowered: object) -> None:
        taken.extend(part.instance for part in cover)
        raise _Built

    monkeypatch.setattr(exporting, "build_cover", build)
    table = {"conv a": {"block": 2}}
    digest = write_table(table)
    write_table({"conv a": {"block": 3}})
    opened = OpenModel(str(tmp_path / "tiny.onnx"), {})
    nodes = range(opened.model.record.nodes)
    tuned = partition(*nodes, toolchain="tvm", config={"tuned": "yes"}, tuning=digest)
    placement = Placement(partitions=(tuned,), estimated_us=None)
    run = run_record(threads=2, placement=placement, tables={digest: table})
    with pytest.raises(_Built):
        exporting.export(opened, run=run, out=str(tmp_path / "out"))
    opened.close()
    config = (("tuned", "yes"),)
    assert taken == [ToolchainInstance(toolchain="tvm", config=config, threads=2, tuning=digest)]


@pytest.mark.parametrize("nodes", [((0,),), ((0, 1), (1,)), ((0, 1, 2),)], ids=str)
def test_a_placement_of_another_model_is_refused(
    nodes: tuple[tuple[int, ...], ...], tmp_path: Path
) -> None:
    """One operator is missing, in two partitions, or not in the model."""
    net = Net()
    onnx.save(net.model(net.add("Tanh", net.add("Relu", net.input(2, 3)))), tmp_path / "two.onnx")
    opened = OpenModel(str(tmp_path / "two.onnx"), {})
    partitions = tuple(partition(*each, toolchain="tvm") for each in nodes)
    run = run_record(threads=1, placement=Placement(partitions=partitions, estimated_us=None))
    with pytest.raises(SessionError, match="every operator of its model once"):
        exporting.export(opened, run=run, out=str(tmp_path / "out"))
    opened.close()


def test_another_file_of_the_same_name_is_neither_measured_nor_built_nor_tuned(tmp_path):
    """Its shapes and its weights would be taken for those of the model that the run is of."""
    path = str(tmp_path / "m.onnx")
    onnx.save(zoo.build("tiny"), path)
    before = import_model(path).record
    onnx.save(zoo.build("several"), path)
    opening = OpenRequest(before, "")
    build = BuildCover(model=before, folder=str(tmp_path / "out"))
    candidate = candidate_on(ToolchainInstance(toolchain="tvm"), (0,))
    listing = ListTasks(before, candidate)
    for act in (
        lambda: ModelBench(opening),
        lambda: BuildJob()(build),
        lambda: work(listing, lambda _: None),
    ):
        with pytest.raises(ModelError, match="was changed while"):
            act()
