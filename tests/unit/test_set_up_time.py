"""Which toolchains a run waits for where their runtimes are not compiled yet."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence

import pytest

from collage_engine.candidates import menu
from collage_engine.candidates.menu import Probing
from collage_engine.control.budget import RunBudget
from collage_engine.machine.cuda import TargetChoice
from collage_engine.records.errors import InfeasibleError
from collage_engine.records.pin import Pin
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainState
from collage_engine.run.stages.enumerate import (
    LEAST_SET_UP_S,
    named_toolchains,
    naming_who_is_absent,
    not_ready_in_words,
    set_up_s,
)
from collage_engine.toolchains.registry import NOT_READY

CPU = TargetChoice("cpu")
NAMES = ("onnxruntime", "onednn", "openvino")


@pytest.fixture
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No toolchain is ready in time; those that are waited for are."""

    def probe_all(
        names: Collection[str] | None = None,
        *,
        waited_for: Collection[str] = (),
        ready_by: float = math.inf,
        on_child: object = None,
    ) -> tuple[ToolchainState, ...]:
        return tuple(
            ToolchainState(name=name, available=True, targets=("cpu",))
            if name in waited_for or ready_by > time.monotonic()
            else ToolchainState(name=name, available=False, reason=NOT_READY, late=True)
            for name in (NAMES if names is None else names)
        )

    monkeypatch.setattr(menu, "probe_all", probe_all)


def ready(settings: RunSettings, probing: Probing, asked: Sequence[str] = NAMES) -> list[str]:
    states = menu._states(settings, CPU, probing)
    assert [state.name for state in states] == list(asked)
    return [state.name for state in states if state.available]


@pytest.mark.usefixtures("nothing_is_compiled")
def test_one_toolchain_is_waited_for_where_none_is_ready() -> None:
    late = Probing(ready_by=time.monotonic())
    assert ready(RunSettings(), late) == ["onnxruntime"]


@pytest.mark.usefixtures("nothing_is_compiled")
def test_what_the_user_names_or_pins_is_waited_for() -> None:
    late = Probing(ready_by=time.monotonic(), waited_for=frozenset({"onednn"}))
    assert ready(RunSettings(), late) == ["onednn"]


@pytest.mark.usefixtures("nothing_is_compiled")
def test_toolchains_that_nobody_named_are_not_looked_for() -> None:
    late = Probing(ready_by=time.monotonic(), waited_for=frozenset({"onednn"}))
    named = RunSettings(toolchains=("openvino",))
    assert ready(named, Probing(), ["openvino"]) == ["openvino"]
    assert ready(named, late, ["onednn", "openvino"]) == ["onednn", "openvino"]
    on_demand = RunSettings(toolchains=("example", "openvino"))
    assert ready(on_demand, late, ["onednn", "openvino", "example"])[-1] == "example"


@pytest.mark.usefixtures("nothing_is_compiled")
def test_without_a_limit_all_are_waited_for() -> None:
    assert ready(RunSettings(), Probing()) == list(NAMES)


def test_toolchains_of_pins_and_own_placements_are_named() -> None:
    pins = [
        Pin(kind="on", nodes=(0,), toolchain="onnxruntime[level=basic]"),
        Pin(kind="together", nodes=(1, 2)),
    ]
    settings = RunSettings(placements=({"conv": "openblas", "relu": "tvm"},))
    assert named_toolchains(pins, settings) == {"onnxruntime", "openblas", "tvm"}


def test_small_budgets_wait_for_what_is_compiled_already() -> None:
    def seconds(budget_s: float) -> float:
        return set_up_s(RunBudget.of(RunSettings(budget_s=budget_s), clock=lambda: 0.0))

    assert seconds(3.0) == seconds(25.0) == LEAST_SET_UP_S
    assert seconds(60.0) == pytest.approx(21.0) and seconds(600.0) > 120


def test_the_sentence_says_what_to_do() -> None:
    text = not_ready_in_words(["onednn", "openvino"])
    assert text.startswith("onednn, openvino are left out of this run")
    assert "`collage toolchains`" in text and "--budget" in text


def test_a_model_without_a_placement_names_the_toolchains_that_are_left_out() -> None:
    why = not_ready_in_words(["onnxruntime"])
    with (
        pytest.raises(InfeasibleError, match="no toolchain takes it; onnxruntime is left") as error,
        naming_who_is_absent([why]),
    ):
        raise InfeasibleError("no toolchain takes it", {"operators": [0]})
    assert error.value.details == {"operators": [0]}
    with pytest.raises(InfeasibleError, match=r"takes it$"), naming_who_is_absent([]):
        raise InfeasibleError("no toolchain takes it")
