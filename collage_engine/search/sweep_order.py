"""The order in which the search sweeps over the nodes.

Every topological order gives the same covers; the number of states grows with the number of values
that are live while it is crossed. Of a few orders the one with the lowest estimate of that number
is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

READY_NODES_COMPARED = 16
"""Ready nodes among which the greedy order chooses, the latest enabled ones (a count; chosen: it
keeps the order linear in the number of nodes, and makes it follow one branch to its end)."""
MOST_LIVE_COUNTED = 60
"""Live values above which the estimate of the states grows no further (chosen: it keeps the sum of
powers of two within the precision of a float)."""


def sweep_order(inputs: Sequence[Sequence[int]]) -> list[int]:
    """Return the places of the nodes in the best topological order found.

    Args:
        inputs: Per node the places of its producers; the given order is topological.

    >>> sweep_order([[], [], [0], [1], [2, 3]])
    [0, 2, 1, 3, 4]
    """
    count = len(inputs)
    users = _users(inputs)
    given = list(range(count))
    depth = [0] * count
    for node in given:
        depth[node] = 1 + max((depth[i] for i in inputs[node]), default=0)
    orders = [
        given,
        _post_order(inputs, users, lambda node: 0),
        _post_order(inputs, users, lambda node: -depth[node]),
        _greedy_order(inputs, users),
    ]
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


def _post_order(
    inputs: Sequence[Sequence[int]], users: list[list[int]], key: Callable[[int], int]
) -> list[int]:
    """Return the depth-first post-order from the nodes without users, inputs sorted by ``key``."""
    done = [False] * len(inputs)
    order: list[int] = []
    for root in range(len(inputs)):
        if users[root] or done[root]:
            continue
        stack = [(root, iter(sorted(inputs[root], key=key)))]
        done[root] = True
        while stack:
            node, rest = stack[-1]
            for producer in rest:
                if not done[producer]:
                    done[producer] = True
                    stack.append((producer, iter(sorted(inputs[producer], key=key))))
                    break
            else:
                order.append(node)
                stack.pop()
    return order


def _greedy_order(inputs: Sequence[Sequence[int]], users: list[list[int]]) -> list[int]:
    """Return the order that takes next the ready node that leaves the fewest values live.

    Of equal ones it takes the one that was enabled last.
    """
    waiting = [len(set(i)) for i in inputs]
    left = [len(set(u)) for u in users]
    ready = [node for node, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        best, best_key = -1, (0, 0)
        for at in range(len(ready) - 1, max(-1, len(ready) - 1 - READY_NODES_COMPARED), -1):
            node = ready[at]
            ending = sum(1 for i in set(inputs[node]) if left[i] == 1)
            key = ((1 if left[node] else 0) - ending, len(ready) - at)
            if best < 0 or key < best_key:
                best, best_key = at, key
        node = ready.pop(best)
        order.append(node)
        for producer in set(inputs[node]):
            left[producer] -= 1
        for user in set(users[node]):
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    return order
