"""The public functions of the search; problem and answer are in :mod:`.problem`.

>>> from collage_engine.search.problem_json import problem_from
>>> candidate = {"id": "whole", "nodes": [0], "toolchain": "tvm", "cost_us": 4.5}
>>> problem = problem_from({"nodes": [{"id": 0}], "candidates": [candidate]})
>>> solve(problem).cost_us
4.5
>>> search = Search(problem)  # keeps the state space between searches
>>> solve(problem, previous=search).cover
('whole',)
"""

from __future__ import annotations

import math
import time
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

from collage_engine.search.check import check_cover
from collage_engine.search.label_setting import enumerate_covers
from collage_engine.search.limits import limits_in_words
from collage_engine.search.problem import Answer, CandidateId, Problem
from collage_engine.search.search import Search
from collage_engine.search.verdicts import (
    explain_infeasible,
    verdicts_of_limits,
    verdicts_of_pins,
)
from collage_engine.support.time_limits import STEP_SHARE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.search.label_setting import Solution
    from collage_engine.search.problem import ProblemPin

__all__ = ["Search", "k_best", "reuse", "solve"]

BRIEF_SEARCH_S = 2.0
"""Seconds for a search that finds out what to measure next: where unmeasured candidates make the
graph wide, a placement soon is worth more than the best one late (chosen)."""


class RankedCover(msgspec.Struct, frozen=True, kw_only=True):
    """One of the k best covers: its cost, and how much more it costs than the best."""

    cover: tuple[CandidateId, ...]
    cost_us: float
    regret_us: float


def solve(
    problem: Problem,
    *,
    time_limit_s: float | None = None,
    previous: Search | None = None,
) -> Answer:
    """Find the least-cost acyclic disjoint cover under the pins and limits, or why there is none.

    Args:
        problem: The problem.
        time_limit_s: When the answer comes, in seconds (default 60), reading the problem into the
            state space aside. Where the graph is too wide to be searched exactly in that time, the
            answer states its gap. What pins and limits cost takes part of it only when a limit is
            given; by default it may take as long again.
        previous: A :class:`Search` of the same problem, whose pins may differ; what the two share
            is not computed again.
    """
    started = time.perf_counter()
    search = reuse(problem, previous, time_limit_s=time_limit_s)
    has_verdicts = bool(problem.pins or limits_in_words(search.runtime_sets.limits))
    limit, began = search.time_limit_s, time.monotonic()
    try:
        # What is left is for what pins and limits cost.
        share = STEP_SHARE if has_verdicts and time_limit_s is not None else 1.0
        search.deadline, search.has_answered = began + share * limit, False
        solution = search.find(problem.pins)
        search.deadline = began + (limit if time_limit_s is not None else 2 * limit)
        return _answer(problem, search, solution, started)
    finally:
        search.deadline = None


def _answer(problem: Problem, search: Search, solution: Solution, started: float) -> Answer:
    if solution.cost is None:
        if not solution.decided:  # no cover was found in time, and none is proved not to exist
            return Answer(
                lower_bound_us=search.to_us(solution.lower_bound),
                states=solution.states,
                seconds=time.perf_counter() - started,
            )
        return explain_infeasible(search, problem.pins, started)
    cover = tuple(problem.candidates[c].id for c in solution.cover)
    cost = search.to_us(solution.cost)
    checked = check_cover(problem, cover)
    if not isinstance(checked, float) or abs(checked - cost) > 1e-6 * max(1.0, cost):
        raise AssertionError(f"the search says its cover costs {cost} us, the check: {checked}")
    exact, bounds, not_known = _regrets(search, problem.pins, solution)
    optimal = solution.optimal
    return Answer(
        cost_us=cost,
        lower_bound_us=cost if optimal else min(cost, search.to_us(solution.lower_bound)),
        optimal=optimal,
        cover=cover,
        regrets=exact,
        regret_bounds=bounds,
        regrets_not_known=not_known,
        verdicts=verdicts_of_pins(search, problem.pins, solution),
        limit_verdicts=verdicts_of_limits(search, problem.pins, solution),
        states=solution.states,
        seconds=time.perf_counter() - started,
    )


