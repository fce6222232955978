"""Beam search where the state space is too large: a cover, and a certified bound on the best one.

Labels are expanded rank by rank (each move leads to a higher rank). A label's *forecast* is its
cost so far plus the dual prices of all that is left (:mod:`collage_engine.search.dual_prices`): no
cover through it costs less. Two things are pruned: labels whose forecast is above what the best
cover known costs (nothing is lost), and, where a rank still holds more labels than the beam is
wide, those with the highest forecasts. The least forecast ever pruned for width is a lower bound on
every cover not seen. Sweeps with growing width improve cover and bound until they meet, which
proves the cover optimal, or the work is spent: then the gap is stated.

When nothing was pruned for width, every cover up to the cut-off lies in what was visited; label
setting over the visited states then gives exact regrets up to the cut-off, and certified lower
bounds for all other candidates.
"""

from __future__ import annotations

import random
import time
from bisect import bisect
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from collage_engine.search.dual_prices import DualPrices
from collage_engine.search.greedy_cover import greedy_cover
from collage_engine.search.label_setting import (
    LabelSetting,
    Path,
    Values,
    apply_candidate,
    cover_of_path,
    undominated_forward,
)
from collage_engine.search.pricing import IMPOSSIBLE
from collage_engine.search.states import SearchLimitExceeded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.search.state_space import StateSpace
    from collage_engine.search.states import Move, State
    from collage_engine.search.weights import Weights

    Arriving = dict[Values, tuple[int, Path | None]]
    """Values to the least cost of a path that leaves them, and that path."""
    Waiting = dict[int, dict[int, tuple[State, int, Arriving]]]
    """Rank to state (by index) to the state, the dual prices left there, and its labels."""
    BeamLabel = tuple[int, State, int, Values, int, Path | None]
    """(forecast, state, dual prices left, values, cost so far, path)"""

MOST_WORK = 4_000_000
"""Steps (moves and labels) after which no wider sweep is begun. A step takes some ten microseconds,
so this is about 40 s; measured with ``python -m tests.benchmarks.bench_search --shapes wide``."""
FIRST_WIDTH, FIRST_WIDTH_LARGE, LARGE_GRAPH = 8, 2, 2000
"""Labels kept per rank in the first sweep, the same on graphs with more than ``LARGE_GRAPH`` nodes,
where even a narrow sweep takes long (chosen)."""
WIDTH_GROWTH = 4
"""Factor by which each sweep is wider than the one before (chosen)."""
DUAL_PRICES_TIME_SHARE = 0.4
"""Share of the time that computing dual prices may take (chosen)."""
POLISH_WIDTH = 64
"""Labels kept per rank while a cover is improved in neighbourhoods (chosen)."""
NEIGHBOURHOOD_NODES = (10, 16, 24)
"""Sizes of a neighbourhood in nodes, one of which is drawn for each round (chosen)."""
STATES_WITH_MOVES = 120_000
"""States beyond which moves are not kept; twice as many states are forgotten between sweeps. It
bounds memory (chosen: about a gigabyte)."""
POLISH_PATIENCE = 4
"""Rounds without improvement after which improving in neighbourhoods ends (chosen)."""
UNLIMITED = 1 << 60
"""A width or amount of work that no sweep reaches."""


class BeamResult:
    """What beam search found; amounts are internal integers."""

    def __init__(self) -> None:
        self.cost: int | None = None
        """Cost of the best cover; None when none was found."""
        self.cover: list[int] = []
        self.lower_bound = 0
        """No cover costs less."""
        self.least_through: dict[int, int] = {}
        """Candidate to the exact least cost of a cover through it."""
        self.lower_bound_through: dict[int, int] = {}
        """The other candidates: no cover through them costs less."""
        self.states = 0
        self.labels: LabelSetting | None = None
        """Labels over the states of all covers up to ``cutoff`` (None: of all covers)."""
        self.cutoff: int | None = None
        self.exhausted = False
        """Whether every cover up to ``cost`` was seen."""

    @property
    def optimal(self) -> bool:
        """Return whether the cover is proved to cost least."""
        if self.cost is None:
            return False
        return self.exhausted or self.lower_bound >= self.cost


