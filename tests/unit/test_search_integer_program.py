"""The search's two ways, label setting and HiGHS, against each other where brute force is too slow.

Both are compared with brute force on small problems (``test_search_exact``). What the search
answers when it has no time: a cover, its gap, and no claim beyond that.
"""

from __future__ import annotations

import math
import os
import random
import signal
import threading
from typing import Any

import pytest

from collage_engine.search.api import Search, solve
from collage_engine.search.check import check_cover
from collage_engine.search.problem import Answer
from collage_engine.search.problem_json import problem_from
from tests.support.search_instances import lanes_problem, random_problem

ROUNDS = int(os.environ.get("COLLAGE_SEARCH_ROUNDS", "1"))


def by_program(data: dict[str, Any]) -> Answer:
    """Solve by the integer program that the search takes where a graph is too wide."""
    search = Search(problem_from(data))
    search.too_wide = True
    return solve(search.problem, previous=search)


@pytest.mark.parametrize("seed", range(40 * ROUNDS))
def test_label_setting_equals_the_integer_program(seed: int) -> None:
    data = random_problem(seed, nodes=14)
    problem = problem_from(data)
    answer, other = solve(problem), by_program(data)
    assert (answer.infeasible is None) == (other.infeasible is None)
    if answer.infeasible is not None:
        return
    assert answer.optimal and other.optimal and answer.cost_us is not None
    assert answer.cost_us == pytest.approx(other.cost_us, abs=1e-4)
    for cover in (answer.cover, other.cover):
        assert check_cover(problem, cover) == pytest.approx(answer.cost_us, abs=1e-4)
    candidates = {str(c["id"]): c for c in data["candidates"]}
    names = sorted(map(str, answer.regrets))
    for name in random.Random(seed).sample(names, min(3, len(names))):
        # The cheapest cover with a candidate of these nodes on this toolchain.
        one = candidates[name]
        alike = [
            answer.regrets[c["id"]]
            for c in data["candidates"]
            if (c["nodes"], c["toolchain"]) == (one["nodes"], one["toolchain"])
            and c["id"] in answer.regrets
        ]
        pin = {"nodes": one["nodes"], "exactly": True, "toolchain": one["toolchain"]}
        forced = by_program({**data, "pins": [*data.get("pins", []), pin]}).cost_us
        possible = [regret for regret in alike if regret is not None]
        if possible:
            assert forced == pytest.approx(answer.cost_us + min(possible), abs=1e-4), name
        else:
            assert forced is None, name


NO_TIME_S = 1e-6


def test_without_any_time_a_wide_graph_has_a_cover_and_a_proven_gap() -> None:
    pins = [{"nodes": [3], "not_toolchain": "a"}]
    problem = problem_from(lanes_problem(240, 24) | {"pins": pins})
    search = Search(problem)
    answer = solve(problem, time_limit_s=NO_TIME_S, previous=search)
    assert answer.cost_us is not None and answer.lower_bound_us is not None
    judged = check_cover(problem, answer.cover)
    assert isinstance(judged, float) and judged == pytest.approx(answer.cost_us)
    assert 0 <= answer.lower_bound_us < answer.cost_us and not answer.optimal
    assert answer.gap_us == pytest.approx(answer.cost_us - answer.lower_bound_us)
    verdict = answer.verdicts[0]
    assert verdict.state == "honoured" and verdict.price_us is None
    assert all(bound >= 0 and math.isfinite(bound) for bound in answer.regret_bounds.values())


def test_an_interrupt_ends_the_integer_program() -> None:
    """A process that ended while HiGHS still works would be aborted."""
    search = Search(problem_from(lanes_problem(500, 24)))
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
    problem = problem_from(lanes_problem(12))
    search = Search(problem)
    search.deadline, search.has_answered = 0.0, True
    assert not search.find(problem.pins).decided
    search.deadline = None
    answer = solve(problem, previous=search)
    assert answer.optimal and answer.cost_us == solve(problem).cost_us
