"""The k best distinct covers.

Paths through the state space and covers are the same thing, one to one, and the backward pass
gives the exact least cost of the rest from any state. A best-first search with that forecast
takes no wrong turn: every state it takes up lies on one of the covers still wanted (the A* form
of Eppstein's k shortest paths, with a perfect heuristic).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import msgspec

from collage_engine.search.constraints import covers_within
from collage_engine.search.pricing import IMPOSSIBLE, Prices
from collage_engine.search.problem import CandidateId
from collage_engine.search.shortest_path import Trail, step, walked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collage_engine.search.problem import ProblemPin
    from collage_engine.search.search import Search
    from collage_engine.search.shortest_path import Passes
    from collage_engine.search.spots import Spot


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """A cover, its cost, and how much more it costs than the best."""

    cover: tuple[CandidateId, ...]
    cost_us: float
    regret_us: float


def best_covers(search: Search, pins: Iterable[ProblemPin], k: int) -> list[Rival]:
    """The k least-cost distinct covers under the pins, best first.

    Where the space is too large for exact search there may be fewer: those that are proved to be
    the best ones, or only the best cover found.
    """
    pins = list(pins)
    ids = [candidate.id for candidate in search.problem.candidates]
    if search.limits is not None:
        ranked = covers_within(search, search.limits, pins, k)
        return [_rival(search, ids, cost, cover, ranked[0][0]) for cost, cover in ranked]
    found = search.find(pins, regrets=search.wide)
    if found.passes is None and search.wide:  # it has only just turned out to be too large
        found = search.find(pins)
    if found.least is None or k < 1:
        return []
    best = [(found.least, found.cover)]
    covers = best if found.passes is None else enumerate_covers(found.passes, k)
    return [
        _rival(search, ids, cost, cover, found.least)
        for cost, cover in covers
        if found.cutoff is None or cost <= found.cutoff
    ]


def _rival(
    search: Search, ids: list[CandidateId], cost: int, cover: list[int], least: int
) -> Rival:
    return Rival(
        cover=tuple(ids[c] for c in cover),
        cost_us=search.to_us(cost),
        regret_us=search.difference_us(cost, least),
    )


def enumerate_covers(passes: Passes, k: int) -> list[tuple[int, list[int]]]:
    space, weights = passes.space, passes.weights
    start = space.start()
    none: tuple[Prices, ...] = ()
    # (forecast, tie-breaker: deepest first, spot, values, cost so far, trail)
    count = 0
    queue: list[tuple[int, int, Spot, tuple[Prices, ...], int, Trail | None]] = [
        (passes.rest(start, none), 0, start, none, 0, None)
    ]
    found: list[tuple[int, list[int]]] = []
    while queue and len(found) < k:
        _, _, spot, values, cost, trail = heapq.heappop(queue)
        if spot.first == space.count:
            found.append((cost, walked(trail)))
            continue
        for move in space.moves(spot):
            if not passes.ends[move.target.index]:
                continue
            if move.set is None:
                steps = [(cost, values, trail)]
            else:
                steps = []
                for c in passes.offered[move.set.index]:
                    price, after = step(weights, move, c, values)
                    steps.append((cost + price, after, (trail, c)))
            for total, after, longer in steps:
                forecast = total + passes.rest(move.target, after)
                if forecast < IMPOSSIBLE:
                    count += 1
                    heapq.heappush(queue, (forecast, -count, move.target, after, total, longer))
    return found
