"""What the search answers when it has no time: a cover, its gap, and no claim beyond that."""

from __future__ import annotations

import math
import signal
import threading

import pytest

from collage_engine.search.api import Search, check, solve
from collage_engine.search.problem_json import problem_from
from tests.support.search_graphs import chain, problem_on, wide

NO_TIME_S = 1e-6


def test_without_any_time_a_wide_graph_has_a_cover_and_a_proven_gap() -> None:
    graph = wide(240)
    pins = [{"nodes": [3], "not_toolchain": "tvm"}]
    problem = problem_from(problem_on(graph) | {"pins": pins})
    search = Search(problem)
    answer = solve(problem, time_limit_s=NO_TIME_S, previous=search)
    assert answer.cost_us is not None and answer.lower_bound_us is not None
    judged = check(problem, answer.cover)
    assert isinstance(judged, float) and judged == pytest.approx(answer.cost_us)
    assert 0 <= answer.lower_bound_us < answer.cost_us and not answer.optimal
    assert answer.gap_us == pytest.approx(answer.cost_us - answer.lower_bound_us)
    verdict = answer.verdicts[0]
    assert verdict.state == "honoured" and verdict.price_us is None
    assert all(bound >= 0 and math.isfinite(bound) for bound in answer.regret_bounds.values())


def test_an_interrupt_ends_the_integer_program() -> None:
    """A process that ended while HiGHS still works would be aborted."""
    search = Search(problem_from(problem_on(wide(500))))
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    threads = threading.active_count()
    try:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        with pytest.raises(KeyboardInterrupt):
            search.find(())
        assert threading.active_count() == threads
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_what_there_was_no_time_for_is_not_remembered() -> None:
    problem = problem_from(problem_on(chain(12)))
    search = Search(problem)
    search.solver.deadline, search.solver.has_answered = 0.0, True
    assert not search.find(problem.pins).decided
    search.solver.deadline = None
    answer = solve(problem, previous=search)
    assert answer.optimal and answer.cost_us == solve(problem).cost_us
