"""What candidates share is compiled before they are measured, once, and can be stopped."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collage_engine.machine.run_control import RunControl
from collage_engine.records.candidate import CandidateRecord, Cost
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import Target
from collage_engine.support.errors import Cancelled
from collage_engine.timing.measurer import Measuring
from collage_engine.toolchains.cutlass import library
from collage_engine.toolchains.cutlass.library import Family, find_nvcc
from collage_engine.toolchains.registry import get
from tests.device_codegen.cuda_plans import model_of, normal
from tests.support.candidates import candidate_of

pytestmark = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc here")

MODEL = model_of(
    "float16[1,8,4,4] x",
    "p = Conv(x, w) q = Relu(p) r = Conv(q, u) y = Tanh(r)",
    w=normal(16, 8, 1, 1, dtype="float16"),
    u=normal(16, 16, 1, 1, dtype="float16"),
)
PARTS = ("MAJOR", "MINOR", "PATCH")
(INSTANCE,) = get("cutlass").instances(Target.cuda("sm_90a"), "float32")


def record(*numbers: int) -> CandidateRecord:
    return CandidateRecord(
        id=f"cutlass:{numbers}",
        label="c",
        instance=INSTANCE,
        nodes=numbers,
        rule="r",
        key=str(numbers),
        cost=Cost(state="unknown"),
    )


def ready(records: list[CandidateRecord], control: RunControl | None = None) -> list[str]:
    told: list[str] = []
    workspace: Any = SimpleNamespace(model=MODEL)
    catalog: Any = SimpleNamespace(sources=[SimpleNamespace(instance=INSTANCE)])
    candidates = [candidate_of(record) for record in records]
    control = control or RunControl()
    measuring = Measuring(workspace, catalog, RunSettings(), {}, control)
    measuring.make_ready(candidates, told.append)
    return told


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Family]:
    """Libraries that were asked for; none is compiled."""
    monkeypatch.setenv("COLLAGE_BUILD_DIR", str(tmp_path))
    found: list[Family] = []

    def build(job: str, family: Family, **_: Any) -> Path:
        found.append(family)
        family.place().parent.mkdir(exist_ok=True)
        family.place().touch()
        return family.place()

    monkeypatch.setattr(library, "call_in_child", build)
    return found


def test_each_family_of_the_candidates_is_compiled_once(
    asked: list[Family],
) -> None:
    relu = Family("float16", "relu", "sm_90a")
    none = Family("float16", "none", "sm_90a")
    # One that CUTLASS refuses, and one that it takes.
    told = ready([record(3), record(0, 1)])
    assert asked == [relu]
    assert told == ["CUTLASS's kernels: 1 library to compile, once"]
    assert ready([record(0, 1), record(0), record(2)])
    assert asked == [relu, none]
    assert ready([record(0, 1), record(0)]) == []


def test_what_does_not_compile_is_told_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLLAGE_BUILD_DIR", str(tmp_path))
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path))  # the child, which is new, goes by it
    folder = tmp_path / "include" / "cutlass"
    folder.mkdir(parents=True)
    (folder / "version.h").write_text("".join(f"#define CUTLASS_{p} 1\n" for p in PARTS))
    (folder / "cutlass.h").write_text("#error no\n")
    control = RunControl()
    ready([record(0)], control)
    (warning,) = control.warnings
    assert "nvcc refuses CUTLASS's kernels:" in warning


def test_a_cancel_ends_the_compiler_and_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLLAGE_BUILD_DIR", str(tmp_path))
    control = RunControl()
    stopper = threading.Timer(1.0, control.cancelled.set)
    stopper.start()
    try:
        with pytest.raises(Cancelled):
            ready([record(0)], control)
    finally:
        stopper.cancel()
    assert not list(tmp_path.rglob("*.so"))
