"""The order in which the search sweeps over the nodes.

Every topological order gives the same covers; the number of states grows with the number of values
that are live while it is crossed. Of two orders the one with the lower estimate of that number is
taken.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

MOST_LIVE_COUNTED = sys.float_info.mant_dig
"""Live values above which the estimate of the states grows no further: it keeps the sum of powers
of two within the precision of a float."""


def sweep_order(inputs: Sequence[Sequence[int]]) -> list[int]:
    """Return the places of the nodes in the better of two topological orders.

    One is the given order. The other is the depth-first post-order that follows the deepest branch
    first, as Sethi and Ullman (1970) order the evaluation of expressions: on models it keeps the
    fewest values live.

    Args:
        inputs: Per node the places of its producers; the given order is topological.

    >>> sweep_order([[], [], [0], [1], [2, 3]])
    [0, 2, 1, 3, 4]
    """
    users = _users(inputs)
    orders = [list(range(len(inputs))), _deepest_first(inputs, users)]
    return min(orders, key=lambda order: _estimated_states(order, inputs, users))


def mean_states(order: list[int], inputs: Sequence[Sequence[int]]) -> float:
    """Estimate how many states there are for each node when it is swept over in this order."""
    return _estimated_states(order, inputs, _users(inputs)) / max(len(order), 1)


def _users(inputs: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the consumers of each node."""
    users: list[list[int]] = [[] for _ in inputs]
    for node, producers in enumerate(inputs):
        for producer in producers:
            users[producer].append(node)
    return users


def _estimated_states(
    order: list[int], inputs: Sequence[Sequence[int]], users: list[list[int]]
) -> float:
    """Estimate the number of states as the sum over the sweep of 2^(live values)."""
    left = [len(u) for u in users]
    live = 0
    total = 0.0
    for node in order:
        for producer in inputs[node]:
            left[producer] -= 1
            if left[producer] == 0:
                live -= 1
        if left[node]:
            live += 1
        total += 2.0 ** min(live, MOST_LIVE_COUNTED)
    return total


def _deepest_first(inputs: Sequence[Sequence[int]], users: list[list[int]]) -> list[int]:
    """Return the depth-first post-order from the nodes without users, deep inputs first."""
    depth = [0] * len(inputs)
    for node, producers in enumerate(inputs):
        depth[node] = 1 + max((depth[i] for i in producers), default=0)
    order: dict[int, None] = {}
    stack = [node for node in reversed(range(len(inputs))) if not users[node]]
    while stack:
        first = [i for i in inputs[stack[-1]] if i not in order]
        if first:
            stack.append(max(first, key=lambda i: depth[i]))
        else:
            order[stack.pop()] = None
    return [*order]