def reuse(
    problem: Problem, previous: Search | None, *, time_limit_s: float | None = None
) -> Search:
    """Return ``previous`` if it searches the same problem, pins aside; else a new search.

    Args:
        problem: The problem.
        previous: An earlier search, if there is one.
        time_limit_s: The time limit of one solve from now on, in seconds; None leaves it.
    """
    if previous is not None:
        old = previous.problem
        if msgspec.structs.replace(problem, pins=old.pins) == old:
            if time_limit_s is not None:
                previous.time_limit_s = time_limit_s
            return previous
    return Search(problem, time_limit_s=time_limit_s)


def k_best(problem: Problem, k: int, *, previous: Search | None = None) -> list[RankedCover]:
    """Return the k least-cost distinct covers under the pins, the best first.

    Paths through the state space and covers are the same thing, one to one, and the backward labels
    give the exact least cost of the rest from any state. A best-first search with that heuristic
    takes no wrong turn: every state that it expands lies on one of the covers still wanted (the A*
    form of Eppstein's k shortest paths). There are fewer covers when the problem has fewer; where
    the state space is too large for exact search there may be fewer: those that are proved to be
    the best ones, or only the best cover found.

    Args:
        problem: The problem.
        k: How many covers are wanted.
        previous: A search of the same problem, whose pins may differ.
    """
    search = reuse(problem, previous)
    pins, sets = problem.pins, search.runtime_sets
    known: dict[frozenset[int], tuple[int, list[int]]] = {}
    cutoff = math.inf  # what costs more is not proved to be among the best
    for mask in sets.maximal:
        solution = search.solve(search.allowed(pins, sets.excluded(mask)), regrets=False)
        if solution.cost is None:
            continue
        covers = [(solution.cost, solution.cover)]
        if solution.labels is not None:
            covers = enumerate_covers(solution.labels, k)
        else:
            if solution.ranked_covers is not None:
                covers = solution.ranked_covers(k, time.monotonic() + search.time_limit_s)
            # HiGHS may list two of equal cost in either order, so the last one need not cost most.
            cutoff = min(cutoff, max(cost for cost, _ in covers))
        for cost, cover in covers:
            known.setdefault(frozenset(cover), (cost, cover))
    ranked = sorted(known.values(), key=itemgetter(0))
    candidates = search.problem.candidates
    return [
        RankedCover(
            cover=tuple(candidates[c].id for c in cover),
            cost_us=search.to_us(cost),
            regret_us=search.difference_us(cost, ranked[0][0]),
        )
        for cost, cover in ranked[:k]
        if cost <= cutoff
    ]


def _regrets(
    search: Search, pins: Sequence[ProblemPin], solution: Solution
) -> tuple[dict[CandidateId, float | None], dict[CandidateId, float], tuple[CandidateId, ...]]:
    """Return what is known of the regrets of measured candidates.

    Returns:
        Exact regrets (None: in no cover); bounds where only bounds are known; and the candidates
        of which nothing is known.
    """
    assert solution.cost is not None
    exact: dict[CandidateId, float | None] = {}
    bounds: dict[CandidateId, float] = {}
    not_known: list[CandidateId] = []
    allowed = search.allowed(pins)
    chosen = set(solution.cover) if solution.optimal else set()
    for index, candidate in enumerate(search.problem.candidates):
        if candidate.state != "measured":
            continue
        total = solution.least_through.get(index)
        bound = solution.lower_bound_through.get(index)
        if index in chosen:
            exact[candidate.id] = 0.0
        elif total is not None:
            exact[candidate.id] = search.difference_us(total, solution.cost)
        elif bound is not None:
            bounds[candidate.id] = max(0.0, search.difference_us(bound, solution.cost))
        elif solution.others_in_no_cover or not allowed[index]:
            exact[candidate.id] = None
        else:
            not_known.append(candidate.id)
    return exact, bounds, tuple(not_known)
