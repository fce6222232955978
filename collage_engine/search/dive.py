"""A cover at once: node set after node set, each the cheapest that can be laid down next.

For graphs so large that even a narrow sweep takes long. What a candidate costs above the node
prices (:mod:`potentials`) of its nodes is held against the size of what it covers, no choice is
ever taken back, and no state is kept: the work is linear in the number of candidates. It may end
in a dead end; then there is no quick cover.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.search.pricing import IMPOSSIBLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.search.pricing import Prices
    from collage_engine.search.space import Space
    from collage_engine.search.spots import NodeSet
    from collage_engine.search.weights import Weights


def dive(
    space: Space, weights: Weights, offered: Sequence[Sequence[int]], price: Sequence[int]
) -> tuple[int, list[int]] | None:
    """Cost and candidates of a cover, in the order in which they run; None in a dead end.

    ``offered``: per node set the candidates that may be chosen. ``price``: per position.
    """
    covered = [False] * space.count
    state: dict[int, Prices] = {}
    cover: list[int] = []
    total = 0
    for first in range(space.count):
        if covered[first]:
            continue
        best: tuple[int, int, NodeSet] | None = None
        for nodes in space.starting[first]:
            if not offered[nodes.index] or any(covered[m] for m in nodes.members):
                continue
            if not all(covered[i] for i in nodes.inputs):
                continue
            worth = sum(price[m] for m in nodes.members)
            for c in offered[nodes.index]:
                above = weights.cost[c] - worth
                for position, mask in zip(nodes.eats, weights.demands[c], strict=True):
                    above += state[position][mask]
                # Bought at what its nodes must cost at least: what is paid beyond, per node.
                above = above // nodes.size
                if above < IMPOSSIBLE // space.count and (best is None or above < best[0]):
                    best = above, c, nodes
        if best is None:
            return None
        _, chosen, nodes = best
        for member in nodes.members:
            covered[member] = True
        total += weights.cost[chosen]
        for position, mask in zip(nodes.eats, weights.demands[chosen], strict=True):
            value = space.values[position]
            assert value is not None
            keep = 0
            for consumer in value.consumers:
                if not covered[consumer]:
                    keep |= value.node_atoms[consumer]
            paid, state[position] = state[position].pay(mask, keep)
            total += paid
        state.update(zip(nodes.makes, weights.prices[chosen], strict=True))
        cover.append(chosen)
    return (total, cover) if total < IMPOSSIBLE else None
