"""The k best distinct covers of a problem, with their regrets.

Paths through the state space and covers are the same thing, one to one, and the backward labels
give the exact least cost of the rest from any state. A best-first search with that heuristic takes
no wrong turn: every state that it expands lies on one of the covers still wanted (the A* form of
Eppstein's k shortest paths).
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

from collage_engine.search.label_setting import enumerate_covers
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

    Where the state space is too large for exact search there is only the best cover found.

    Args:
        search: A search of the problem.
        pins: The pins that hold.
        k: How many covers are wanted.
    """
    pins, solver, sets = list(pins), search.solver, search.runtime_sets
    known: dict[frozenset[int], tuple[int, list[int]]] = {}
    cutoff = math.inf  # what costs more is not proved to be among the best
    for mask in [None] if sets is None else sets.maximal:
        excluded = () if sets is None or mask is None else sets.excluded(mask)
        solution = solver.solve(search.allowed(pins, excluded), regrets=False)
        if solution.cost is None:
            continue
        covers = [(solution.cost, solution.cover)]
        if solution.labels is not None:
            covers = enumerate_covers(solution.labels, k)
        else:
            cutoff = min(cutoff, solution.cost)
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
