"""The order in which the search sweeps over the nodes.

Any topological order gives the same covers; the number of states grows with the number of values
that are live while crossing it. Of a few orders the one with the least is taken.
"""

from __future__ import annotations

from collections.abc import Sequence


def sweep_order(inputs: Sequence[Sequence[int]]) -> list[int]:
    """Places of the nodes in the best order found; ``inputs`` are places in the given order."""
    count = len(inputs)
    users: list[list[int]] = [[] for _ in range(count)]
    for node, producers in enumerate(inputs):
        for producer in producers:
            users[producer].append(node)
    given = list(range(count))
    deep = [0] * count
    for node in given:
        deep[node] = 1 + max((deep[i] for i in inputs[node]), default=0)
    orders = [
        given,
        _post_order(inputs, users, lambda node: 0),
        _post_order(inputs, users, lambda node: -deep[node]),
        _greedy(inputs, users),
    ]
    return min(orders, key=lambda order: _crowding(order, inputs, users))


def _crowding(order: list[int], inputs: Sequence[Sequence[int]], users: list[list[int]]) -> float:
    """Sum over the sweep of 2^(live values): a stand-in for the number of states."""
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
        total += 2.0 ** min(live, 60)
    return total


def _post_order(inputs: Sequence[Sequence[int]], users: list[list[int]], key: object) -> list[int]:
    """Depth-first from the nodes nobody uses, inputs by ``key``."""
    assert callable(key)
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


def _greedy(inputs: Sequence[Sequence[int]], users: list[list[int]]) -> list[int]:
    """Next the ready node that leaves the fewest values live; of equals the latest enabled."""
    waiting = [len(set(i)) for i in inputs]
    left = [len(set(u)) for u in users]
    ready = [node for node, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        best, best_key = -1, (0, 0)
        # Looking at the latest few keeps this linear and follows one branch to its end.
        for at in range(len(ready) - 1, max(-1, len(ready) - 17), -1):
            node = ready[at]
            kills = sum(1 for i in set(inputs[node]) if left[i] == 1)
            key = ((1 if left[node] else 0) - kills, len(ready) - at)
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
