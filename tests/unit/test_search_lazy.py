"""Lazy measuring, proved by replay: same cover, part of the candidates never measured."""

from __future__ import annotations

import random

import msgspec
import pytest

from collage_engine.search.api import solve
from collage_engine.search.lazy_measuring import measure_lazily, rank_unmeasured
from collage_engine.search.problem import Problem
from collage_engine.search.problem_json import problem_from
from tests.support.replay import replay
from tests.support.search_graphs import problem_on, residual, transformer, wide
from tests.support.search_instances import random_problem


def with_bounds(problem: Problem, rng: random.Random, *, tight: float) -> Problem:
    """Lower bounds at a random part, at least ``tight``, of the true cost."""
    bounded = tuple(
        msgspec.structs.replace(c, lower_bound_us=c.cost_us * rng.uniform(tight, 1.0))
        if c.state == "measured" and c.cost_us is not None
        else c
        for c in problem.candidates
    )
    return msgspec.structs.replace(problem, candidates=bounded)


def all_measured(seed: int) -> Problem:
    data = random_problem(seed)
    for candidate in data["candidates"]:
        if candidate.get("state") == "unknown":
            candidate.update(state="measured", cost_us=9.25)
            candidate.pop("lower_bound_us", None)
    return problem_from(data)


def test_replay_finds_the_cost_of_measuring_everything() -> None:
    skipped = total = 0
    for seed in range(5 * 10**8, 5 * 10**8 + 150):
        problem = with_bounds(all_measured(seed), random.Random(seed), tight=0.5)
        truth = solve(problem, with_bounds=False)
        blank, measure = replay(problem)
        result = measure_lazily(blank, measure, next_best=seed % 3)
        assert result.certified
        assert set(result.measured).isdisjoint(result.skipped)
        again = solve(result.problem, with_bounds=False)
        assert again.cost_us == result.cost_us == truth.cost_us, f"seed {seed}"
        assert (again.infeasible is None) == (truth.infeasible is None)
        skipped += len(result.skipped)
        total += len(problem.candidates)
    assert skipped > 0.2 * total


@pytest.mark.parametrize("graph", [residual(60), transformer(60)])
def test_replay_on_models_chooses_the_same_cover(graph: object) -> None:
    problem = problem_from(problem_on(graph, seed=3))  # type: ignore[arg-type]
    problem = with_bounds(problem, random.Random(3), tight=0.6)
    truth = solve(problem)
    blank, measure = replay(problem)
    result = measure_lazily(blank, measure, next_best=4)
    assert result.certified and set(solve(result.problem).cover) == set(truth.cover)
    assert len(result.skipped) > 0.3 * len(problem.candidates)
    assert result.lower_bound_us == result.cost_us
    # With a margin, everything that could tie within it is measured as well.
    wider = measure_lazily(blank, measure, margin_us=20.0)
    assert wider.certified and len(wider.skipped) < len(result.skipped)
    regrets = truth.regrets
    assert all((regrets[c] or 20.0) >= 20.0 for c in wider.skipped)


def test_what_cannot_matter_is_certified_by_the_bounds() -> None:
    problem = problem_from(
        {
            "nodes": [{"id": 0}, {"id": 1, "inputs": [0]}],
            "candidates": [
                {"id": "a", "nodes": [0], "toolchain": "t", "cost_us": 10},
                {"id": "b", "nodes": [1], "toolchain": "t", "cost_us": 10},
                {
                    "id": "no",
                    "nodes": [0, 1],
                    "toolchain": "t",
                    "state": "unknown",
                    "lower_bound_us": 20,
                },
                {
                    "id": "yes",
                    "nodes": [0],
                    "toolchain": "u",
                    "state": "unknown",
                    "lower_bound_us": 4,
                },
                {"id": "blind", "nodes": [1], "toolchain": "u", "state": "unknown"},
            ],
        }
    )
    ranked = rank_unmeasured(problem)
    assert [each.candidate for each in ranked] == ["yes", "blind", "no"]
    # "no" costs 20, which is measured already.
    assert [each.can_matter for each in ranked] == [True, True, False]


def test_stopping_early_is_not_certified_and_keeps_what_was_measured() -> None:
    problem = with_bounds(problem_from(problem_on(residual(60))), random.Random(1), tight=0.3)
    blank, measure = replay(problem)
    turns = iter([False, False, True])
    result = measure_lazily(blank, measure, stop=lambda: next(turns))
    assert not result.certified and result.rounds == 2 and result.measured
    assert result.ended == "stopped"
    silent = measure_lazily(blank, lambda ids: {})
    assert silent.rounds == 1 and silent.ended == "unanswered"


def test_a_graph_too_wide_to_be_proved_says_that_the_search_ended_it() -> None:
    problem = with_bounds(problem_from(problem_on(wide(100))), random.Random(1), tight=0.5)
    blank, measure = replay(problem)
    result = measure_lazily(blank, measure, time_limit_s=0.05)
    assert result.ended == "search limit" and not result.certified and result.skipped
    assert result.cost_us is not None and result.lower_bound_us is not None
    assert result.lower_bound_us < result.cost_us
