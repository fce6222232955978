"""Whom a process asks is noted with the time that the answer may take, for its parent to read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collage_engine.machine.risk_marker import RiskMarker
from collage_engine.machine.worker import Worker, WorkerTimeout
from collage_engine.records.errors import ToolchainFault
from collage_engine.toolchains import asking
from collage_engine.toolchains.asking import ANSWER_S, LEAST_S, RULES_S


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[RiskMarker]:
    made = RiskMarker(tmp_path / "marker", create=True)
    yield made
    asking.note_questions(None, lambda: math.inf)
    made.close()


@pytest.fixture
def job(marker: RiskMarker) -> Callable[[float], None]:
    """Return what begins a job that has so many seconds left."""
    return lambda left_s: asking.note_questions(RiskMarker(marker.path), lambda: left_s)


def test_the_outer_question_is_open_again_when_the_inner_one_is_answered(marker, job) -> None:
    job(math.inf)
    with asking.asking("tvm", RULES_S):
        outer = marker.get()
        assert asking.asked("onednn", lambda: marker.get().who)() == "onednn"
        assert marker.get() == outer and outer.who == "tvm"
    assert marker.get() is None


@pytest.mark.parametrize(
    ("left_s", "limit_s", "expected_s"),
    [
        (math.inf, ANSWER_S, ANSWER_S),
        (math.inf, RULES_S, RULES_S),
        (600.0, RULES_S, 150.0),
        (40.0, ANSWER_S, 10.0),
        (8.0, ANSWER_S, LEAST_S),
    ],
)
def test_an_answer_may_take_a_quarter_of_the_time_that_is_left(
    marker, job, left_s: float, limit_s: float, expected_s: float
) -> None:
    job(left_s)
    with asking.asking("evil", limit_s):
        at_risk = marker.get()
        assert at_risk.limit_s == expected_s
        assert at_risk.until_s == pytest.approx(time.monotonic() + expected_s, abs=5.0)
        assert marker.overdue() is None


def test_what_a_toolchain_raises_names_it(marker, job) -> None:
    job(math.inf)
    with pytest.raises(ToolchainFault, match=r"evil failed.*ValueError: no") as raised:
        asking.asked("evil", _raise)()
    assert raised.value.toolchain == "evil" and marker.get() is None


def _raise() -> None:
    raise ValueError("no")


def stand_still(path: str) -> None:
    """Runs in the child."""
    RiskMarker(path).set("evil", "standing still", 0.5)
    time.sleep(600)


def test_who_exceeds_its_time_is_ended_by_the_parent(marker) -> None:
    with Worker(f"{__name__}:stand_still", marker=marker) as worker:
        with pytest.raises(WorkerTimeout, match=r"no answer within 0\.5 s"):
            worker.call(str(marker.path), timeout_s=60)
        assert not worker.alive
    at_risk = marker.get()
    assert at_risk is not None and (at_risk.who, at_risk.doing) == ("evil", "standing still")
