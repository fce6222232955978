"""Dual prices of nodes: a certified lower bound on what the rest of any cover costs.

Without transitions the least-cost cover is a set-partitioning problem. Its linear relaxation has
the dual: prices y for nodes, of any sign, that sum to no more than the cost over every candidate's
nodes; then covering any remaining nodes costs at least the sum of their prices.

Transitions are split between both ends of a value. What its consumers demand costs, per consuming
node, at least a share 1/K of the demand's price at the producer's prices (K consuming nodes; equal
demands are paid once and have at most K shares). For numbers a(source) and
b(demand) = min over sources (price - a), the share is at least a + b: a is charged to the producing
candidate, b to the consuming ones, and the dual prices may use both. The numbers a and y come from
subgradient ascent on the Lagrangian (Held, Wolfe and Crowder 1974; Polyak's step; the split is the
dual of the local polytope of a pairwise model, Wainwright and Jordan 2008, section 8). Whatever
they are, the bound holds; they are made exactly feasible in integers, and prices are raised while
there is slack.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from collage_engine.search.pricing import Prices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from collage_engine.search.state_space import StateSpace
    from collage_engine.search.states import NodeSet, State
    from collage_engine.search.weights import Weights

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Columns = tuple[Ints, Ints, Floats]

MOST_STEPS = 800
"""Subgradient steps at most (a count). Chosen: ``python -m tests.benchmarks.bench_search --shapes
wide`` shows the gap that is left; most ascents end earlier, when the step has become too short."""
STALE_STEPS = 15
"""Steps without improvement after which the step is shortened (chosen)."""
SHORTENED = 0.6
"""Factor by which the step, and the distance of the target, are then shortened (chosen)."""
SHORTEST = 1e-3
"""Length of a step, relative to the first one, at which the ascent ends (chosen)."""
FIRST_TARGET, LATER_TARGET = 1.05, 1.005
"""The bound that Polyak's step aims at, relative to the best one: at first, and after an
improvement (chosen)."""
FEASIBILITY_STARTS = (1.0, 1.01, 1.03, 1.06)
"""Factors by which the prices are raised before they are cut to feasible ones; the best result is
kept (chosen)."""


class DualPrices:
    """Integer dual prices of nodes, and lower bounds on what live values still cost."""

    def __init__(
        self,
        space: StateSpace,
        weights: Weights,
        eligible: Sequence[Sequence[int]],
        deadline: float | None = None,
    ) -> None:
        """Compute the prices.

        Args:
            space: The state space.
            weights: Costs of the candidates.
            eligible: Per node set the candidates that may be chosen.
            deadline: When to stop improving the prices, in :func:`time.monotonic` seconds; they
                are a lower bound all the same.
        """
        self.space = space
        self.deadline = deadline
        self.weights = weights
        self.node_sets = [nodes for nodes in space.node_sets if eligible[nodes.index]]
        self.eligible = eligible
        self.charge: dict[int, int] = {}
        """Candidate to its cost with its shares of transitions."""
        self.demand_shares: dict[tuple[int, int], int] = {}
        """(position, demanded atoms) to b."""
        self.demands: dict[tuple[int, int], set[int]] = {}
        """(position, consuming position) to the atoms that may be demanded there."""
        self.price = self._ascend() if self.node_sets else [0] * space.count
        """Per position its dual price, in internal units."""
        self.suffix = [0] * (space.count + 1)
        """Per position the sum of the prices from there to the end; the first bounds all covers."""
        for position in range(space.count - 1, -1, -1):
            self.suffix[position] = self.suffix[position + 1] + self.price[position]
        self.of_set = [0] * len(space.node_sets)
        """Per node set the sum of its members' prices."""
        self.reduced_cost = [0] * len(space.node_sets)
        """Per node set the least charge of its candidates, less its members' prices."""
        for nodes in self.node_sets:
            total = sum([self.price[m] for m in nodes.members])
            self.of_set[nodes.index] = total
            self.reduced_cost[nodes.index] = self._least_charge(nodes) - total
        self._by_state: dict[int, tuple[dict[Prices, int], ...]] = {}
        self._unconsumed: dict[tuple[int, Prices], int] = {}
        """(position, prices) to what a value costs at least that nobody has consumed yet."""

    def out_of_time(self) -> bool:
        """Tell whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def _least_charge(self, nodes: NodeSet) -> int:
        return min(self.charge[c] for c in self.eligible[nodes.index])

    def set_split(self, source_shares: dict[tuple[int, Prices], int]) -> None:
        """Fix the numbers a; b and every candidate's charge follow, in exact integers.

        Args:
            source_shares: (position, source prices) to a.
        """
        space, weights = self.space, self.weights
        sources: dict[int, list[tuple[Prices, int]]] = {}
        for (position, prices), amount in source_shares.items():
            sources.setdefault(position, []).append((prices, amount))
        for nodes in self.node_sets:
            inside = set(nodes.members)
            for c in self.eligible[nodes.index]:
                total = weights.cost[c]
                for position, prices in zip(nodes.produced, weights.prices[c], strict=True):
                    value = space.values[position]
                    assert value is not None
                    out = sum(1 for u in value.consumers if u not in inside)
                    total += source_shares[position, prices] * out // len(value.consumers)
                for position, mask in zip(nodes.consumed, weights.demands[c], strict=True):
                    value = space.values[position]
                    assert value is not None
                    taken = [u for u in value.consumers if u in inside]
                    key = (position, mask)
                    share = self.demand_shares.get(key)
                    if share is None:
                        share = self.demand_shares[key] = min(
                            (prices[mask] - amount for prices, amount in sources.get(position, ())),
                            default=0,
                        )
                    total += share * len(taken) // len(value.consumers)
                    for consumer in taken:
                        self.demands.setdefault((position, consumer), set()).add(mask)
                self.charge[c] = total

    def _ascend(self) -> list[int]:
        """Return feasible prices: of a few starts that are a little too high, the best result."""
        ascent = _SubgradientAscent(self)
        price = ascent.run()
        tries = []
        for factor in FEASIBILITY_STARTS:
            start = [int(v) << ascent.shift for v in np.floor(price * factor)]
            tries.append(self._feasible(start))
            if self.out_of_time():
                break
        return max(tries, key=sum)

    def _feasible(self, price: list[int]) -> list[int]:
        """Cut prices where a set is overcharged, then use up all slack, node by node."""
        slack = []
        holding: list[list[int]] = [[] for _ in price]
        for nodes in self.node_sets:
            over = sum([price[m] for m in nodes.members]) - self._least_charge(nodes)
            if over > 0:
                share = -(-over // nodes.size)
                for member in nodes.members:
                    price[member] -= share
        for number, nodes in enumerate(self.node_sets):
            slack.append(self._least_charge(nodes) - sum([price[m] for m in nodes.members]))
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

    def clear_states(self) -> None:
        """Forget what is remembered by state; the state space has forgotten its states."""
        self._by_state.clear()

    def live_bound(self, state: State, values: tuple[Prices, ...]) -> int:
        """Return a lower bound on what the live values cost beyond what the dual prices count."""
        known = self._by_state.get(state.index)
        if known is None:
            known = self._by_state[state.index] = tuple({} for _ in state.live)
        total = 0
        for slot, prices in enumerate(values):
            amount = known[slot].get(prices)
            if amount is None:
                amount = known[slot][prices] = self._value_bound(state, slot, prices)
            total += amount
        return total

    def _value_bound(self, state: State, slot: int, prices: Prices) -> int:
        position = state.live[slot]
        unconsumed = state.unconsumed[slot]
        if unconsumed:
            known = self._unconsumed.get((position, prices))
            if known is not None:
                return known
        value = self.space.values[position]
        assert value is not None
        total = 0
        for consumer in value.consumers:
            ahead = consumer - state.first_uncovered
            if ahead < 0 or state.covered_ahead >> ahead & 1:
                continue
            masks = self.demands.get((position, consumer), ())
            least = min((prices[m] - self.demand_shares[position, m] for m in masks), default=0)
            total += least // len(value.consumers)
        if unconsumed:
            self._unconsumed[position, prices] = total
        return total


class _SubgradientAscent:
    """Subgradient ascent in floating point, on flat arrays."""

    def __init__(self, dual: DualPrices) -> None:
        self.dual = dual
        space, weights = dual.space, dual.weights
        sets, eligible = dual.node_sets, dual.eligible
        self.count = space.count
        self.sizes: Ints = np.array([s.size for s in sets], dtype=np.int64)
        self.members = np.fromiter((m for s in sets for m in s.members), dtype=np.int64)
        self.starts = _starts(self.sizes)
        order = [c for s in sets for c in eligible[s.index]]
        self.choices: Ints = np.array([len(eligible[s.index]) for s in sets], dtype=np.int64)
        self.firsts = _starts(self.choices)
        top = max(weights.cost[c] for c in order)
        self.shift = max(0, top.bit_length() - 50)  # floats need no more than their precision
        self.cost: Floats = np.array([float(weights.cost[c] >> self.shift) for c in order])
        self.cap = float(self.cost.sum() + 1.0)
        self._set_incidence(sets, eligible, order)

    def _set_incidence(
        self, sets: Sequence[NodeSet], eligible: Sequence[Sequence[int]], order: list[int]
    ) -> None:
        """Build the flat incidence of candidates with sources (a) and demands (b) of values."""
        space, weights = self.dual.space, self.dual.weights
        self.sources: dict[tuple[int, Prices], int] = {}
        demands: dict[tuple[int, int], int] = {}
        produced: list[tuple[int, int, float]] = []
        consumed: list[tuple[int, int, float]] = []
        place = -1
        for nodes in sets:
            inside = set(nodes.members)
            shares = {}
            for position in (*nodes.produced, *nodes.consumed):
                value = space.values[position]
                assert value is not None
                held = sum(1 for u in value.consumers if u in inside)
                shares[position] = held / len(value.consumers)
            for c in eligible[nodes.index]:
                place += 1
                for position, prices in zip(nodes.produced, weights.prices[c], strict=True):
                    source = self.sources.setdefault((position, prices), len(self.sources))
                    produced.append((place, source, 1.0 - shares[position]))
                for position, mask in zip(nodes.consumed, weights.demands[c], strict=True):
                    demand = demands.setdefault((position, mask), len(demands))
                    consumed.append((place, demand, shares[position]))
        self.produced = _columns(produced)
        self.consumed = _columns(consumed)
        self.total = len(order)
        by_position: dict[int, list[tuple[int, Prices]]] = {}
        for (position, prices), source in self.sources.items():
            by_position.setdefault(position, []).append((source, prices))
        rows: list[tuple[int, float]] = []
        sizes = []
        for position, mask in demands:
            sources = by_position.get(position, [])
            sizes.append(len(sources))
            rows += [
                (source, min(self.cap, float(prices[mask] >> self.shift)))
                for source, prices in sources
            ]
        self.row_source: Ints = np.array([r[0] for r in rows], dtype=np.int64)
        self.row_price: Floats = np.array([r[1] for r in rows], dtype=np.float64)
        self.row_sizes: Ints = np.array(sizes, dtype=np.int64)
        self.row_starts = _starts(self.row_sizes) if sizes else np.zeros(0, dtype=np.int64)

    def run(self) -> Floats:
        """Fix the split and return the dual prices, in floating point without the shift."""
        price: Floats = np.full(self.count, np.inf)
        least = np.minimum.reduceat(self.cost, self.firsts)
        np.minimum.at(price, self.members, np.repeat(least / self.sizes, self.sizes))
        price[~np.isfinite(price)] = 0.0
        split: Floats = np.zeros(len(self.sources))
        best, best_bound = (price, split), float(price.sum())
        target = best_bound * FIRST_TARGET
        length, stale = 1.0, 0
        for _ in range(MOST_STEPS):
            if self.dual.out_of_time():
                break
            bound, slope, slope_split = self._subgradient(price, split)
            if bound > best_bound * (1 + 1e-7):
                best, best_bound, stale = (price, split), bound, 0
                target = max(target, best_bound * LATER_TARGET)
            else:
                stale += 1
                if stale >= STALE_STEPS:
                    length, stale = length * SHORTENED, 0
                    price, split = best
                    target = best_bound + (target - best_bound) * SHORTENED
                    if length < SHORTEST:
                        break
                    bound, slope, slope_split = self._subgradient(price, split)
            norm = float(slope @ slope + slope_split @ slope_split)
            if norm < 1e-12:
                break
            step = length * max(target - bound, 0.0) / norm
            price = price + step * slope
            split = split + step * slope_split
        price, split = best
        floors = np.floor(split)
        self.dual.set_split({key: int(floors[n]) << self.shift for key, n in self.sources.items()})
        return price

    def _subgradient(self, price: Floats, split: Floats) -> tuple[float, Floats, Floats]:
        """Return the Lagrangian bound at these prices, and a subgradient in both arguments."""
        charge = self.cost.copy()
        share_of_demand: Floats = np.zeros(0)
        left: Floats = np.zeros(0)
        if len(self.sources):
            left = self.row_price - split[self.row_source]
            share_of_demand = np.zeros(len(self.row_sizes))
            full = self.row_sizes > 0
            share_of_demand[full] = np.minimum.reduceat(left, self.row_starts[full])
            place, source, share = self.produced
            charge += np.bincount(place, share * split[source], self.total)
            place, demand, share = self.consumed
            charge += np.bincount(place, share * share_of_demand[demand], self.total)
        least = np.minimum.reduceat(charge, self.firsts)
        reduced = least - np.add.reduceat(price[self.members], self.starts)
        taken = reduced < 0
        bound = float(price.sum() + reduced[taken].sum())
        covered = np.bincount(self.members[np.repeat(taken, self.sizes)], minlength=self.count)
        slope: Floats = np.ones(self.count) - covered
        slope_split: Floats = np.zeros(len(split))
        if len(self.sources):
            # The cheapest candidate of each overcharged set; equal ones share it.
            chosen = np.repeat(taken, self.choices) & (charge <= np.repeat(least, self.choices))
            part = chosen / np.repeat(
                np.maximum(np.add.reduceat(chosen.astype(float), self.firsts), 1.0), self.choices
            )
            place, source, share = self.produced
            slope_split += np.bincount(source, share * part[place], len(split))
            place, demand, share = self.consumed
            flow = np.bincount(demand, share * part[place], len(share_of_demand))
            tight = left <= np.repeat(share_of_demand, self.row_sizes) + 1e-9
            full = self.row_sizes > 0
            equal = np.ones(len(share_of_demand))
            equal[full] = np.maximum(
                np.add.reduceat(tight.astype(float), self.row_starts[full]), 1.0
            )
            back = tight * np.repeat(flow / equal, self.row_sizes)
            slope_split -= np.bincount(self.row_source, back, len(split))
        return bound, slope, slope_split


def _starts(sizes: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)


def _columns(rows: list[tuple[int, int, float]]) -> Columns:
    return (
        np.array([r[0] for r in rows], dtype=np.int64),
        np.array([r[1] for r in rows], dtype=np.int64),
        np.array([r[2] for r in rows], dtype=float),
    )
