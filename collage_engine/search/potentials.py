"""Node prices: a proven lower bound on what the rest of any cover costs.

Without transitions the least-cost cover is a set-partitioning problem. Its linear relaxation has
the dual: prices y for nodes, any sign, that sum to no more than the cost over every candidate's
nodes; then covering any remaining nodes costs at least the sum of their prices.

Transitions are split between both ends of a value. What its consumers demand costs, per consuming
node, at least a share 1/K of the demand's price at the producer's prices (K consuming nodes; equal
demands are paid once and have at most K shares). For numbers a(source) and
b(demand) = min over sources (price - a), the share is at least a + b: a is charged to the producing
candidate, b to the consuming ones, and the node prices may use both. The numbers a and y come from
subgradient ascent on the Lagrangian (Held, Wolfe and Crowder 1974; Polyak's step; the split is the
dual of the local polytope of a pairwise model, Wainwright and Jordan 2008, section 8). Whatever
they are, the bound holds; they are made exactly feasible in integers, and node prices are raised
while there is slack.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from collage_engine.search.pricing import Prices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.search.space import Space
    from collage_engine.search.spots import NodeSet, Spot
    from collage_engine.search.weights import Weights

STEPS = 800
"""Subgradient steps at most."""


class Potentials:
    """Integer node prices, and what live values still cost at least."""

    def __init__(
        self,
        space: Space,
        weights: Weights,
        offered: Sequence[Sequence[int]],
        deadline: float | None = None,
    ) -> None:
        """``offered``: per node set the candidates that may be chosen. After the deadline
        (:func:`time.monotonic` seconds) the prices are improved no further; they hold all the
        same."""
        self.space = space
        self.deadline = deadline
        self.weights = weights
        self.sets = [nodes for nodes in space.sets if offered[nodes.index]]
        self.offered = offered
        self.charge: dict[int, int] = {}
        """Candidate to its cost with its shares of transitions."""
        self.gives: dict[tuple[int, Prices], int] = {}
        """(position, source prices) to a."""
        self.wants: dict[tuple[int, int], int] = {}
        """(position, demanded atoms) to b."""
        self.demands: dict[tuple[int, int], set[int]] = {}
        """(position, consuming position) to the atoms that may be demanded there."""
        self.price = self._ascend() if self.sets else [0] * space.count
        self.suffix = [0] * (space.count + 1)
        """Prices of all positions from one on, summed."""
        for position in range(space.count - 1, -1, -1):
            self.suffix[position] = self.suffix[position + 1] + self.price[position]
        self.of_set = [0] * len(space.sets)
        self.reduced = [0] * len(space.sets)
        """What a node set costs at least above its prices."""
        for nodes in self.sets:
            total = sum([self.price[m] for m in nodes.members])
            self.of_set[nodes.index] = total
            self.reduced[nodes.index] = self._least(nodes) - total
        self._spots: dict[int, tuple[dict[Prices, int], ...]] = {}
        self._whole: dict[tuple[int, Prices], int] = {}
        """(position, prices) to what a value costs that nobody has consumed yet."""

    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def _least(self, nodes: NodeSet) -> int:
        return min(self.charge[c] for c in self.offered[nodes.index])

    def set_split(self, gives: dict[tuple[int, Prices], int]) -> None:
        """Fix a; b and every candidate's charge follow, in exact integers."""
        space, weights = self.space, self.weights
        self.gives = gives
        sources: dict[int, list[tuple[Prices, int]]] = {}
        for (position, prices), amount in gives.items():
            sources.setdefault(position, []).append((prices, amount))
        for nodes in self.sets:
            inside = set(nodes.members)
            for c in self.offered[nodes.index]:
                total = weights.cost[c]
                for position, prices in zip(nodes.makes, weights.prices[c], strict=True):
                    value = space.values[position]
                    assert value is not None
                    out = sum(1 for u in value.consumers if u not in inside)
                    total += gives[position, prices] * out // len(value.consumers)
                for position, mask in zip(nodes.eats, weights.demands[c], strict=True):
                    value = space.values[position]
                    assert value is not None
                    taken = [u for u in value.consumers if u in inside]
                    key = (position, mask)
                    want = self.wants.get(key)
                    if want is None:
                        want = self.wants[key] = min(
                            (prices[mask] - amount for prices, amount in sources.get(position, ())),
                            default=0,
                        )
                    total += want * len(taken) // len(value.consumers)
                    for consumer in taken:
                        self.demands.setdefault((position, consumer), set()).add(mask)
                self.charge[c] = total

    def _ascend(self) -> list[int]:
        """Feasible prices: of a few starts a little too high, which settle where they are cut."""
        ascent = _Ascent(self)
        price = ascent.run()
        tries = []
        for more in (1.0, 1.01, 1.03, 1.06):
            start = [int(v) << ascent.shift for v in np.floor(price * more)]
            tries.append(self._feasible(start))
            if self.late():
                break
        return max(tries, key=sum)

    def _feasible(self, price: list[int]) -> list[int]:
        """Cut prices where a set is overcharged, then use up all slack, node by node."""
        slack = []
        holding: list[list[int]] = [[] for _ in price]
        for nodes in self.sets:
            over = sum([price[m] for m in nodes.members]) - self._least(nodes)
            if over > 0:
                share = -(-over // nodes.size)
                for member in nodes.members:
                    price[member] -= share
        for number, nodes in enumerate(self.sets):
            slack.append(self._least(nodes) - sum([price[m] for m in nodes.members]))
            for member in nodes.members:
                holding[member].append(number)
        for position, numbers in enumerate(holding):
            if numbers:
                spare = min([slack[number] for number in numbers])
                if spare:
                    price[position] += spare
                    for number in numbers:
                        slack[number] -= spare
        return price

    def forget(self) -> None:
        """Let go of what is remembered of spots."""
        self._spots.clear()

    def live(self, spot: Spot, values: tuple[Prices, ...]) -> int:
        """What the live values cost at least, beyond what node prices already count."""
        known = self._spots.get(spot.index)
        if known is None:
            known = self._spots[spot.index] = tuple({} for _ in spot.live)
        total = 0
        for slot, prices in enumerate(values):
            amount = known[slot].get(prices)
            if amount is None:
                amount = known[slot][prices] = self._live(spot, slot, prices)
            total += amount
        return total

    def _live(self, spot: Spot, slot: int, prices: Prices) -> int:
        position = spot.live[slot]
        untouched = spot.untouched[slot]
        if untouched:
            whole = self._whole.get((position, prices))
            if whole is not None:
                return whole
        value = self.space.values[position]
        assert value is not None
        total = 0
        for consumer in value.consumers:
            ahead = consumer - spot.first
            if ahead < 0 or spot.ahead >> ahead & 1:
                continue
            masks = self.demands.get((position, consumer), ())
            least = min((prices[m] - self.wants[position, m] for m in masks), default=0)
            total += least // len(value.consumers)
        if untouched:
            self._whole[position, prices] = total
        return total


class _Ascent:
    """Subgradient ascent in floating point, on flat arrays."""

    def __init__(self, potentials: Potentials) -> None:
        self.potentials = potentials
        space, weights = potentials.space, potentials.weights
        sets, offered = potentials.sets, potentials.offered
        self.count = space.count
        self.sizes = np.array([s.size for s in sets])
        self.members = np.fromiter((m for s in sets for m in s.members), dtype=np.int64)
        self.starts = _starts(self.sizes)
        order = [c for s in sets for c in offered[s.index]]
        choices = np.array([len(offered[s.index]) for s in sets])
        self.choices = choices
        self.firsts = _starts(choices)
        top = max(weights.cost[c] for c in order)
        self.shift = max(0, top.bit_length() - 50)  # floats need no more than their precision
        self.cost = np.array([float(weights.cost[c] >> self.shift) for c in order])
        self.cap = float(self.cost.sum() + 1.0)
        self._transitions(sets, offered, order)

    def _transitions(
        self, sets: Sequence[NodeSet], offered: Sequence[Sequence[int]], order: list[int]
    ) -> None:
        """Flat incidence of candidates with sources (a) and demands (b) of values."""
        space, weights = self.potentials.space, self.potentials.weights
        self.sources: dict[tuple[int, Prices], int] = {}
        wants: dict[tuple[int, int], int] = {}
        made: list[tuple[int, int, float]] = []
        eaten: list[tuple[int, int, float]] = []
        place = -1
        for nodes in sets:
            inside = set(nodes.members)
            shares = {}
            for position in (*nodes.makes, *nodes.eats):
                value = space.values[position]
                assert value is not None
                held = sum(1 for u in value.consumers if u in inside)
                shares[position] = held / len(value.consumers)
            for c in offered[nodes.index]:
                place += 1
                for position, prices in zip(nodes.makes, weights.prices[c], strict=True):
                    source = self.sources.setdefault((position, prices), len(self.sources))
                    made.append((place, source, 1.0 - shares[position]))
                for position, mask in zip(nodes.eats, weights.demands[c], strict=True):
                    want = wants.setdefault((position, mask), len(wants))
                    eaten.append((place, want, shares[position]))
        self.made = _columns(made)
        self.eaten = _columns(eaten)
        self.total = len(order)
        by_position: dict[int, list[tuple[int, Prices]]] = {}
        for (position, prices), source in self.sources.items():
            by_position.setdefault(position, []).append((source, prices))
        rows: list[tuple[int, float]] = []
        sizes = []
        for position, mask in wants:
            found = by_position.get(position, [])
            sizes.append(len(found))
            rows += [
                (source, min(self.cap, float(prices[mask] >> self.shift)))
                for source, prices in found
            ]
        self.row_source = np.array([r[0] for r in rows], dtype=np.int64)
        self.row_price = np.array([r[1] for r in rows])
        self.row_sizes = np.array(sizes, dtype=np.int64)
        self.row_starts = _starts(self.row_sizes) if sizes else np.zeros(0, dtype=np.int64)

    def run(self) -> np.ndarray:
        """Fix the split and return node prices, in floating point without the shift."""
        price = np.full(self.count, np.inf)
        least = np.minimum.reduceat(self.cost, self.firsts)
        np.minimum.at(price, self.members, np.repeat(least / self.sizes, self.sizes))
        price[~np.isfinite(price)] = 0.0
        split = np.zeros(len(self.sources))
        best, best_bound = (price, split), float(price.sum())
        target = best_bound * 1.05
        agility, stale = 1.0, 0
        for _ in range(STEPS):
            if self.potentials.late():
                break
            bound, slope, slope_split = self._slopes(price, split)
            if bound > best_bound * (1 + 1e-7):
                best, best_bound, stale = (price, split), bound, 0
                target = max(target, best_bound * 1.005)
            else:
                stale += 1
                if stale >= 15:
                    agility, stale = agility * 0.6, 0
                    price, split = best
                    target = best_bound + (target - best_bound) * 0.6
                    if agility < 1e-3:
                        break
                    bound, slope, slope_split = self._slopes(price, split)
            norm = float(slope @ slope + slope_split @ slope_split)
            if norm < 1e-12:
                break
            pace = agility * max(target - bound, 0.0) / norm
            price = price + pace * slope
            split = split + pace * slope_split
        price, split = best
        floors = np.floor(split)
        gives = {key: int(floors[n]) << self.shift for key, n in self.sources.items()}
        self.potentials.set_split(gives)
        self.bound = best_bound
        return price

    def _slopes(self, price: np.ndarray, split: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """The Lagrangian bound at these prices, and a subgradient."""
        charge = self.cost.copy()
        want = left = np.zeros(0)
        if len(self.sources):
            left = self.row_price - split[self.row_source]
            want = np.zeros(len(self.row_sizes))
            full = self.row_sizes > 0
            want[full] = np.minimum.reduceat(left, self.row_starts[full])
            place, source, share = self.made
            charge += np.bincount(place, share * split[source], self.total)
            place, wanted, share = self.eaten
            charge += np.bincount(place, share * want[wanted], self.total)
        least = np.minimum.reduceat(charge, self.firsts)
        reduced = least - np.add.reduceat(price[self.members], self.starts)
        taken = reduced < 0
        bound = float(price.sum() + reduced[taken].sum())
        slope = 1.0 - np.bincount(self.members[np.repeat(taken, self.sizes)], minlength=self.count)
        slope_split = np.zeros(len(split))
        if len(self.sources):
            # The cheapest candidate of each overcharged set; of equals each a part.
            chosen = np.repeat(taken, self.choices) & (charge <= np.repeat(least, self.choices))
            part = chosen / np.repeat(
                np.maximum(np.add.reduceat(chosen.astype(float), self.firsts), 1.0), self.choices
            )
            place, source, share = self.made
            slope_split += np.bincount(source, share * part[place], len(split))
            place, wanted, share = self.eaten
            flow = np.bincount(wanted, share * part[place], len(want))
            tight = left <= np.repeat(want, self.row_sizes) + 1e-9
            full = self.row_sizes > 0
            ties = np.ones(len(want))
            ties[full] = np.maximum(
                np.add.reduceat(tight.astype(float), self.row_starts[full]), 1.0
            )
            back = tight * np.repeat(flow / ties, self.row_sizes)
            slope_split -= np.bincount(self.row_source, back, len(split))
        return bound, slope, slope_split


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)


def _columns(
    rows: list[tuple[int, int, float]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        np.array([r[0] for r in rows], dtype=np.int64),
        np.array([r[1] for r in rows], dtype=np.int64),
        np.array([r[2] for r in rows], dtype=float),
    )
