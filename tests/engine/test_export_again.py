"""A session's placement is built again from the very instances that were measured."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from collage_engine.candidates.open_model import OpenModel
from collage_engine.kernels.choices import write_table
from collage_engine.records.placement import Partition, Placement
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run import export_again as exporting
from tests import zoo
from tests.support.runs import run_record


class _Built(Exception):
    """Ends an export where the building would begin."""


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Export one partition of everything; the instance that is built."""
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "cache"))
    onnx.save(zoo.build("tiny"), tmp_path / "tiny.onnx")
    workspace = OpenModel(str(tmp_path / "tiny.onnx"), {})
    taken: list[ToolchainInstance] = []

    def build(model: object, cover: list, spin: bool) -> None:
        taken.extend(part.instance for part in cover)
        raise _Built

    monkeypatch.setattr(exporting, "build_cover", build)

    def run(part: dict, tables: dict | None = None, threads: int = 1) -> ToolchainInstance:
        nodes = tuple(range(workspace.model.record.nodes))
        partition = Partition(
            id="p0",
            candidate="c",
            nodes=nodes,
            onnx_nodes=(),
            estimated_us=None,
            **{"toolchain": "tvm", "config": {}} | part,
        )
        kept = run_record(
            threads=threads,
            placement=Placement(partitions=(partition,), estimated_us=None),
            tables=tables or {},
        )
        with pytest.raises(_Built):
            exporting.export(workspace, run=kept, out=str(tmp_path / "out"))
        return taken[-1]

    yield run
    workspace.close()


def test_tuned_kernels_are_those_of_the_run(exported) -> None:
    table = {"conv a": {"block": 2}}
    digest = write_table(table)
    write_table({"conv a": {"block": 3}})
    built = exported({"config": {"tuned": "yes"}, "tuning": digest}, {digest: table}, threads=2)
    assert built == ToolchainInstance(
        toolchain="tvm", config=(("tuned", "yes"),), threads=2, tuning=digest
    )


def test_a_placement_for_a_gpu_is_built_for_it(exported) -> None:
    built = exported({"device": "cuda:0", "architecture": "sm_90a"}, threads=2)
    assert built == ToolchainInstance(toolchain="tvm", device="cuda:0", architecture="sm_90a")
