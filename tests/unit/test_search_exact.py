"""The search against brute force on random small problems.

``COLLAGE_SEARCH_ROUNDS=100`` runs a hundred times as many of them.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from collage_engine.search.api import Search, k_best, solve
from collage_engine.search.check import check_cover
from collage_engine.search.label_setting import Solution
from collage_engine.search.problem import Answer, Problem
from collage_engine.search.problem_json import problem_from
from tests.support.search_instances import BruteForce, random_problem

ROUNDS = int(os.environ.get("COLLAGE_SEARCH_ROUNDS", "1"))
NEAR = Fraction(1, 10**6)


def compare(seed: int, tally: Counter[str], *, cyclic: bool, nodes: int = 7) -> None:
    """One random problem: everything the search says of it."""
    data = random_problem(seed, cyclic=cyclic, nodes=nodes)
    truth = BruteForce(data)
    problem = problem_from(data)
    answer = solve(problem)
    pins = data.get("pins", [])
    tally["problems"] += 1
    tally["with pins"] += bool(pins)
    tally["with formats"] += bool(data["transitions"].get("formats"))
    tally["decided by acyclicity"] += truth.decided_by_acyclicity(pins)
    if not truth.honoured(pins):
        tally["infeasible"] += 1
        compare_infeasible(seed, answer, truth, pins)
        return
    assert answer.infeasible is None, f"seed {seed}: {answer.infeasible}"
    compare_cover(seed, tally, problem, answer, truth)
    compare_regrets(seed, tally, answer, truth, pins)
    for index, verdict in enumerate(answer.verdicts):
        least, without = truth.least(pins), truth.least(pins[:index] + pins[index + 1 :])
        assert least is not None and without is not None and verdict.price_us is not None
        assert verdict.pin == index and verdict.state == "honoured"
        assert abs(verdict.price_us - (least - without)) < NEAR, f"seed {seed}"
        tally["verdicts"] += 1


def compare_infeasible(
    seed: int, answer: Answer, truth: BruteForce, pins: list[dict[str, Any]]
) -> None:
    found = answer.infeasible
    assert found is not None and answer.cover == (), f"seed {seed}: a cover where there is none"
    minimal = truth.minimal_contradictions(pins)
    named = [set(found.pins), *(set(conflict.pins) for conflict in found.further)]
    assert all(pins in minimal for pins in named), f"seed {seed}: {named} are not minimal"
    assert sum(map(len, named)) == len(set().union(*named)), f"seed {seed}: not disjoint"
    left = [pin for index, pin in enumerate(pins) if index not in set().union(*named)]
    assert not named[0] or truth.honoured(left), f"seed {seed}: a conflict is not named"
    for verdict in answer.verdicts:
        own = next((conflict for conflict in named if verdict.pin in conflict), set())
        assert verdict.state == ("infeasible" if own else "pending")
        assert set(verdict.contradicts) == own - {verdict.pin}


def compare_cover(
    seed: int, tally: Counter[str], problem: Problem, answer: Answer, truth: BruteForce
) -> None:
    allowed = truth.honoured(truth.problem.get("pins", []))
    least = min(cost for cost, _ in allowed)
    assert answer.optimal and answer.cost_us is not None
    assert abs(answer.cost_us - least) < NEAR, f"seed {seed}"
    chosen = truth.indices(answer.cover)
    assert (least, chosen) in allowed, f"seed {seed}: the cover does not cost what it says"
    judged = check_cover(problem, answer.cover)
    assert isinstance(judged, float) and abs(judged - least) < NEAR
    ties = [truth.tie_break(c) for cost, c in allowed if cost == least]
    tally["ties"] += len(ties) > 1
    assert truth.tie_break(chosen) == min(ties), f"seed {seed}: the tie is broken wrongly"


def compare_regrets(
    seed: int, tally: Counter[str], answer: Answer, truth: BruteForce, pins: list[dict[str, Any]]
) -> None:
    allowed = truth.honoured(pins)
    least = min(cost for cost, _ in allowed)
    measured = truth.named("measured")
    assert set(answer.regrets) == set(measured)
    for name, index in measured.items():
        costs = [cost for cost, c in allowed if index in c]
        regret = answer.regrets[name]
        if not costs:
            assert regret is None, f"seed {seed}: candidate {name} is in no cover"
        else:
            assert regret is not None, f"seed {seed}: candidate {name} is in a cover"
            assert abs(regret - (min(costs) - least)) < NEAR, f"seed {seed}: {name}"
        tally["regrets"] += 1


@pytest.mark.parametrize("block", range(4))
def test_equals_brute_force(block: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(block * 10**6, block * 10**6 + 80 * ROUNDS):
        compare(seed, tally, cyclic=False)
    print(dict(tally))
    assert min(tally[n] for n in ("infeasible", "ties", "verdicts")) > 0


@pytest.mark.parametrize("block", range(4))
def test_equals_brute_force_where_candidates_are_jointly_cyclic(block: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(10**8 + block * 10**6, 10**8 + block * 10**6 + 80 * ROUNDS):
        compare(seed, tally, cyclic=True, nodes=9)
    print(dict(tally))
    assert tally["decided by acyclicity"] > 5 * ROUNDS


def compare_ranked(
    seed: int, truth: BruteForce, problem: Problem, count: int, previous: Search | None = None
) -> bool:
    """Check the cheapest distinct covers; return whether there are several."""
    allowed = sorted(truth.honoured(truth.problem.get("pins", [])))
    ranked = k_best(problem, count, previous=previous)
    assert len(ranked) == min(count, len(allowed)), f"seed {seed}"
    for cover, (cost, _) in zip(ranked, allowed, strict=False):
        assert abs(cover.cost_us - cost) < NEAR, f"seed {seed}"
        assert abs(cover.regret_us - (cost - allowed[0][0])) < NEAR
        assert check_cover(problem, cover.cover) == pytest.approx(cover.cost_us)
    found = {truth.indices(cover.cover) for cover in ranked}
    assert len(found) == len(ranked) and found <= {chosen for _, chosen in allowed}
    return len(ranked) > 1


@pytest.mark.parametrize("cyclic", [False, True])
def test_k_best_are_the_cheapest_distinct_covers(cyclic: bool) -> None:
    several = 0
    for seed in range(2 * 10**8, 2 * 10**8 + 80 * ROUNDS):
        data = random_problem(seed, cyclic=cyclic)
        several += compare_ranked(seed, BruteForce(data), problem_from(data), 6)
    assert several > 20


@pytest.mark.parametrize("cyclic", [False, True])
def test_the_integer_program_is_right_in_what_it_claims(cyclic: bool) -> None:
    """What takes over on wide graphs, tried where brute force can judge it."""
    bounded = several = 0
    for seed in range(7 * 10**8, 7 * 10**8 + 60 * ROUNDS):
        data = random_problem(seed, cyclic=cyclic, nodes=8)
        truth = BruteForce(data)
        allowed = sorted(truth.honoured(data.get("pins", [])))
        problem = problem_from(data)
        search = Search(problem)
        search.too_wide = True
        found = search.find(problem.pins)
        if not allowed:
            assert found.cost is None and found.decided, f"seed {seed}"
            continue
        least = allowed[0][0]
        assert found.optimal and found.cost is not None, f"seed {seed}"
        assert abs(search.to_us(found.cost) - least) < NEAR, f"seed {seed}"
        ids = [problem.candidates[c].id for c in found.cover]
        assert check_cover(problem, ids) == pytest.approx(float(least)), f"seed {seed}"
        bounded += compare_through(seed, search, found, truth, allowed)
        several += compare_ranked(seed, truth, problem, 4, search)
    assert bounded > 40 * ROUNDS and several > 5 * ROUNDS


def compare_through(
    seed: int, search: Search, found: Solution, truth: BruteForce, allowed: list[Any]
) -> int:
    """Check the bound on the least cover through every candidate; return how many tell more."""
    tell_more = 0
    for name, index in truth.named("measured").items():
        costs = [cost for cost, c in allowed if index in c]
        bound = found.lower_bound_through.get(index)
        if bound is None:
            assert found.others_in_no_cover and not costs, f"seed {seed}: {name}"
        elif costs:
            assert search.to_us(bound) <= min(costs) + NEAR, f"seed {seed}: {name}"
            tell_more += bound > found.lower_bound
    return tell_more


def test_the_integer_program_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS 1.16 says who it is; on the command line that would stand before a JSON document."""
    search = Search(problem_from(random_problem(7 * 10**8, cyclic=False, nodes=8)))
    search.too_wide = True
    assert search.find(()).optimal
    ctypes.CDLL(None).fflush(None)  # what a C library keeps in its buffer
    assert capfd.readouterr() == ("", "")


