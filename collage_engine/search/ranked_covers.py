"""The k best distinct covers of a problem, with their regrets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from collage_engine.search.a_star import enumerate_covers
from collage_engine.search.limited_search import ranked_covers_within_limits
from collage_engine.search.problem import CandidateId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collage_engine.search.problem import ProblemPin
    from collage_engine.search.search import Search


class RankedCover(msgspec.Struct, frozen=True, kw_only=True):
    """One of the k best covers: its cost, and how much more it costs than the best."""

    cover: tuple[CandidateId, ...]
    cost_us: float
    regret_us: float


def best_covers(search: Search, pins: Iterable[ProblemPin], k: int) -> list[RankedCover]:
    """Return the k least-cost distinct covers under the pins, the best first.

    Where the state space is too large for exact search there may be fewer: those that are proved to
    be the best ones, or only the best cover found.

    Args:
        search: A search of the problem.
        pins: The pins that hold.
        k: How many covers are wanted.
    """
    pins = list(pins)
    solver = search.solver
    if search.runtime_sets is not None:
        ranked = ranked_covers_within_limits(
            search.restricted(pins),
            search.runtime_sets,
            k,
            too_wide=solver.too_wide,
            time_limit_s=solver.time_limit_s,
        )
        return [_ranked(search, cost, cover, ranked[0][0]) for cost, cover in ranked]
    was_wide = solver.too_wide
    solution = search.find(pins, regrets=was_wide)
    has_neither = solution.labels is None and solution.program is None
    if has_neither and solver.too_wide and not was_wide:  # it has only just turned out to be
        solution = search.find(pins)
    if solution.cost is None or k < 1:
        return []
    covers = [(solution.cost, solution.cover)]
    if solution.labels is not None:
        covers = enumerate_covers(solution.labels, k)
    elif solution.program is not None:
        deadline = time.monotonic() + solver.time_limit_s
        covers = solution.program.ranked_covers(k, solution.cost, solution.cover, deadline)
    return [
        _ranked(search, cost, cover, solution.cost)
        for cost, cover in covers
        if solution.cutoff is None or cost <= solution.cutoff
    ]


def _ranked(search: Search, cost: int, cover: list[int], least: int) -> RankedCover:
    candidates = search.problem.candidates
    return RankedCover(
        cover=tuple(candidates[c].id for c in cover),
        cost_us=search.to_us(cost),
        regret_us=search.difference_us(cost, least),
    )
