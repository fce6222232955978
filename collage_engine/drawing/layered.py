"""Layered placement of a graph without dependencies: the fallback of ``fast_sugiyama``.

Sugiyama's method in the usual steps. *Ranks* are given (longest path). Edges over several
ranks are split by *dummy* vertices, one a rank. *Crossings* are reduced by sweeping down and
up, ordering each rank by the barycentres of its neighbours. *Coordinates* follow Brandes and
Köpf (Fast and Simple Horizontal Coordinate Assignment, GD 2001): vertices are aligned with a
median neighbour in four ways (down/up × left/right), conflicts with inner segments (between
dummies) are resolved in favour of the segment, each alignment is compacted, and the mean of
the two middle candidates is taken. Long edges come out straight and the drawing does not
drift sideways, which plain averaging does on deep graphs.

Cost: O(V + E) a sweep, V and E including dummies.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

SWEEPS = 8


@dataclass
class Layered:
    """Cross-axis place (units of one box) and rank of every vertex; dummies of every edge."""

    x: list[float]
    rank: list[int]
    chains: dict[tuple[int, int], list[tuple[float, int]]] = field(default_factory=dict)
    """Edge → (x, rank) of its dummies, source to target."""


def layered(count: int, edges: Sequence[tuple[int, int]], rank: Sequence[int]) -> Layered:
    """Place ``count`` vertices whose ranks grow along every edge."""
    ranks = list(rank)
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    chain_vertices: dict[tuple[int, int], list[int]] = {}
    for a, b in edges:
        last = a
        inner = []
        for level in range(ranks[a] + 1, ranks[b]):
            ranks.append(level)
            above.append([last])
            below.append([])
            below[last].append(len(ranks) - 1)
            last = len(ranks) - 1
            inner.append(last)
        below[last].append(b)
        above[b].append(last)
        chain_vertices[a, b] = inner
    layers = _order(ranks, above, below)
    x = _coordinates(layers, ranks, above, below, count)
    return Layered(
        x=x[:count],
        rank=ranks[:count],
        chains={e: [(x[v], ranks[v]) for v in inner] for e, inner in chain_vertices.items()},
    )


def _order(ranks: list[int], above: list[list[int]], below: list[list[int]]) -> list[list[int]]:
    layers: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    # Depth-first order as the start: it keeps chains together, so that few sweeps suffice.
    seen = [False] * len(ranks)
    for root in sorted(range(len(ranks)), key=lambda v: ranks[v]):
        if above[root] and seen[root]:
            continue
        stack = [root]
        while stack:
            vertex = stack.pop()
            if seen[vertex]:
                continue
            seen[vertex] = True
            layers[ranks[vertex]].append(vertex)
            stack.extend(reversed(below[vertex]))
    place = [0.0] * len(ranks)
    for layer in layers:
        for at, vertex in enumerate(layer):
            place[vertex] = at
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            for vertex in layer:
                near = above[vertex] if down else below[vertex]
                if near:
                    place[vertex] = sum(place[n] for n in near) / len(near)
            layer.sort(key=place.__getitem__)
            for at, vertex in enumerate(layer):
                place[vertex] = at
    return layers


def _coordinates(
    layers: list[list[int]],
    ranks: list[int],
    above: list[list[int]],
    below: list[list[int]],
    real: int,
) -> list[float]:
    place = [0] * len(ranks)
    for layer in layers:
        for at, vertex in enumerate(layer):
            place[vertex] = at
    marked = _conflicts(layers, above, place, real)
    runs: list[list[float]] = []
    for down in (True, False):
        for left in (True, False):
            near = above if down else below
            ordered = layers if down else layers[::-1]
            runs.append(_compacted(ordered, near, place, marked, left))
    widths = [max(run) - min(run) if run else 0.0 for run in runs]
    narrow = widths.index(min(widths)) if widths else 0
    for at, run in enumerate(runs):
        # All four are laid over the narrowest one, at the side they were packed to.
        if at % 2 == 0:
            shift = min(runs[narrow], default=0.0) - min(run, default=0.0)
        else:
            shift = max(runs[narrow], default=0.0) - max(run, default=0.0)
        runs[at] = [value + shift for value in run]
    return [sum(sorted(run[v] for run in runs)[1:3]) / 2 for v in range(len(ranks))]


def _conflicts(
    layers: list[list[int]], above: list[list[int]], place: list[int], real: int
) -> set[tuple[int, int]]:
    """Segments that cross an inner segment (between two dummies): they are not aligned."""
    marked: set[tuple[int, int]] = set()
    for level in range(1, len(layers)):
        left, first = -1, 0
        layer = layers[level]
        for at, vertex in enumerate(layer):
            inner = next((u for u in above[vertex] if vertex >= real and u >= real), None)
            if inner is None and at < len(layer) - 1:
                continue
            right = place[inner] if inner is not None else len(layers[level - 1])
            for other in layer[first : at + 1]:
                for up in above[other]:
                    if (place[up] < left or place[up] > right) and not (
                        other >= real and up >= real
                    ):
                        marked.add((up, other))
            first, left = at + 1, right
    return marked


def _compacted(
    layers: list[list[int]],
    near: list[list[int]],
    place: list[int],
    marked: set[tuple[int, int]],
    left: bool,
) -> list[float]:
    total = len(place)
    root = list(range(total))
    align = list(range(total))
    for layer in layers[1:]:
        edge = -1 if left else 1 << 60
        for vertex in layer if left else reversed(layer):
            found = sorted(near[vertex], key=place.__getitem__)
            if not found:
                continue
            half = (len(found) - 1) / 2
            middle = {int(half), int(half + 0.5)}
            for at in sorted(middle, reverse=not left):
                up = found[at]
                free = align[vertex] == vertex
                fits = edge < place[up] if left else edge > place[up]
                if free and fits and (up, vertex) not in marked and (vertex, up) not in marked:
                    align[up] = vertex
                    root[vertex] = root[up]
                    align[vertex] = root[vertex]
                    edge = place[up]
    # Blocks ordered by "must be beside": the longest path of neighbours gives the packed place.
    after: list[list[int]] = [[] for _ in range(total)]
    degree = [0] * total
    for layer in layers:
        ordered = layer if left else layer[::-1]
        for one, two in itertools.pairwise(ordered):
            after[root[one]].append(root[two])
            degree[root[two]] += 1
    x = [0.0] * total
    ready = [v for v in range(total) if root[v] == v and degree[v] == 0]
    order = []
    while ready:
        block = ready.pop()
        order.append(block)
        for other in after[block]:
            x[other] = max(x[other], x[block] + 1.0)
            degree[other] -= 1
            if degree[other] == 0:
                ready.append(other)
    # Pull blocks towards what follows them, so that nothing hangs far off at the packed side.
    for block in reversed(order):
        if after[block] and x[block] == 0.0:
            x[block] = min(x[other] for other in after[block]) - 1.0
    return [x[root[v]] if left else -x[root[v]] for v in range(total)]
