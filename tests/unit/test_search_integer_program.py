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
from tests.support.search_graphs import SHAPES, chain, problem_on, wide

SEEDS = range(1, int(os.environ.get("COLLAGE_SEARCH_ROUNDS", "1")) + 1)


def by_program(data: dict[str, Any]) -> Answer:
    """Solve by the integer program that the search takes where a graph is too wide."""
    search = Search(problem_from(data))
    search.solver.too_wide = True
    return solve(search.problem, previous=search)


def enriched(data: dict[str, Any], seed: int) -> dict[str, Any]:
    """With formats on some values, pins, and pairs of candidates that wait for each other."""
    rng = random.Random(seed)
    inputs = [n["inputs"] for n in data["nodes"]]
    valued = set(rng.sample(range(len(inputs)), len(inputs) // 3))
    for c in data["candidates"]:
        if c["toolchain"] != "onednn":
            continue
        inside = set(c["nodes"])
        c["gives"] = {str(n): "blocked" for n in c["nodes"] if n in valued}
        c["takes"] = {
            str(p): "blocked"
            for n in c["nodes"]
            for p in inputs[n]
            if p in valued and p not in inside
        }
    data["transitions"]["formats"] = [
        [n, a, b, round(rng.uniform(1.0, 9.0), 2)]
        for n in valued
        for a, b in (("plain", "blocked"), ("blocked", "plain"))
        if rng.random() < 0.9
    ]
    some = data["candidates"][rng.randrange(len(data["candidates"]))]
    data["pins"] = [
        {"nodes": [rng.randrange(len(inputs))], "not_toolchain": rng.choice(["tvm", "onednn"])},
        {"nodes": some["nodes"][:2], "together": True},
    ]
    return data


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("seed", SEEDS)
def test_label_setting_equals_the_integer_program(shape: str, seed: int) -> None:
    data = enriched(problem_on(SHAPES[shape](14), seed=seed, per_node=5, multi=0.5), seed)
    problem = problem_from(data)
    answer, other = solve(problem), by_program(data)
    assert answer.optimal and other.optimal and answer.cost_us is not None
    assert answer.cost_us == pytest.approx(other.cost_us, abs=1e-4)
    for cover in (answer.cover, other.cover):
        assert check_cover(problem, cover) == pytest.approx(answer.cost_us, abs=1e-4)
    rng = random.Random(seed)
    named = {str(c["id"]): c for c in data["candidates"]}
    for name in rng.sample(sorted(map(str, answer.regrets)), 3):
        # The cheapest cover with a candidate of these nodes on this toolchain.
        one = named[name]
        alike = [
            answer.regrets[c["id"]]
            for c in data["candidates"]
            if (c["nodes"], c["toolchain"]) == (one["nodes"], one["toolchain"])
            and c["id"] in answer.regrets
        ]
        pin = {"nodes": one["nodes"], "exactly": True, "toolchain": one["toolchain"]}
        forced = by_program({**data, "pins": [*data["pins"], pin]}).cost_us
        known = [regret for regret in alike if regret is not None]
        if known:
            assert forced == pytest.approx(answer.cost_us + min(known), abs=1e-4), name
        else:
            assert forced is None, name


NO_TIME_S = 1e-6


def test_without_any_time_a_wide_graph_has_a_cover_and_a_proven_gap() -> None:
    graph = wide(240)
    pins = [{"nodes": [3], "not_toolchain": "tvm"}]
    problem = problem_from(problem_on(graph) | {"pins": pins})
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
