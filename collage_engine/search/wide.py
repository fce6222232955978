"""Search where the whole state space is too large: a cover, and a proven bound on the best one.

States are visited rank by rank (each move goes to a higher rank). A state's *forecast* is what
it cost so far plus the node prices of all that is left (:mod:`potentials`): no cover through it
costs less. Two things are left out: states whose forecast is above what the best cover known
costs (nothing is lost), and, where a rank still holds more states than ``width``, those with the
highest forecasts (a beam). The least forecast ever left out for width is a lower bound on every
cover not seen. Sweeps with growing width improve cover and bound until they meet, which proves the
cover optimal, or the work is spent: then the gap is stated.

When nothing was left out for width, every cover up to the cut-off lies in what was visited; the
two passes over the visited spots then give exact regrets up to the cut-off, and proven lower
bounds for all other candidates.
"""

from __future__ import annotations

import random
import time
from bisect import bisect
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from collage_engine.search.dive import dive
from collage_engine.search.potentials import Potentials
from collage_engine.search.pricing import IMPOSSIBLE, Prices
from collage_engine.search.shortest_path import Passes, Trail, fewer_pasts, step, walked
from collage_engine.search.spots import SpaceLimit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.search.space import Space
    from collage_engine.search.spots import Move, Spot
    from collage_engine.search.weights import Weights

WORK = 4_000_000
"""Steps after which no wider sweep is begun; some ten microseconds each."""


PRICES_SHARE = 0.4
"""Part of the time that node prices may take."""
POLISH_WIDTH = 64
"""States kept per rank while a cover is improved in neighbourhoods."""
NEIGHBOURHOOD = (10, 16, 24)
"""Nodes of a neighbourhood."""
CROWD = 120_000
"""Spots beyond which their moves are not kept; twice as many are forgotten between sweeps."""
PATIENCE = 4
"""Rounds without any improvement after which a cover counts as polished."""


class WideResult:
    """What bounded search found; amounts are internal integers."""

    def __init__(self) -> None:
        self.least: int | None = None
        self.cover: list[int] = []
        self.bound = 0
        """No cover costs less."""
        self.through: dict[int, int] = {}
        """Candidates to the exact least cost of a cover through them."""
        self.floor: dict[int, int] = {}
        """For the others: no cover through them costs less."""
        self.states = 0
        self.passes: Passes | None = None
        """Passes over the spots of all covers up to ``cutoff`` (None: of all covers)."""
        self.cutoff: int | None = None
        self.exhausted = False
        """Every cover up to ``least`` was seen."""

    @property
    def optimal(self) -> bool:
        return self.least is not None and (self.exhausted or self.bound >= self.least)


