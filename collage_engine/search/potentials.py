"""Node prices: a proven lower bound on what covering any set of nodes costs.

The least-cost cover, transitions aside, is a set-partitioning problem. Its linear relaxation has
the dual: prices y for nodes, any sign, that sum to no more than the cost over every candidate's
nodes; then covering any remaining set of nodes costs at least the sum of its prices. The prices
come from subgradient ascent (Held, Wolfe and Crowder 1974; Polyak's step), which needs numpy and
milliseconds, are made exactly feasible in integers, and raised node by node while there is slack.
Handing over and conversions cost 0 or more, so the bound holds with them too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collage_engine.search.pricing import IMPOSSIBLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.search.space import NodeSet


class Potentials:
    """Integer prices per position, feasible for the node sets on offer."""

    def __init__(self, count: int, sets: Sequence[NodeSet], least: Sequence[int]) -> None:
        """``least``: per node set the least cost of its candidates (IMPOSSIBLE: not on offer)."""
        self.sets = sets
        self.least = least
        offered = [s for s in sets if least[s.index] < IMPOSSIBLE]
        self.price: list[int] = [0] * count
        if offered:
            self.price = _ascend(count, offered, least, _feasible(count, offered, least))
        self.suffix = [0] * (count + 1)
        """Prices of all positions from one on, summed."""
        for position in range(count - 1, -1, -1):
            self.suffix[position] = self.suffix[position + 1] + self.price[position]

    def of_set(self, nodes: NodeSet) -> int:
        price = self.price
        return sum([price[m] for m in nodes.members])

    def reduced(self, nodes: NodeSet) -> int:
        """What the node set costs above its prices at least; 0 or more."""
        return self.least[nodes.index] - self.of_set(nodes)


def _feasible(count: int, offered: Sequence[NodeSet], least: Sequence[int]) -> list[int]:
    """Subgradient ascent in floating point, then shrunk until no node set is overcharged."""
    sizes = np.array([s.size for s in offered])
    members = np.fromiter((m for s in offered for m in s.members), dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    top = max(least[s.index] for s in offered)
    shift = max(0, top.bit_length() - 52)  # floats need no more than their own precision
    cost = np.array([float(least[s.index] >> shift) for s in offered])
    price = np.full(count, np.inf)
    np.minimum.at(price, members, np.repeat(cost / sizes, sizes))
    price[~np.isfinite(price)] = 0.0
    best, best_bound = price.copy(), float(price.sum())
    target = best_bound * 1.05 + 1.0
    agility, stale = 1.0, 0
    for _ in range(600):
        reduced = cost - np.add.reduceat(price[members], starts)
        taken = reduced < 0
        bound = float(price.sum() + reduced[taken].sum())
        if bound > best_bound + 1e-9 * abs(best_bound):
            best, best_bound, stale = price.copy(), bound, 0
            target = max(target, best_bound * 1.005)
        else:
            stale += 1
            if stale >= 15:
                agility, stale = agility * 0.6, 0
                price = best.copy()
                target = best_bound + (target - best_bound) * 0.6
                if agility < 1e-3:
                    break
                continue
        chosen = np.repeat(taken, sizes)
        slope = 1.0 - np.bincount(members[chosen], minlength=count)
        norm = float(slope @ slope)
        if norm == 0.0:
            break
        price = price + slope * (agility * max(target - bound, 0.0) / norm)
    floors = np.floor(best)
    return [int(v) << shift for v in floors]


def _ascend(
    count: int, offered: Sequence[NodeSet], least: Sequence[int], price: list[int]
) -> list[int]:
    """Exactly feasible integers: cut where a set is overcharged, then use up all slack."""
    slack = [0] * len(offered)
    holding: list[list[int]] = [[] for _ in range(count)]
    for nodes in offered:
        over = sum([price[m] for m in nodes.members]) - least[nodes.index]
        if over > 0:
            share = -(-over // nodes.size)
            for member in nodes.members:
                price[member] -= share
    for number, nodes in enumerate(offered):
        slack[number] = least[nodes.index] - sum([price[m] for m in nodes.members])
        for member in nodes.members:
            holding[member].append(number)
    for position in range(count):
        if holding[position]:
            spare = min([slack[number] for number in holding[position]])
            if spare:
                price[position] += spare
                for number in holding[position]:
                    slack[number] -= spare
    return price
