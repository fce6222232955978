"""Places vertices in rows by rank, for when ``fast_sugiyama`` crashes or is too slow.

An edge over several ranks is split by a *dummy* vertex in every rank between. One sweep down orders
each rank by the mean place of what its vertices read (the barycentre heuristic of Sugiyama,
Tagawa and Toda, 1981); the ranks are centred below each other. Cost: O(V + E), dummies counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


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
    """
    ranks = list(rank)
    above: list[list[int]] = [[] for _ in range(count)]
    dummies: dict[tuple[int, int], range] = {}
    for source, target in edges:
        first = len(ranks)
        ranks.extend(range(ranks[source] + 1, ranks[target]))
        inner = dummies[source, target] = range(first, len(ranks))
        above.extend([source if v == first else v - 1] for v in inner)
        above[target].append(inner[-1] if inner else source)
    rows: dict[int, list[int]] = {}
    for vertex, row in enumerate(ranks):
        rows.setdefault(row, []).append(vertex)
    x = [0.0] * len(ranks)
    for row in sorted(rows):
        wanted = {
            v: sum(x[u] for u in above[v]) / len(above[v]) if above[v] else 0.0 for v in rows[row]
        }
        middle = (len(rows[row]) - 1) / 2
        for place, vertex in enumerate(sorted(rows[row], key=wanted.__getitem__)):
            x[vertex] = place - middle
    chains = {edge: [(x[v], ranks[v]) for v in inner] for edge, inner in dummies.items()}
    return Layered(x[:count], ranks[:count], chains)
