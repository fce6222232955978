"""A toolchain that is not ready in time is waited for where there is no placement without it."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import onnx
import pytest

from collage_engine.candidates import catalog as catalog_module
from collage_engine.candidates.catalog import CandidateCatalog
from collage_engine.candidates.open_model import OpenModel
from collage_engine.machine.run_control import RunControl
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.event import Provisional
from collage_engine.records.protocol import Job, RunStart
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainState
from collage_engine.run.run import run
from collage_engine.run.stages import enumerate as enumerate_stage
from collage_engine.run.stages.enumerate import enumerate_candidates
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains import registry
from collage_engine.toolchains.registry import NOT_READY, probe_all
from tests import zoo
from tests.support.caches import fresh_cache
from tests.support.stages import task_on

AT_ONCE = ("tvm",)
"""Toolchains that are ready at once."""
LATE = ("onnxruntime",)
"""The others that are looked for."""


@pytest.fixture(autouse=True)
def only_tvm_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    def some(
        names: Collection[str] | None = None, *, waited_for: Collection[str] = (), **others: Any
    ) -> tuple[ToolchainState, ...]:
        here = [n for n in AT_ONCE + LATE if n in AT_ONCE or n in waited_for]
        absent = [n for n in LATE if n not in here]
        return probe_all(here) + tuple(
            ToolchainState(name=name, available=False, reason=NOT_READY, late=True)
            for name in absent
        )

    monkeypatch.setattr(catalog_module, "probe_all", some)


def enumerated(
    name: str, folder: Path, patch: pytest.MonkeyPatch
) -> tuple[CandidateCatalog, SearchInputs, str]:
    """What the stage finds of a model, and the warnings."""
    patch.setenv("COLLAGE_CACHE_DIR", str(fresh_cache(folder / "cache")))
    settings = RunSettings(threads=1, budget_s=60.0)
    with task_on(zoo.build(name), folder, settings) as (task, control):
        found = enumerate_candidates(task, control)
        return (*found, " ".join(control.warnings))


def test_it_is_waited_for_where_nothing_else_takes_an_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, inputs, warnings = enumerated("tagger", tmp_path, monkeypatch)
    assert {c.instance.toolchain for c in inputs.candidates} == {"tvm", "onnxruntime"}
    assert catalog.not_ready == () and not warnings


def test_a_run_without_a_linker_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TVM alone compiles its kernels without one, but no placement can be linked."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ToolchainError, match="there is nothing to link with"):
        enumerated("tiny", tmp_path, monkeypatch)


def test_what_is_not_ready_is_made_ready_beside_the_run_and_joins_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first look takes no time; the probe goes on, and a later look finds its answer."""
    go_on, started = threading.Event(), list[str]()

    def slow(name: str, ready_by: float, stop: object) -> ToolchainState:
        started.append(name)
        assert go_on.wait(60)
        return ToolchainState(name=name, available=True, version="1", devices=("cpu",))

    monkeypatch.setattr(registry, "_probe_in_child", slow)
    monkeypatch.setattr(registry, "recall", lambda name, target: None)
    monkeypatch.setattr(registry, "_probed", {})
    names = ("tvm", "openblas", "onednn")
    first = registry.probe_all(names, ready_by=time.monotonic(), beside=True)
    assert [state.late for state in first] == [True, True, True]
    again = registry.probe_all(names, ready_by=time.monotonic(), beside=True)
    assert all(state.late for state in again)
    go_on.set()
    ready = registry.probe_all(names, ready_by=time.monotonic() + 60, beside=True)
    assert all(state.available and not state.late for state in ready)
    assert sorted(started) == sorted(names)  # each once


def test_a_run_on_a_device_begins_with_what_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for toolchains, and warns of those that have not joined at the end only."""
    asked = list[tuple[bool, bool]]()
    some = catalog_module.probe_all

    def noted(names: Any, *, ready_by: float, beside: bool, **others: Any) -> Any:
        asked.append((beside, ready_by <= time.monotonic()))
        return some(names, ready_by=ready_by, **others)

    monkeypatch.setattr(catalog_module, "probe_all", noted)
    monkeypatch.setattr(enumerate_stage, "is_joined_later", lambda task: True)
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(fresh_cache(tmp_path / "cache")))
    settings = RunSettings(threads=1, budget_s=60.0)
    with task_on(zoo.build("tiny"), tmp_path, settings) as (task, control):
        catalog, _ = enumerate_candidates(task, control, begins=True)
        assert catalog.not_ready == LATE and not control.warnings
        enumerate_candidates(task, control)
        assert "ONNX Runtime is left out" in " ".join(control.warnings)
    assert asked == [(True, True), (True, False)]


def test_a_toolchain_joins_a_run_that_has_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = catalog_module.probe_all
    looks = list[bool]()

    def second_time(names: Any, *, ready_by: float, **others: Any) -> Any:
        looks.append(ready_by <= time.monotonic())
        return late(names, **others) if looks[-1] else probe_all([*AT_ONCE, *LATE])

    monkeypatch.setattr(catalog_module, "probe_all", second_time)
    monkeypatch.setattr(enumerate_stage, "is_joined_later", lambda task: True)
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(fresh_cache(tmp_path / "cache")))
    onnx.save(zoo.build("tiny"), tmp_path / "model.onnx")
    opened = OpenModel(str(tmp_path / "model.onnx"), {})
    events = list[object]()
    try:
        with RunControl(events.append) as control:
            settings = RunSettings(threads=1, budget_s=40.0)
            request = RunStart(document="d", settings=settings, run="r1")
            update = run(lambda: opened, Job(request=request, path=opened.path), control)
            assert not [text for text in control.warnings if "left out" in text]
    finally:
        opened.close()
    assert looks == [True, False] and update.run is not None
    answers = [event.run for event in events if isinstance(event, Provisional)]
    assert {base.name for base in answers[0].baselines} == {"tvm"}
    assert {base.name for base in update.run.baselines} >= {"tvm", "onnxruntime"}
    assert {c.instance.toolchain for c in update.candidates} >= {"tvm", "onnxruntime"}
