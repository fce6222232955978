"""The public functions of the search."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from collage_engine.search.check import check_cover
from collage_engine.search.problem import Answer, CandidateId, Problem
from collage_engine.search.search import Search
from collage_engine.search.verdicts import explain_infeasible, verdicts_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def solve(
    problem: Problem, *, time_limit_s: float | None = None, previous: Search | None = None
) -> Answer:
    """The least-cost acyclic disjoint cover under the pins, or why there is none."""
    started = time.perf_counter()
    search = previous if previous is not None else Search(problem)
    allowed = search.allowed(problem.pins)
    if search.uncovered(allowed):
        return explain_infeasible(search, problem.pins, started)
    passes = search.passes(problem.pins)
    least = passes.backward()
    if least is None:
        return explain_infeasible(search, problem.pins, started)
    cover = tuple(problem.candidates[c].id for c in passes.best_cover())
    passes.forward()
    scale = search.weights.scale
    regrets: dict[CandidateId, float | None] = {}
    for index, candidate in enumerate(problem.candidates):
        if candidate.state == "measured":
            total = passes.through.get(index)
            regrets[candidate.id] = (
                None if total is None else (total // scale - least // scale) / 1e9
            )
    cost = check_cover(problem, cover)
    assert isinstance(cost, float), cost
    return Answer(
        cost_us=cost,
        lower_bound_us=cost,
        optimal=True,
        cover=cover,
        regrets=regrets,
        verdicts=verdicts_of(search, problem.pins, least),
        states=sum(map(len, passes.pasts)) + sum(map(len, passes.ends)),
        seconds=time.perf_counter() - started,
    )


def check(problem: Problem, cover: Sequence[CandidateId]) -> float | str:
    """A cover's cost in microseconds, or why it is none; independent of the search."""
    return check_cover(problem, cover)