def test_the_integer_program_keeps_to_limits_and_pins() -> None:
    """The branch and bound over sets of runtimes is the same on wide graphs."""
    solved = 0
    for seed in range(8 * 10**8, 8 * 10**8 + 40 * ROUNDS):
        data = random_problem(seed, nodes=6)
        names = sorted({c["toolchain"] for c in data["candidates"]})
        data["constraints"] = {"max_runtimes": 1 + seed % max(len(names), 1)}
        problem = problem_from(data)
        truth = solve(problem)
        search = Search(problem)
        search.too_wide = True
        answer = solve(problem, previous=search)
        assert (answer.infeasible is None) == (truth.infeasible is None), f"seed {seed}"
        if truth.cost_us is not None:
            solved += 1
            assert answer.optimal and answer.cost_us == pytest.approx(truth.cost_us)
            for name, regret in answer.regrets.items():
                assert regret == pytest.approx(truth.regrets[name]), f"seed {seed}: {name}"
            for name, bound in answer.regret_bounds.items():
                known = truth.regrets.get(name)
                assert known is None or bound <= known + 1e-6
    assert solved > 10


@pytest.mark.parametrize(
    ("cover", "fault"),
    [
        (["p", "q"], "candidates p, q wait for each other"),
        (["a0", "a1", "a2"], "node 3 is in no candidate of the placement"),
        (["a0", "p", "a1", "a2"], "node 0 is in candidate a0 and in candidate p"),
        (["b0", "a1", "a2", "a3"], "candidate b0 breaks pin 0"),
        (["a0", "c1", "a2", "a3"], "it uses c, which is not allowed"),
        (["a0", "a1", "a2", "a3", "x"], "there is no candidate x"),
    ],
)
def test_what_is_no_cover_has_its_sentence(cover: list[str], fault: str) -> None:
    def each(name: str, nodes: list[int]) -> dict[str, Any]:
        return {"id": name, "nodes": nodes, "toolchain": name[0], "cost_us": 1}

    singles = [each(f"{chain}{n}", [n]) for chain in "abc" for n in range(4)]
    crossed = [{**each(n, nodes), "toolchain": "a"} for n, nodes in (("p", [0, 3]), ("q", [1, 2]))]
    problem = {
        "nodes": [{"id": 0}, {"id": 1, "inputs": [0]}, {"id": 2}, {"id": 3, "inputs": [2]}],
        "candidates": [*singles, *crossed],
        "pins": [{"nodes": [0], "toolchain": "a"}],
        "constraints": {"allow": ["a", "b"]},
    }
    assert check_cover(problem_from(problem), cover) == fault


def test_searching_again_after_a_pin_keeps_the_space() -> None:
    for seed in range(4 * 10**8, 4 * 10**8 + 60 * ROUNDS):
        data = random_problem(seed)
        pins = data.pop("pins", [])
        bare = problem_from(data)
        search = Search(bare)
        first = solve(bare, previous=search)
        pinned = problem_from({**data, "pins": pins})
        again = solve(pinned, previous=search)
        fresh = solve(pinned)
        assert again.cover == fresh.cover and again.regrets == fresh.regrets
        assert again.infeasible == fresh.infeasible
        assert solve(bare, previous=search).cover == first.cover