class Wide:
    """Bounded search of a space under one choice of allowed candidates."""

    def __init__(
        self,
        space: Space,
        weights: Weights,
        allowed: Sequence[bool],
        deadline: float | None = None,
    ) -> None:
        """``deadline``: :func:`time.monotonic` seconds by which the whole search should end."""
        self.deadline = deadline
        self.space = space
        self.weights = weights
        self.allowed = allowed
        self.offered = [
            [c for c in nodes.candidates if allowed[c] and weights.cost[c] < IMPOSSIBLE]
            for nodes in space.sets
        ]
        now = time.monotonic()
        self.potentials = Potentials(
            space,
            weights,
            self.offered,
            None if deadline is None else now + PRICES_SHARE * (deadline - now),
        )
        self.work = 0
        self.visited: list[Spot] = []
        self.dropped = IMPOSSIBLE
        """Least forecast left out for width in the last sweep."""
        self.cut = False
        """Whether the last sweep left out anything above its cut-off."""

    def solve(self, *, work: int = WORK, regrets: bool = True) -> WideResult:
        """Sweep with growing width until optimal, or ``work`` steps or the time are spent.

        Only when a quick descent finds no cover at all does the first, narrow sweep ignore the
        deadline.
        """
        result = WideResult()
        deadline = self.deadline
        result.bound = self.potentials.suffix[0]
        quick = dive(self.space, self.weights, self.offered, self.potentials.price)
        if quick is not None:
            result.least, result.cover = quick
        width = first = 8 if self.space.count <= 2000 else 2
        while True:
            before = self.work
            self._tidy()
            limit = result.least if result.least is not None else IMPOSSIBLE - 1
            patient = width == first and quick is None
            found = self._sweep(width, limit, None if patient else deadline)
            if found is None:
                break
            least, cover = found
            if least is not None and (result.least is None or least < result.least):
                result.least, result.cover = least, cover
            if self.dropped >= IMPOSSIBLE:
                result.exhausted = True
                if result.least is not None:
                    result.bound = result.least
                break
            top = self.dropped if result.least is None else min(self.dropped, result.least)
            result.bound = max(result.bound, top)
            if result.optimal:
                break
            if result.least is not None and width == first:
                self._polish(result, deadline, work // 2)
            if self.work + 4 * (self.work - before) > work:
                break
            width *= 4
        result.states = self.work
        self._floors(result)
        if regrets and result.optimal:
            self._regrets(result, deadline)
        return result

    def _polish(self, result: WideResult, deadline: float | None, work: int) -> None:
        """Improve the cover in neighbourhoods: their partitions are chosen anew, all others stay.

        Many neighbourhoods at once, as long as no two are open at the same time in the sweep.
        """
        rng = random.Random(0)
        everything = self.offered
        failed = 0
        while failed < PATIENCE and self.work < work:
            free = self._neighbourhoods(result.cover, rng, rng.choice(NEIGHBOURHOOD))
            chosen = set(result.cover)
            self.offered = [
                offered
                if free[nodes.first] >= 0
                and all(free[m] == free[nodes.first] for m in nodes.members)
                else [c for c in offered if c in chosen]
                for nodes, offered in zip(self.space.sets, everything, strict=True)
            ]
            assert result.least is not None
            self._tidy()
            found = self._sweep(POLISH_WIDTH, result.least, deadline, work - self.work)
            self.offered = everything
            if found is None:
                return
            if found[0] is not None and found[0] < result.least:
                result.least, result.cover = found
                failed = 0
            else:
                failed += 1

    def _neighbourhoods(self, cover: list[int], rng: random.Random, size: int) -> list[int]:
        """Per position the number of the neighbourhood it is in, or -1."""
        space = self.space
        owner = {m: c for c in cover for m in space.set_of[c].members}
        free = [-1] * space.count
        taken: list[tuple[int, int]] = []
        seeds = rng.sample(range(space.count), min(space.count, 4 * space.count // size + 8))
        for number, seed in enumerate(seeds):
            inside = {owner[seed]}
            border = [owner[seed]]
            nodes = space.set_of[owner[seed]].size
            while border and nodes < size:
                members = space.set_of[border.pop(rng.randrange(len(border)))].members
                near = {owner[p] for m in members for p in (*space.inputs[m], *space.consumers[m])}
                for c in sorted(near - inside):
                    if nodes >= size:
                        break
                    inside.add(c)
                    border.append(c)
                    nodes += space.set_of[c].size
            low = min(space.set_of[c].members[0] for c in inside)
            high = max(space.set_of[c].members[-1] for c in inside)
            at = bisect(taken, (low, high))
            if (at and taken[at - 1][1] >= low) or (at < len(taken) and taken[at][0] <= high):
                continue
            taken.insert(at, (low, high))
            for c in inside:
                for member in space.set_of[c].members:
                    free[member] = number
        return free

    def _tidy(self) -> None:
        if len(self.space.spots) > 2 * CROWD:
            self.space.forget()
            self.potentials.forget()

    # -- one sweep ---------------------------------------------------------------------------

    def _sweep(
        self, width: int, limit: int, deadline: float | None, work: int = 1 << 60
    ) -> tuple[int | None, list[int]] | None:
        """Least cost up to ``limit`` found with this beam, and its cover.

        None when out of time, or after ``work`` steps.
        """
        work += self.work
        space = self.space
        start = space.start()
        waiting: dict[int, dict[int, tuple[Spot, int, dict]]] = {
            start.rank: {start.index: (start, self.potentials.suffix[0], {(): (0, None)})}
        }
        self.visited = []
        self.dropped = IMPOSSIBLE
        self.cut = False
        check = self.work
        for rank in range(2 * space.count + 1):
            here = waiting.pop(rank, None)
            if here is None:
                continue
            if self.work > work or (deadline is not None and time.monotonic() > deadline):
                return None
            states = []
            for spot, left, pasts in here.values():
                if spot.first == space.count:
                    least, trail = pasts[()]
                    self.visited.append(spot)
                    return least, walked(trail)
                kept = fewer_pasts(self.weights.book, spot, {v: c for v, (c, _) in pasts.items()})
                for values, cost in kept:
                    forecast = cost + left + self.potentials.live(spot, values)
                    if forecast > limit:
                        self.cut = self.cut or cost < IMPOSSIBLE
                        continue
                    states.append((forecast, spot, left, values, cost, pasts[values][1]))
            if len(states) > width:
                states.sort(key=itemgetter(0))
                self.dropped = min(self.dropped, states[width][0])
                del states[width:]
            grouped: dict[int, list] = {}
            for state in states:
                grouped.setdefault(state[1].index, []).append(state)
            for group in grouped.values():
                self._expand(group, limit, waiting)
                if deadline is not None and self.work > check:
                    check = self.work + 20_000
                    if time.monotonic() > deadline:
                        return None
        return None, []

    def _expand(
        self,
        group: list[tuple[int, Spot, int, tuple[Prices, ...], int, Trail | None]],
        limit: int,
        waiting: dict[int, dict[int, tuple[Spot, int, dict]]],
    ) -> None:
        """Follow all moves from the kept states of one spot."""
        spot, left = group[0][1], group[0][2]
        self.visited.append(spot)
        live = self.potentials.live
        for move in self.space.moves(spot):
            self.work += 1
            target = move.target
            after_left = left + self._change(spot, move)
            bucket = waiting.setdefault(target.rank, {})
            found = bucket.get(target.index)
            there: dict = {} if found is None else found[2]
            for _, _, _, values, cost, trail in group:
                if move.set is None:
                    known = there.get(values)
                    if known is None or cost < known[0]:
                        there[values] = (cost, trail)
                    continue
                for c in self.offered[move.set.index]:
                    self.work += 1
                    price, after = step(self.weights, move, c, values)
                    total = cost + price
                    if total + after_left + live(target, after) > limit:
                        self.cut = self.cut or total < IMPOSSIBLE
                        continue
                    known = there.get(after)
                    if known is None or total < known[0]:
                        there[after] = (total, (trail, c))
            if found is None and there:
                bucket[target.index] = (target, after_left, there)
        if len(self.space.spots) > CROWD:
            spot.moves = None

    def _change(self, spot: Spot, move: Move) -> int:
        """How the forecast of what is left changes with a move."""
        if move.set is None:
            return self.potentials.reduced[move.target.pending[-1]]
        index = move.set.index
        if len(move.target.pending) < len(spot.pending):
            return -self.potentials.of_set[index] - self.potentials.reduced[index]
        return -self.potentials.of_set[index]

    # -- regrets -----------------------------------------------------------------------------

    def _floors(self, result: WideResult) -> None:
        """A cover with a candidate costs at least the bound plus the candidate's reduced cost."""
        base = self.potentials.suffix[0]
        for nodes in self.space.sets:
            for c in self.offered[nodes.index]:
                floor = base + self.potentials.charge[c] - self.potentials.of_set[nodes.index]
                result.floor[c] = max(floor, result.bound)

    def _regrets(self, result: WideResult, deadline: float | None) -> None:
        """Exact regrets up to the largest cut-off that the time and work allow."""
        assert result.least is not None
        slack = max(result.least // 1000, 1)
        work = 0
        while len(result.through) < len(result.floor):
            limit = result.least + slack
            before = self.work
            if self._sweep(1 << 60, limit, deadline, WORK) is None:
                break
            spots = sorted(self.visited, key=attrgetter("rank"))
            passes = Passes(
                self.space,
                self.weights,
                self.allowed,
                spots=spots,
                limit=WORK,
                deadline=deadline,
            )
            try:
                passes.backward()
                passes.forward()
            except SpaceLimit:
                break
            result.passes, result.cutoff = passes, limit if self.cut else None
            if not self.cut:  # all covers were seen: who is in none of them is in no cover
                result.through = passes.through
                result.floor = {}
                break
            for c, floor in result.floor.items():
                total = passes.through.get(c)
                if total is not None and total <= limit:
                    result.through[c] = total
                result.floor[c] = max(floor, limit)
            spent = self.work - before + passes.work
            work += spent
            if work + 6 * spent > WORK:
                break
            slack *= 4
        result.states = self.work
        for c in result.through:
            result.floor.pop(c, None)
