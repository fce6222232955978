"""A toolchain that is not ready in time is waited for where there is no placement without it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from collage_engine.candidates import menu as menu_module
from collage_engine.candidates.menu import Menu
from collage_engine.planning.problem_data import ProblemData
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainState
from collage_engine.run.stages.enumerate import enumerate_candidates
from collage_engine.support.errors import ToolchainError
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

    monkeypatch.setattr(menu_module, "probe_all", some)


def enumerated(name: str, folder: Path, patch: pytest.MonkeyPatch) -> tuple[Menu, ProblemData, str]:
    """What the stage finds of a model, and the warnings."""
    patch.setenv("COLLAGE_CACHE_DIR", str(fresh_cache(folder / "cache")))
    settings = RunSettings(threads=1, budget_s=60.0)
    with task_on(zoo.build(name), folder, settings) as (task, control):
        found = enumerate_candidates(task, control)
        return (*found, " ".join(control.warnings))


def test_it_is_waited_for_where_nothing_else_takes_an_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    menu, data, warnings = enumerated("tagger", tmp_path, monkeypatch)
    assert {c.instance.toolchain for c in data.candidates} == {"tvm", "onnxruntime"}
    assert menu.not_ready == () and not warnings


def test_it_is_left_out_with_a_warning_where_there_is_a_placement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, data, warnings = enumerated("tiny", tmp_path, monkeypatch)
    assert {c.instance.toolchain for c in data.candidates} == {"tvm"}
    assert "ONNX Runtime is left out of this run: it was not ready" in warnings


def test_a_run_without_a_linker_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TVM alone compiles its kernels without one, but no placement can be linked."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ToolchainError, match="there is nothing to link with"):
        enumerated("tiny", tmp_path, monkeypatch)
