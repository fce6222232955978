"""Limits on runtimes against brute force, and what is said where they leave no cover."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import pytest

from collage_engine.search.api import Search, reuse, solve
from collage_engine.search.check import check_cover
from collage_engine.search.problem import Answer
from collage_engine.search.problem_json import problem_from
from tests.support.search_instances import BruteForce, random_problem
from tests.unit.test_search_exact import compare_cover, compare_ranked, compare_regrets

ROUNDS = int(os.environ.get("COLLAGE_SEARCH_ROUNDS", "1"))
NEAR = Fraction(1, 10**6)
CHAINS = ("a", "b", "c[x=1]", "c[x=2]", "d", "e")
RUNTIMES = "abcde"
LIMITS = ("allow", "max_runtimes", "max_bytes", "licences")


def random_constraints(rng: random.Random) -> dict[str, Any]:
    """One to three limits, sizes and licences for some runtimes."""
    found: dict[str, Any] = {
        "runtimes": {
            r: {"bytes": rng.randint(0, 60), "licences": rng.sample(["MIT", "BSD", "Own"], 1)}
            for r in RUNTIMES
            if rng.random() < 0.9
        },
        "base_bytes": rng.choice([0, 0, 10]),
    }
    for limit in rng.sample(LIMITS, rng.randint(1, 3)):
        if limit == "allow":
            found["allow"] = rng.sample(RUNTIMES, rng.randint(1, 4))
        elif limit == "max_runtimes":
            found["max_runtimes"] = rng.randint(0 if rng.random() < 0.1 else 1, 3)
        elif limit == "max_bytes":
            found["max_bytes"] = rng.randint(10, 150)
        else:
            found["licences"] = rng.sample(["MIT", "BSD", "Own"], 2)
    return found


class LimitedForce(BruteForce):
    """Brute force that drops covers beyond the limits, by the definition in ``search.limits``."""

    kept: tuple[str, ...] = LIMITS

    def honoured(self, pins: list[dict[str, Any]]) -> list[tuple[Fraction, tuple[int, ...]]]:
        return [entry for entry in super().honoured(pins) if self.keeps(entry[1])]

    def keeps(self, chosen: tuple[int, ...]) -> bool:
        said = self.problem["constraints"]
        used: set[str] = set()
        for index in chosen:
            name = self.problem["candidates"][index]["toolchain"]
            used.add(name.split("[")[0])
        about = [said["runtimes"][r] for r in used if r in said["runtimes"]]
        size = said["base_bytes"] + sum(r["bytes"] for r in about)
        broken = {
            "allow": "allow" in said and not used <= set(said["allow"]),
            "max_runtimes": len(used) > said.get("max_runtimes", 99),
            "max_bytes": size > said.get("max_bytes", 10**9),
            "licences": "licences" in said
            and any(set(r["licences"]) - set(said["licences"]) for r in about),
        }
        return not any(broken[limit] for limit in self.kept)


def limited_problem(seed: int, *, cyclic: bool = False) -> dict[str, Any]:
    data = random_problem(seed, cyclic=cyclic, nodes=6)
    rng = random.Random(seed + 1)
    for candidate in data["candidates"]:
        candidate["toolchain"] = rng.choice(CHAINS)
    data["constraints"] = random_constraints(rng)
    return data


@pytest.mark.parametrize("block", range(3))
def test_equals_brute_force(block: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(3 * 10**9 + block * 10**6, 3 * 10**9 + block * 10**6 + 70 * ROUNDS):
        data = limited_problem(seed, cyclic=block % 2 == 1)
        truth, problem = LimitedForce(data), problem_from(data)
        pins = data.get("pins", [])
        answer = solve(problem)
        tally["problems"] += 1
        free = BruteForce(data).least(pins)
        if truth.least(pins) is None:
            assert answer.infeasible is not None and not answer.cover, f"seed {seed}"
            tally["infeasible"] += free is not None
            conflicts(seed, tally, truth, pins, answer)
            continue
        assert answer.infeasible is None, f"seed {seed}: {answer.infeasible}"
        tally["binding"] += free != truth.least(pins)
        compare_cover(seed, tally, problem, answer, truth)
        compare_regrets(seed, tally, answer, truth, pins)
        for verdict in answer.limit_verdicts:
            truth.kept = tuple(name for name in LIMITS if name != verdict.constraint)
            without = truth.least(pins)
            truth.kept = LIMITS
            with_it = truth.least(pins)
            assert without is not None and with_it is not None and verdict.price_us is not None
            assert abs(verdict.price_us - (with_it - without)) < NEAR, f"seed {seed}"
            tally["prices"] += verdict.price_us > 0
    print(dict(tally))
    assert min(tally[n] for n in ("infeasible", "binding", "prices", "regrets")) >= 3


def conflicts(
    seed: int, tally: Counter[str], truth: LimitedForce, pins: list[dict[str, Any]], answer: Answer
) -> None:
    """Every named set leaves no cover, each proper part of it does; together nothing is missed."""

    def feasible(some: Iterable[int | str]) -> bool:
        truth.kept = tuple(c for c in some if isinstance(c, str))
        found = truth.least([pins[c] for c in some if isinstance(c, int)]) is not None
        truth.kept = LIMITS
        return found

    found = answer.infeasible
    assert found is not None
    everything: set[int | str] = {*range(len(pins)), *(v.constraint for v in answer.limit_verdicts)}
    if not feasible([]):
        assert not found.pins and not found.limits and not found.further, f"seed {seed}"
        return
    named = [(*each.pins, *each.limits) for each in (found, *found.further)]
    for core in named:
        assert core and not feasible(core), f"seed {seed}: {core} leaves covers"
        for size in range(len(core)):
            for part in itertools.combinations(core, size):
                assert feasible(part), f"seed {seed}: {part} of {core} is enough"
        tally["pins and limits"] += len({type(c) for c in core}) > 1
    left = everything.difference(*named)
    assert len(left) == len(everything) - sum(map(len, named)), f"seed {seed}: not disjoint"
    assert feasible(left), f"seed {seed}: a conflict in {left} is not named"
    tally["several"] += len(named) > 1
    for verdict in answer.verdicts:
        own = next((core for core in named if verdict.pin in core), ())
        assert verdict.state == ("infeasible" if own else "pending")
        assert {verdict.pin, *verdict.contradicts} == {verdict.pin, *own} - set(LIMITS)
    for limit in answer.limit_verdicts:
        own = next((core for core in named if limit.constraint in core), ())
        assert limit.state == ("infeasible" if own else "pending")


def test_k_best_keep_to_the_limits() -> None:
    several = 0
    for seed in range(4 * 10**9, 4 * 10**9 + 90 * ROUNDS):
        data = limited_problem(seed)
        several += compare_ranked(seed, LimitedForce(data), problem_from(data), 5)
    assert several > 10


def test_the_judge_refuses_every_cover_that_breaks_a_limit() -> None:
    refused = 0
    for seed in range(5 * 10**9, 5 * 10**9 + 60 * ROUNDS):
        data = limited_problem(seed)
        truth, problem = LimitedForce(data), problem_from(data)
        for _, chosen in BruteForce(data).honoured(data.get("pins", [])):
            said = check_cover(problem, [problem.candidates[i].id for i in chosen])
            assert isinstance(said, float) == truth.keeps(chosen), f"seed {seed}: {said}"
            refused += isinstance(said, str)
    assert refused > 50


def test_a_search_is_reused_only_under_the_same_limits() -> None:
    data = limited_problem(11)
    problem = problem_from(data)
    search = Search(problem)
    assert reuse(problem, search) is search
    del data["constraints"]
    assert reuse(problem_from(data), search) is not search
