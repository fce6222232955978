"""The exact search against brute force on random small problems."""

from __future__ import annotations

import os
from collections import Counter
from fractions import Fraction

import pytest

from collage_engine.search.api import check, solve
from collage_engine.search.problem import problem_from
from tests.search_instances import BruteForce, random_problem

ROUNDS = int(os.environ.get("COLLAGE_SEARCH_ROUNDS", "1"))
"""Set it to run ROUNDS times as many random problems."""


def compare(seed: int, tally: Counter[str], *, cyclic: bool, nodes: int = 7) -> None:
    """One random problem: cost, cover, ties, regrets, feasibility and verdicts."""
    data = random_problem(seed, cyclic=cyclic, nodes=nodes)
    truth = BruteForce(data)
    problem = problem_from(data)
    answer = solve(problem)
    pins = data.get("pins", [])
    allowed = truth.honoured(pins)
    tally["problems"] += 1
    tally["pins"] += bool(pins)
    tally["formats"] += bool(data["transitions"].get("formats"))
    tally["decided by acyclicity"] += truth.decided_by_acyclicity(pins)
    if not allowed:
        tally["infeasible"] += 1
        found = answer.infeasible
        assert found is not None, f"seed {seed}: a cover where there is none"
        assert answer.cover == ()
        minimal = truth.minimal_contradictions(pins)
        assert set(found.pins) in minimal, f"seed {seed}: {found.pins} is not minimal"
        for verdict in answer.verdicts:
            inside = verdict.pin in found.pins
            assert verdict.state == ("infeasible" if inside else "pending")
            if inside:
                assert set(verdict.contradicts) == set(found.pins) - {verdict.pin}
        return
    assert answer.infeasible is None, f"seed {seed}: {answer.infeasible}"
    least = min(cost for cost, _ in allowed)
    assert answer.optimal and answer.cost_us is not None
    assert abs(answer.cost_us - least) < Fraction(1, 10**6), f"seed {seed}"
    by_id = {c["id"]: index for index, c in enumerate(data["candidates"])}
    chosen = tuple(sorted(by_id[c] for c in answer.cover))
    assert (least, chosen) in allowed, f"seed {seed}: the cover does not cost what it says"
    judged = check(problem, answer.cover)
    assert isinstance(judged, float) and abs(judged - least) < Fraction(1, 10**6)
    ties = [truth.settle(c) for cost, c in allowed if cost == least]
    tally["ties"] += len(ties) > 1
    assert truth.settle(chosen) == min(ties), f"seed {seed}: the tie is settled wrongly"
    measured = {
        c["id"]: index
        for index, c in enumerate(data["candidates"])
        if c.get("state", "measured") == "measured"
    }
    assert set(answer.regrets) == set(measured)
    for name, index in measured.items():
        costs = [cost for cost, c in allowed if index in c]
        regret = answer.regrets[name]
        if not costs:
            assert regret is None, f"seed {seed}: candidate {name} is in no cover"
        else:
            assert regret is not None, f"seed {seed}: candidate {name} is in a cover"
            assert abs(regret - (min(costs) - least)) < Fraction(1, 10**6), f"seed {seed}: {name}"
        tally["regrets"] += 1
    for index, verdict in enumerate(answer.verdicts):
        without = truth.least(pins[:index] + pins[index + 1 :])
        assert without is not None and verdict.price_us is not None
        assert verdict.pin == index and verdict.state == "honoured"
        assert abs(verdict.price_us - (least - without)) < Fraction(1, 10**6), f"seed {seed}"
        tally["verdicts"] += 1


@pytest.mark.parametrize("block", range(8))
def test_equals_brute_force(block: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(block * 10**6, block * 10**6 + 150 * ROUNDS):
        compare(seed, tally, cyclic=False)
    assert tally["infeasible"] > 0 and tally["ties"] > 0 and tally["verdicts"] > 0


@pytest.mark.parametrize("block", range(8))
def test_equals_brute_force_where_candidates_are_jointly_cyclic(block: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(10**8 + block * 10**6, 10**8 + block * 10**6 + 150 * ROUNDS):
        compare(seed, tally, cyclic=True, nodes=9)
    assert tally["decided by acyclicity"] > 10 * ROUNDS
