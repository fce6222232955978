"""The k best distinct covers, by A* with a perfect heuristic.

Paths through the state space and covers are the same thing, one to one, and the backward labels
give the exact least cost of the rest from any state. A best-first search with that heuristic takes
no wrong turn: every state that it expands lies on one of the covers still wanted (the A* form of
Eppstein's k shortest paths).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from collage_engine.search.label_setting import apply_candidate, cover_of_path
from collage_engine.search.pricing import IMPOSSIBLE

if TYPE_CHECKING:
    from collage_engine.search.label_setting import LabelSetting, Path, Values
    from collage_engine.search.states import State


def enumerate_covers(labels: LabelSetting, k: int) -> list[tuple[int, list[int]]]:
    """Return the k least-cost covers, the best first; fewer when there are fewer.

    Args:
        labels: Finished backward labels.
        k: How many covers are wanted.

    Returns:
        Per cover its cost, and its candidates in the order in which they are applied.
    """
    space, weights = labels.space, labels.weights
    start = space.start()
    no_values: Values = ()
    # (cost of the best cover through this path, tie-breaker that prefers depth, state, values,
    # cost so far, path)
    pushed = 0
    queue: list[tuple[int, int, State, Values, int, Path | None]] = [
        (labels.cost_to_go(start, no_values), 0, start, no_values, 0, None)
    ]
    covers: list[tuple[int, list[int]]] = []
    while queue and len(covers) < k:
        _, _, state, values, cost, path = heapq.heappop(queue)
        if state.first_uncovered == space.count:
            covers.append((cost, cover_of_path(path)))
            continue
        for move in space.moves(state):
            if not labels.backward_labels[move.target.index]:
                continue
            if move.node_set is None:
                steps = [(cost, values, path)]
            else:
                steps = []
                for c in labels.eligible[move.node_set.index]:
                    price, after = apply_candidate(weights, move, c, values)
                    steps.append((cost + price, after, (path, c)))
            for total, after, longer in steps:
                forecast = total + labels.cost_to_go(move.target, after)
                if forecast < IMPOSSIBLE:
                    pushed += 1
                    heapq.heappush(queue, (forecast, -pushed, move.target, after, total, longer))
    return covers
