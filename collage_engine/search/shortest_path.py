"""The two passes over the state space: least cost, and the least cost through every candidate.

The *backward* pass keeps for every spot what can still come, as **ends**: what the rest of a cover
demands of each live value (a bit mask over its atoms), with the rest's least cost, transitions on
the live values aside. Whatever toolchains and formats the live values are in, the rest costs the
least, over the ends, of the end's cost plus its demands at the values' prices. The *forward* pass
keeps **pasts**: the prices each live value is left with, with the least cost of getting there.

Both drop what another one makes superfluous: past A makes past B superfluous when A costs no more
than B even if everything yet to come charges A the most it can above B (likewise for ends). The
same rest continues both, so no cover is lost that could be least, and neither is the least cover
through any candidate: its best past is never dropped for it, since A can apply it as well. So
each candidate's least cover is exactly

    min over pasts before it, ends after it:  past + candidate + demands at prices + end.

Transitions are mostly small against differences between candidates, so a few pasts and ends per
spot remain where plain states would be all combinations of toolchains over the live values.
Source: Dijkstra's search of TVM's collage (RFC 0062) for the states; the pair of passes is the
forward-backward scheme on a min-plus semiring, ends as in point-based value iteration.
"""

from __future__ import annotations

import time
from operator import itemgetter
from typing import TYPE_CHECKING

from collage_engine.search.pricing import IMPOSSIBLE, Prices
from collage_engine.search.spots import SpaceLimit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.search.pricing import PriceBook
    from collage_engine.search.space import Space
    from collage_engine.search.spots import Move, Spot
    from collage_engine.search.weights import Weights

Past = tuple[tuple[Prices, ...], int]
End = tuple[tuple[int, ...], int]
Trail = tuple["Trail | None", int]
"""The candidates applied so far, the last one first."""
COMPARED = 12
"""Pasts (ends) a new one is compared with: the cheapest kept ones make most superfluous."""


