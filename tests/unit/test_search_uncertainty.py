"""Ties, probabilities, and the interval of a re-measured median."""

from __future__ import annotations

import math
import random
from statistics import median
from typing import Any

import pytest

from collage_engine.search.api import Search, solve
from collage_engine.search.problem_json import problem_from
from collage_engine.search.run_to_run_drift import (
    drift_tolerance_bound,
    remeasured_median_interval,
    required_drift,
)
from collage_engine.search.uncertainty import choice_probability, spread_of, ties
from tests.support.search_graphs import problem_on, residual


def two(cost_a: float, cost_b: float, spread: Any = 1.0) -> dict[str, Any]:
    return {
        "nodes": [{"id": 0}, {"id": 1, "inputs": [0]}],
        "candidates": [
            {"id": "a", "nodes": [0], "toolchain": "a", "cost_us": cost_a, "spread_us": spread},
            {"id": "b", "nodes": [0], "toolchain": "b", "cost_us": cost_b, "spread_us": spread},
            {"id": "c", "nodes": [1], "toolchain": "c", "cost_us": 50.0},
            {"id": "d", "nodes": [1], "toolchain": "d", "cost_us": 90.0, "spread_us": 0.5},
        ],
    }


def test_overlapping_spreads_are_ties() -> None:
    problem = problem_from(two(10.0, 11.9))
    assert ties(problem, solve(problem)) == {"b": pytest.approx(1.9)}
    problem = problem_from(two(10.0, 12.1))
    assert ties(problem, solve(problem)) == {}


def test_spreads_as_percentiles() -> None:
    data = two(10.0, 11.0)
    data["candidates"][1]["spread_us"] = [10.5, 14.0]
    problem = problem_from(data)
    assert spread_of(problem.candidates[1]) == (10.5, 14.0)
    assert list(ties(problem, solve(problem))) == ["b"]


def test_probability_that_a_choice_is_right() -> None:
    problem = problem_from(two(10.0, 10.0))
    search = Search(problem)
    found = choice_probability(problem, solve(problem, previous=search), search=search, draws=400)
    assert 0.4 < found["a"] < 0.6
    assert found["a"] + found["b"] == pytest.approx(1.0)
    assert found["c"] == 1.0 and "d" not in found
    # The search is left as it was.
    assert solve(problem, previous=search).cost_us == 60.0
    sure = choice_probability(problem_from(two(10.0, 20.0)), solve(problem_from(two(10.0, 20.0))))
    assert sure == {"a": 1.0, "c": 1.0}


def test_equal_work_is_drawn_once() -> None:
    data = two(10.0, 10.5)
    problem = problem_from(data)
    answer = solve(problem)
    assert choice_probability(problem, answer, same={"a": "k", "b": "k"})["a"] == 1.0


def test_repeats_are_bootstrapped() -> None:
    rng = random.Random(1)
    repeats: dict[int | str, list[float]] = {
        "a": [rng.gauss(10.0, 2.0) for _ in range(9)],
        "b": [rng.gauss(10.0, 2.0) for _ in range(9)],
    }
    data = two(median(repeats["a"]), median(repeats["b"]))
    problem = problem_from(data)
    found = choice_probability(problem, solve(problem), repeats=repeats)
    assert 0.0 < found["a"] < 1.0


def test_uncertainty_on_a_model() -> None:
    data = problem_on(residual(60))
    for candidate in data["candidates"]:
        candidate["spread_us"] = candidate["cost_us"] * 0.05
    problem = problem_from(data)
    answer = solve(problem)
    found = choice_probability(problem, answer, draws=40)
    assert all(0.0 <= share <= 1.0 + 1e-9 for share in found.values())
    for node in range(len(problem.nodes)):  # each draw covers each node once
        shares = [found.get(c.id, 0.0) for c in problem.candidates if node in c.nodes]
        assert sum(shares) == pytest.approx(1.0)
    assert any(0.0 < share < 1.0 for share in found.values())


@pytest.mark.parametrize("count", [5, 9, 25, 64])
def test_the_interval_holds_the_remeasured_median(count: int) -> None:
    """Log-normal repeats with outliers, and a drift between sessions, as timings have."""
    rng = random.Random(count)
    held = 0
    for _ in range(400):
        scale = rng.lognormvariate(3, 1)

        def session(scale: float = scale) -> list[float]:
            drift = scale * rng.gauss(1.0, 0.01)
            return [
                drift * rng.lognormvariate(0, 0.05) * (3 if rng.random() < 0.05 else 1)
                for _ in range(count)
            ]

        low, high = remeasured_median_interval(session())
        held += low <= median(session()) <= high
    assert held >= 0.9 * 400


def learnt_drift(pairs: list[Any]) -> float:
    return drift_tolerance_bound([required_drift(ours, theirs) for ours, theirs in pairs])


def test_drift_is_learnt_from_what_was_measured_twice() -> None:
    """The drift of one half of the pairs makes the intervals of the other half hold."""
    rng = random.Random(5)
    for true in (0.0, 0.03, 0.2):

        def session(true: float = true) -> list[float]:
            speed = math.exp(rng.gauss(0.0, true))
            return [speed * rng.lognormvariate(0, 0.02) for _ in range(30)]

        pairs = [(session(), session()) for _ in range(400)]
        drift = learnt_drift(pairs[:200])
        assert true <= drift <= 0.01 + 4 * true
        held = 0
        for ours, theirs in pairs[200:]:
            low, high = remeasured_median_interval(ours, drift=drift)
            held += low <= median(theirs) <= high
        assert held >= 0.86 * 200


def test_a_small_sample_of_sittings_is_held_throughout_a_large_one_a_little_above_level() -> None:
    """Of sessions that differ by 1, 2, … % one in ten may lie outside: with few, none does."""

    def drift(count: int) -> float:
        pairs = [((100.0,) * 9, (100.0 + 20.0 * (k + 1) / count,) * 9) for k in range(count)]
        return learnt_drift(pairs)

    assert drift(21) == pytest.approx(0.2)
    assert drift(100) == pytest.approx(0.2 * 0.95)
    assert 0.2 * 0.9 < drift(2000) < 0.2 * 0.92
