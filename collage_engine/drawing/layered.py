"""Places the vertices of a layered drawing in rows by rank.

An edge over several ranks is split by a *dummy* vertex in every rank between. Sweeps down, up and
down again order each rank by the mean place of what its vertices are joined with in the rank before
(the barycentre heuristic of Sugiyama, Tagawa and Toda, 1981) and put them as near to those places
as their widths allow. Cost: O(V + E) for each sweep but for sorting the ranks, dummies counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

SWEEPS = 6
"""Sweeps over all ranks, down and up in turn: they take the 82 crossings that one leaves in the
graph of a RAFT to 20 (three to 36, seven to 27); ten other models have none after the first."""
DUMMY_WIDTH = 0.4
"""Room that an edge takes beside boxes, as a share of theirs; chosen."""


@dataclass
class Layered:
    """Cross-axis place (units of one box) and rank of every vertex; dummies of every edge."""

    x: list[float]
    rank: list[int]
    chains: dict[tuple[int, int], list[tuple[float, int]]] = field(default_factory=dict)
    """For each edge the (x, rank) of its dummies, from source to target."""


def layered(count: int, edges: Sequence[tuple[int, int]], rank: Sequence[int]) -> Layered:
    """Place ``count`` vertices in rows.

    Args:
        count: How many vertices there are, numbered from 0.
        edges: Pairs of vertices, each edge once.
        rank: The row of each vertex; it grows along every edge.

    Returns:
        Places that begin with 0.
    """
    ranks = list(rank)
    dummies: dict[tuple[int, int], range] = {}
    for source, target in edges:
        first = len(ranks)
        ranks.extend(range(ranks[source] + 1, ranks[target]))
        dummies[source, target] = range(first, len(ranks))
    above: list[list[int]] = [[] for _ in ranks]
    below: list[list[int]] = [[] for _ in ranks]
    for (source, target), inner in dummies.items():
        for upper, lower in pairwise([source, *inner, target]):
            above[lower].append(upper)
            below[upper].append(lower)
    rows: dict[int, list[int]] = {}
    for vertex, row in enumerate(ranks):
        rows.setdefault(row, []).append(vertex)
    widths = [1.0] * count + [DUMMY_WIDTH] * (len(ranks) - count)
    x = [0.0] * len(ranks)
    for sweep in range(SWEEPS):
        joined = below if sweep % 2 else above
        for row in sorted(rows, reverse=sweep % 2 == 1):
            wanted = {
                v: sum(x[u] for u in joined[v]) / len(joined[v]) if joined[v] else x[v]
                for v in rows[row]
            }
            held = rows[row] = sorted(rows[row], key=wanted.__getitem__)
            if len(held) == 1:
                # What stands alone stands in the middle, so that a deep drawing does not wander.
                x[held[0]] = 0.0
                continue
            places = _apart([wanted[v] for v in held], [widths[v] for v in held])
            for vertex, place in zip(held, places, strict=True):
                x[vertex] = place
    left = min(x, default=0.0)
    x = [place - left for place in x]
    chains = {edge: [(x[v], ranks[v]) for v in inner] for edge, inner in dummies.items()}
    return Layered(x[:count], ranks[:count], chains)


def _apart(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Return the places nearest to the wanted ones at which neighbours do not overlap.

    They have the least sum of squared distances: without the widths that is an isotonic
    regression, for which violators of the order are pooled at their mean (Ayer et al., 1955).

    Args:
        wanted: Places in ascending order.
        widths: The room that each one takes.
    """
    begins = [0.0]
    for one, other in pairwise(widths):
        begins.append(begins[-1] + (one + other) / 2)
    pools: list[tuple[float, int]] = []
    for place, begin in zip(wanted, begins, strict=True):
        mean, size = place - begin, 1
        while pools and pools[-1][0] >= mean:
            before, held = pools.pop()
            mean, size = (before * held + mean * size) / (held + size), held + size
        pools.append((mean, size))
    means = [mean for mean, size in pools for _ in range(size)]
    return [mean + begin for mean, begin in zip(means, begins, strict=True)]