class Passes:
    """Ends and pasts of every spot, for one choice of allowed candidates."""

    def __init__(
        self,
        space: Space,
        weights: Weights,
        allowed: Sequence[bool],
        *,
        limit: int | None = None,
        deadline: float | None = None,
        spots: list[Spot] | None = None,
    ) -> None:
        """``limit`` bounds the work (ways on, ends, pasts), ``deadline`` is in
        :func:`time.monotonic` seconds; beyond them :class:`SpaceLimit`. ``spots``: only these,
        moves going forward in the list.
        """
        self.space = space
        self.weights = weights
        self.limit = limit
        self.work = 0
        self.offered: list[list[int]] = [
            [c for c in nodes.candidates if allowed[c] and weights.cost[c] < IMPOSSIBLE]
            for nodes in space.sets
        ]
        self.leaders = [self._leaders(offered) for offered in self.offered]
        """Per node set the cheapest of the candidates whose transitions are the same."""
        self.deadline = deadline
        self.began = time.monotonic()
        self.spots = space.explore() if spots is None else spots
        self.ends: list[list[End]] = [[] for _ in range(len(space.spots))]
        self.pasts: list[list[Past]] = [[] for _ in range(len(space.spots))]
        self.through: dict[int, int] = {}
        """Candidate to the least cost of any cover through it (absent: in no cover)."""

    def _leaders(self, offered: list[int]) -> list[int]:
        if len(offered) < 2:
            return offered
        weights = self.weights
        cheapest: dict[object, int] = {}
        for c in offered:
            alike = (weights.demands[c], weights.prices[c])
            known = cheapest.get(alike)
            if known is None or weights.cost[c] < weights.cost[known]:
                cheapest[alike] = c
        return list(cheapest.values())

    def follow(self, index: int) -> None:
        """Give a node set's candidates that are no leaders their least covers: the leader's,
        with the difference in cost."""
        offered, leaders = self.offered[index], self.leaders[index]
        if len(offered) == len(leaders):
            return
        weights, through = self.weights, self.through
        by_kind = {(weights.demands[c], weights.prices[c]): c for c in leaders}
        for c in offered:
            leader = by_kind[weights.demands[c], weights.prices[c]]
            if c != leader and leader in through:
                through[c] = through[leader] + weights.cost[c] - weights.cost[leader]

    # -- backward ----------------------------------------------------------------------------

    def backward(self) -> int | None:
        """Fill ``ends``; the least cost, None when there is no cover."""
        for done, spot in enumerate(reversed(self.spots)):
            if not done & 255:
                self.watch(done)
            if spot.first == self.space.count:
                self.ends[spot.index] = [((), 0)]
                continue
            self.end(spot)
        found = self.ends[self.space.start().index]
        return found[0][1] if found else None

    def end(self, spot: Spot) -> None:
        ends = self.ends
        best: dict[tuple[int, ...], int] = {}
        for move in self.space.moves(spot):
            later = ends[move.target.index]
            if not later:
                continue
            self.work += len(later)
            if move.set is None:
                for demands, cost in later:
                    known = best.get(demands)
                    if known is None or cost < known:
                        best[demands] = cost
                continue
            for _, demands, cost in self.before(move):
                known = best.get(demands)
                if known is None or cost < known:
                    best[demands] = cost
        if best:
            self.work += len(best)
            ends[spot.index] = self._fewer_ends(spot, best)

    def before(self, move: Move) -> list[tuple[int, tuple[int, ...], int]]:
        """Ends at the start of a move, per leader: (candidate, demands, cost)."""
        nodes = move.set
        assert nodes is not None
        offered = self.leaders[nodes.index]
        cost_of = self.weights.cost
        if not move.target.live and not move.eaten:
            return [
                (c, (), cost_of[c] + cost)
                for _, cost in self.ends[move.target.index]
                for c in offered
            ]
        found: list[tuple[int, tuple[int, ...], int]] = []
        made, eaten = move.made, move.eaten
        prices_of, demands_of = self.weights.prices, self.weights.demands
        after = [
            (later, cost, move.back((*later, 0))) for later, cost in self.ends[move.target.index]
        ]
        for c in offered:
            own = cost_of[c]
            prices = prices_of[c]
            masks = demands_of[c]
            for later, later_cost, base in after:
                cost = own + later_cost
                if made:
                    for price, slot in zip(prices, made, strict=True):
                        cost += price[later[slot]]
                    if cost >= IMPOSSIBLE:
                        continue
                demands = base
                for (slot, _), mask in zip(eaten, masks, strict=True):
                    both = demands[slot] | mask
                    if both != demands[slot]:
                        demands = (*demands[:slot], both, *demands[slot + 1 :])
                found.append((c, demands, cost))
        return found

    def _fewer_ends(self, spot: Spot, best: dict[tuple[int, ...], int]) -> list[End]:
        if len(best) == 1:
            return list(best.items())
        ordered = sorted(best.items(), key=lambda item: item[1])
        values = [self.space.values[position] for position in spot.live]
        untouched = spot.untouched
        kept: list[End] = []
        for demands, cost in ordered:
            for other, least in kept[:COMPARED]:
                slack = cost - least
                for value, one, two, fresh in zip(values, other, demands, untouched, strict=True):
                    if one != two:
                        assert value is not None
                        slack -= value.gap(one, two, fresh)
                if slack >= 0:
                    break
            else:
                kept.append((demands, cost))
        return kept

    # -- forward -----------------------------------------------------------------------------

    def forward(self) -> None:
        """Fill ``pasts``, and ``through`` from them and the ends."""
        arriving: list[dict[tuple[Prices, ...], int] | None] = [None] * len(self.space.spots)
        arriving[self.space.start().index] = {(): 0}
        for done, spot in enumerate(self.spots):
            if not done & 255:
                self.watch(len(self.spots))
            here = arriving[spot.index]
            if not here:
                continue
            arriving[spot.index] = None
            self.work += len(here)
            pasts = self.pasts[spot.index] = fewer_pasts(self.weights.book, spot, here)
            for move in self.space.moves(spot):
                target = move.target.index
                if not self.ends[target]:
                    continue
                there = arriving[target]
                if there is None:
                    there = arriving[target] = {}
                self.arrive(pasts, move, there)
                if move.set is not None:
                    self.settle(move, pasts)
        for nodes in self.space.sets:
            self.follow(nodes.index)

    def arrive(self, pasts: list[Past], move: Move, there: dict[tuple[Prices, ...], int]) -> None:
        """Lower ``there``, the costs by values at a move's target, to what these pasts allow."""
        if move.set is None:
            for values, cost in pasts:
                known = there.get(values)
                if known is None or cost < known:
                    there[values] = cost
            return
        offered = self.leaders[move.set.index]
        self.work += len(offered) * len(pasts)
        weights = self.weights
        pick, eaten = move.pick, move.eaten
        plain = not move.target.live
        for c in offered:
            own = weights.cost[c]
            made = weights.prices[c]
            bills = [
                (slot, (mask, keep))
                for (slot, keep), mask in zip(eaten, weights.demands[c], strict=True)
            ]
            for values, past in pasts:
                cost = past + own
                row = values
                for slot, bill in bills:
                    prices = values[slot]
                    paid = prices.paid.get(bill)
                    if paid is None:
                        paid = prices.pay(*bill)
                    cost += paid[0]
                    row = (*row, paid[1])
                if cost >= IMPOSSIBLE:
                    continue
                key = () if plain else pick((*row, *made))
                known = there.get(key)
                if known is None or cost < known:
                    there[key] = cost

    def settle(self, move: Move, pasts: list[Past]) -> None:
        """Lower ``through`` to the least totals of the move's candidates, pasts to ends."""
        assert move.set is not None
        through, cost_of = self.through, self.weights.cost
        cheapest = pasts[0][1]
        floor = cheapest + self.ends[move.target.index][0][1]
        for c in self.leaders[move.set.index]:
            if floor + cost_of[c] < through.get(c, IMPOSSIBLE):
                break
        else:
            return  # even without transitions this way is no better
        for c, demands, cost in self.before(move):
            least = through.get(c, IMPOSSIBLE)
            if cheapest + cost >= least:
                continue
            if not demands:
                through[c] = cheapest + cost
                continue
            for values, past in pasts:  # cheapest first
                total = past + cost
                if total >= least:
                    break
                for prices, mask in zip(values, demands, strict=True):
                    if mask:
                        total += prices[mask]
                if total < least:
                    least = total
            if least < IMPOSSIBLE:
                through[c] = least

    def forget(self) -> None:
        """Let go of the passes these started from."""

    # -- walking -----------------------------------------------------------------------------

    def rest(self, spot: Spot, values: tuple[Prices, ...]) -> int:
        """Least cost of the rest of a cover from a spot with these values; big when none."""
        least = IMPOSSIBLE
        for demands, cost in self.ends[spot.index]:
            for prices, mask in zip(values, demands, strict=True):
                if mask:
                    cost += prices[mask]
            if cost < least:
                least = cost
        return least

    def best_cover(self) -> list[int]:
        """Candidates of the least-cost cover, in the order in which they are applied."""
        spot = self.space.start()
        values: tuple[Prices, ...] = ()
        cover: list[int] = []
        while spot.first < self.space.count:
            least = IMPOSSIBLE
            chosen: tuple[Move, int | None, tuple[Prices, ...]] | None = None
            for move in self.space.moves(spot):
                if not self.ends[move.target.index]:
                    continue
                if move.set is None:
                    total = self.rest(move.target, values)
                    if total < least:
                        least, chosen = total, (move, None, values)
                    continue
                for c in self.offered[move.set.index]:
                    cost, after = step(self.weights, move, c, values)
                    if cost < least:
                        total = cost + self.rest(move.target, after)
                        if total < least:
                            least, chosen = total, (move, c, after)
            assert chosen is not None
            move, candidate, values = chosen
            if candidate is not None:
                cover.append(candidate)
            spot = move.target
        return cover

    def watch(self, done: int) -> None:
        """Stop early when the work or time, extrapolated over all spots, will exceed the limit."""
        share = max(done / max(len(self.spots), 1), 1e-9)
        if self.deadline is not None:
            now = time.monotonic()
            spent = now - self.began
            # The forward pass takes about as long again as the backward pass.
            if now > self.deadline or (
                spent > 3.0 and share < 1.0 and self.began + 1.5 * spent / share > self.deadline
            ):
                raise SpaceLimit("out of time")
        if self.limit is not None and (
            self.work > self.limit
            or (self.work > self.limit // 20 and self.work / share > 2 * self.limit)
        ):
            raise SpaceLimit(f"more than {self.limit} steps")


def fewer_pasts(book: PriceBook, spot: Spot, here: dict[tuple[Prices, ...], int]) -> list[Past]:
    """The pasts of a spot that no other makes superfluous, cheapest first."""
    if len(here) == 1:
        return list(here.items())
    ordered = sorted(here.items(), key=itemgetter(1))
    excess = book.excess
    left = spot.left
    kept: list[Past] = []
    for values, cost in ordered:
        for other, least in kept[:COMPARED]:
            slack = cost - least
            for one, two, consumers in zip(other, values, left, strict=True):
                if one is not two:
                    slack -= excess(one, two, consumers)
            if slack >= 0:
                break
        else:
            kept.append((values, cost))
    return kept


def step(
    weights: Weights, move: Move, candidate: int, values: tuple[Prices, ...]
) -> tuple[int, tuple[Prices, ...]]:
    """Cost of applying a candidate at these values, and the values after it."""
    cost = weights.cost[candidate]
    after = []
    for (slot, keep), mask in zip(move.eaten, weights.demands[candidate], strict=True):
        price, left = values[slot].pay(mask, keep)
        cost += price
        after.append(left)
    return cost, move.pick((*values, *after, *weights.prices[candidate]))


def walked(trail: Trail | None) -> list[int]:
    """The candidates of a trail, in the order in which they were applied."""
    cover: list[int] = []
    while trail is not None:
        before, candidate = trail
        cover.append(candidate)
        trail = before
    return cover[::-1]
