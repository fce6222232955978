"""A greedy heuristic for a first cover (a diving heuristic, in the words of integer programming).

It is for graphs so large that even a narrow beam takes long. The first uncovered node decides where
to go on; of the node sets that begin there and can be applied, the one is taken that costs least
above the dual prices (:mod:`collage_engine.search.dual_prices`) of its nodes, per node. No choice
is taken back and no state is kept: the work is linear in the number of candidates. It may end in a
dead end; then there is no greedy cover.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.search.pricing import IMPOSSIBLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collage_engine.search.pricing import Prices
    from collage_engine.search.state_space import StateSpace
    from collage_engine.search.states import NodeSet
    from collage_engine.search.weights import Weights


def greedy_cover(
    space: StateSpace, weights: Weights, eligible: Sequence[Sequence[int]], price: Sequence[int]
) -> tuple[int, list[int]] | None:
    """Build a cover node set by node set.

    Args:
        space: The state space.
        weights: Costs of the candidates.
        eligible: Per node set the candidates that may be chosen.
        price: The dual price of each position, in internal units.

    Returns:
        The cost of the cover and its candidates in the order in which they run; None in a dead end.
    """
    covered = [False] * space.count
    values: dict[int, Prices] = {}
    cover: list[int] = []
    total = 0
    for first in range(space.count):
        if covered[first]:
            continue
        best = _cheapest_at(first, space, weights, eligible, price, covered, values)
        if best is None:
            return None
        chosen, nodes = best
        for member in nodes.members:
            covered[member] = True
        total += weights.cost[chosen]
        for position, mask in zip(nodes.consumed, weights.demands[chosen], strict=True):
            value = space.values[position]
            assert value is not None
            keep = 0
            for consumer in value.consumers:
                if not covered[consumer]:
                    keep |= value.node_atoms[consumer]
            paid, values[position] = values[position].pay(mask, keep)
            total += paid
        values.update(zip(nodes.produced, weights.prices[chosen], strict=True))
        cover.append(chosen)
    return (total, cover) if total < IMPOSSIBLE else None


def _cheapest_at(
    first: int,
    space: StateSpace,
    weights: Weights,
    eligible: Sequence[Sequence[int]],
    price: Sequence[int],
    covered: Sequence[bool],
    values: Mapping[int, Prices],
) -> tuple[int, NodeSet] | None:
    """Return the candidate that begins at a node and costs least above dual prices, per node."""
    best: tuple[int, int, NodeSet] | None = None
    for nodes in space.starting_at[first]:
        if not eligible[nodes.index] or any(covered[m] for m in nodes.members):
            continue
        if not all(covered[i] for i in nodes.inputs):
            continue
        worth = sum(price[m] for m in nodes.members)
        for c in eligible[nodes.index]:
            above = weights.cost[c] - worth
            for position, mask in zip(nodes.consumed, weights.demands[c], strict=True):
                above += values[position][mask]
            above = above // nodes.size
            if above < IMPOSSIBLE // space.count and (best is None or above < best[0]):
                best = above, c, nodes
    return None if best is None else (best[1], best[2])