class BeamSearch:
    """Beam search of a space under one choice of allowed candidates."""

    def __init__(
        self,
        space: StateSpace,
        weights: Weights,
        allowed: Sequence[bool],
        deadline: float | None = None,
    ) -> None:
        """Compute the dual prices.

        Args:
            space: The state space.
            weights: Costs of the candidates.
            allowed: Per candidate whether it may be chosen.
            deadline: When the whole search should end, in :func:`time.monotonic` seconds.
        """
        self.deadline = deadline
        self.space = space
        self.weights = weights
        self.allowed = allowed
        self.eligible = [
            [c for c in nodes.candidates if allowed[c] and weights.cost[c] < IMPOSSIBLE]
            for nodes in space.node_sets
        ]
        now = time.monotonic()
        self.dual = DualPrices(
            space,
            weights,
            self.eligible,
            None if deadline is None else now + DUAL_PRICES_TIME_SHARE * (deadline - now),
        )
        self.work = 0
        self.visited: list[State] = []
        self.pruned_for_width = IMPOSSIBLE
        """The least forecast that the last sweep pruned for width."""
        self.pruned_by_cutoff = False
        """Whether the last sweep pruned anything above its cut-off."""

    def solve(self, *, work: int = MOST_WORK, regrets: bool = True) -> BeamResult:
        """Sweep with growing width until the cover is optimal, or work or time are spent.

        Only when the greedy heuristic finds no cover does the first, narrow sweep ignore the
        deadline, so that there is an answer.

        Args:
            work: Steps after which no wider sweep is begun.
            regrets: Whether to compute least covers through all candidates, once the best cover is
                proved optimal.
        """
        result = BeamResult()
        deadline = self.deadline
        result.lower_bound = self.dual.suffix[0]
        greedy = greedy_cover(self.space, self.weights, self.eligible, self.dual.price)
        if greedy is not None:
            result.cost, result.cover = greedy
        width = first = FIRST_WIDTH if self.space.count <= LARGE_GRAPH else FIRST_WIDTH_LARGE
        while True:
            before = self.work
            self._forget_states_if_many()
            limit = result.cost if result.cost is not None else IMPOSSIBLE - 1
            ignore_deadline = width == first and greedy is None
            found = self._sweep(width, limit, None if ignore_deadline else deadline)
            if found is None:
                break
            self._take_over(result, found)
            if result.optimal or result.exhausted:
                break
            if result.cost is not None and width == first:
                self._polish(result, deadline, work // 2)
            if self.work + WIDTH_GROWTH * (self.work - before) > work:
                break
            width *= WIDTH_GROWTH
        result.states = self.work
        self._set_reduced_cost_bounds(result)
        if regrets and result.optimal:
            self._regrets(result, deadline)
        return result

    def _take_over(self, result: BeamResult, found: tuple[int | None, list[int]]) -> None:
        """Improve cover and bound by what a sweep has found."""
        cost, cover = found
        if cost is not None and (result.cost is None or cost < result.cost):
            result.cost, result.cover = cost, cover
        if self.pruned_for_width >= IMPOSSIBLE:
            result.exhausted = True
            if result.cost is not None:
                result.lower_bound = result.cost
            return
        top = self.pruned_for_width
        if result.cost is not None:
            top = min(top, result.cost)
        result.lower_bound = max(result.lower_bound, top)

    def _polish(self, result: BeamResult, deadline: float | None, work: int) -> None:
        """Improve the cover in neighbourhoods: their partitions are chosen anew, all others stay.

        This is large-neighbourhood search. Many neighbourhoods are open at once, as long as no two
        are open at the same time in the sweep.
        """
        rng = random.Random(0)
        everything = self.eligible
        failed = 0
        while failed < POLISH_PATIENCE and self.work < work:
            free = self._neighbourhoods(result.cover, rng, rng.choice(NEIGHBOURHOOD_NODES))
            chosen = set(result.cover)
            self.eligible = [
                eligible
                if free[nodes.first] >= 0
                and all(free[m] == free[nodes.first] for m in nodes.members)
                else [c for c in eligible if c in chosen]
                for nodes, eligible in zip(self.space.node_sets, everything, strict=True)
            ]
            assert result.cost is not None
            self._forget_states_if_many()
            found = self._sweep(POLISH_WIDTH, result.cost, deadline, work - self.work)
            self.eligible = everything
            if found is None:
                return
            if found[0] is not None and found[0] < result.cost:
                result.cost, result.cover = found
                failed = 0
            else:
                failed += 1

    def _neighbourhoods(self, cover: list[int], rng: random.Random, size: int) -> list[int]:
        """Return, per position, the number of the neighbourhood that it is in, or -1."""
        space = self.space
        owner = {m: c for c in cover for m in space.node_set_of[c].members}
        free = [-1] * space.count
        taken: list[tuple[int, int]] = []
        seeds = rng.sample(range(space.count), min(space.count, 4 * space.count // size + 8))
        for number, seed in enumerate(seeds):
            inside = self._grow_neighbourhood(owner, seed, rng, size)
            low = min(space.node_set_of[c].members[0] for c in inside)
            high = max(space.node_set_of[c].members[-1] for c in inside)
            at = bisect(taken, (low, high))
            if (at and taken[at - 1][1] >= low) or (at < len(taken) and taken[at][0] <= high):
                continue
            taken.insert(at, (low, high))
            for c in inside:
                for member in space.node_set_of[c].members:
                    free[member] = number
        return free

    def _grow_neighbourhood(
        self, owner: dict[int, int], seed: int, rng: random.Random, size: int
    ) -> set[int]:
        """Return chosen candidates around a node that together have about ``size`` nodes."""
        space = self.space
        inside = {owner[seed]}
        border = [owner[seed]]
        nodes = space.node_set_of[owner[seed]].size
        while border and nodes < size:
            members = space.node_set_of[border.pop(rng.randrange(len(border)))].members
            near = {owner[p] for m in members for p in (*space.inputs[m], *space.consumers[m])}
            for c in sorted(near - inside):
                if nodes >= size:
                    break
                inside.add(c)
                border.append(c)
                nodes += space.node_set_of[c].size
        return inside

    def _forget_states_if_many(self) -> None:
        if len(self.space.states) > 2 * STATES_WITH_MOVES:
            self.space.clear_states()
            self.dual.clear_states()

    # -- one sweep ---------------------------------------------------------------------------

    def _sweep(
        self, width: int, limit: int, deadline: float | None, work: int = UNLIMITED
    ) -> tuple[int | None, list[int]] | None:
        """Expand all ranks once.

        Args:
            width: The most labels kept per rank.
            limit: Labels with a higher forecast are pruned.
            deadline: When to give up, in :func:`time.monotonic` seconds.
            work: Steps after which to give up.

        Returns:
            The least cost up to ``limit`` found with this beam (None: none) and its cover; None
            when it was given up.
        """
        work += self.work
        space = self.space
        start = space.start()
        waiting: Waiting = {
            start.rank: {start.index: (start, self.dual.suffix[0], {(): (0, None)})}
        }
        self.visited = []
        self.pruned_for_width = IMPOSSIBLE
        self.pruned_by_cutoff = False
        check = self.work
        for rank in range(2 * space.count + 1):
            here = waiting.pop(rank, None)
            if here is None:
                continue
            if self.work > work or (deadline is not None and time.monotonic() > deadline):
                return None
            for state, _, arriving in here.values():
                if state.first_uncovered == space.count:
                    least, path = arriving[()]
                    self.visited.append(state)
                    return least, cover_of_path(path)
            for group in self._beam(here, width, limit):
                self._expand(group, limit, waiting)
                if deadline is not None and self.work > check:
                    check = self.work + 20_000
                    if time.monotonic() > deadline:
                        return None
        return None, []

    def _beam(
        self, here: dict[int, tuple[State, int, Arriving]], width: int, limit: int
    ) -> list[list[BeamLabel]]:
        """Return the labels of a rank that are kept, grouped by state."""
        labels: list[BeamLabel] = []
        for state, left, arriving in here.values():
            kept = undominated_forward(
                self.weights.book, state, {v: c for v, (c, _) in arriving.items()}
            )
            for values, cost in kept:
                forecast = cost + left + self.dual.live_bound(state, values)
                if forecast > limit:
                    self.pruned_by_cutoff = self.pruned_by_cutoff or cost < IMPOSSIBLE
                    continue
                labels.append((forecast, state, left, values, cost, arriving[values][1]))
        if len(labels) > width:
            labels.sort(key=itemgetter(0))
            self.pruned_for_width = min(self.pruned_for_width, labels[width][0])
            del labels[width:]
        grouped: dict[int, list[BeamLabel]] = {}
        for label in labels:
            grouped.setdefault(label[1].index, []).append(label)
        return list(grouped.values())

    def _expand(self, group: list[BeamLabel], limit: int, waiting: Waiting) -> None:
        """Follow all moves from the kept labels of one state."""
        state, left = group[0][1], group[0][2]
        self.visited.append(state)
        live_bound = self.dual.live_bound
        for move in self.space.moves(state):
            self.work += 1
            target = move.target
            left_after = left + self._change_of_bound(state, move)
            bucket = waiting.setdefault(target.rank, {})
            entry = bucket.get(target.index)
            there: Arriving = {} if entry is None else entry[2]
            for _, _, _, values, cost, path in group:
                if move.node_set is None:
                    known = there.get(values)
                    if known is None or cost < known[0]:
                        there[values] = (cost, path)
                    continue
                for c in self.eligible[move.node_set.index]:
                    self.work += 1
                    price, after = apply_candidate(self.weights, move, c, values)
                    total = cost + price
                    if total + left_after + live_bound(target, after) > limit:
                        self.pruned_by_cutoff = self.pruned_by_cutoff or total < IMPOSSIBLE
                        continue
                    known = there.get(after)
                    if known is None or total < known[0]:
                        there[after] = (total, (path, c))
            if entry is None and there:
                bucket[target.index] = (target, left_after, there)
        if len(self.space.states) > STATES_WITH_MOVES:
            state.moves = None

    def _change_of_bound(self, state: State, move: Move) -> int:
        """Return how the bound on what is left changes with a move."""
        dual = self.dual
        if move.node_set is None:
            return dual.reduced_cost[move.target.pending[-1]]
        index = move.node_set.index
        if len(move.target.pending) < len(state.pending):
            return -dual.of_set[index] - dual.reduced_cost[index]
        return -dual.of_set[index]

    # -- regrets -----------------------------------------------------------------------------

    def _set_reduced_cost_bounds(self, result: BeamResult) -> None:
        """Bound every candidate: a cover with it costs at least the bound plus its reduced cost."""
        base = self.dual.suffix[0]
        for nodes in self.space.node_sets:
            for c in self.eligible[nodes.index]:
                floor = base + self.dual.charge[c] - self.dual.of_set[nodes.index]
                result.lower_bound_through[c] = max(floor, result.lower_bound)

    def _regrets(self, result: BeamResult, deadline: float | None) -> None:
        """Compute exact regrets up to the largest cut-off that time and work allow."""
        assert result.cost is not None
        slack = max(result.cost // 1000, 1)
        work = 0
        while len(result.least_through) < len(result.lower_bound_through):
            limit = result.cost + slack
            before = self.work
            if self._sweep(UNLIMITED, limit, deadline, MOST_WORK) is None:
                break
            labels = LabelSetting(
                self.space,
                self.weights,
                self.allowed,
                states=sorted(self.visited, key=attrgetter("rank")),
                limit=MOST_WORK,
                deadline=deadline,
            )
            try:
                labels.run_backward()
                labels.run_forward()
            except SearchLimitExceeded:
                break
            result.labels, result.cutoff = labels, limit if self.pruned_by_cutoff else None
            if not self.pruned_by_cutoff:
                # All covers were seen: a candidate that is in none of them is in no cover.
                result.least_through = labels.least_through
                result.lower_bound_through = {}
                break
            for c, floor in result.lower_bound_through.items():
                total = labels.least_through.get(c)
                if total is not None and total <= limit:
                    result.least_through[c] = total
                result.lower_bound_through[c] = max(floor, limit)
            spent = self.work - before + labels.work
            work += spent
            if work + 6 * spent > MOST_WORK:
                break
            slack *= 4
        result.states = self.work
        for c in result.least_through:
            result.lower_bound_through.pop(c, None)
