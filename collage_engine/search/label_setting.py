"""Exact search: forward and backward label setting over the state space, with dominance.

This is the main algorithm. It finds the least-cost cover and, for every candidate, the least cost
of any cover that contains it.

The *backward* pass computes for every state its **backward labels**: what the rest of a cover
demands of each live value (a bit mask over the value's atoms), with the least cost of such a rest,
transitions on the live values aside. Whatever toolchains and formats the live values are in, the
rest costs the minimum, over the backward labels, of the label's cost plus its demands at the
values' prices. The *forward* pass computes **forward labels**: the prices that each live value is
left with, with the least cost of a path that gets there.

Both passes drop dominated labels: label A dominates label B of the same state when A costs no more
than B even if everything yet to come charges A the most it can above B. The same rest continues
both, so no cover is lost that could be least, and neither is the least cover through any candidate:
its best forward label is never dropped for it, since A can apply it as well. So each candidate's
least cover is exactly ::

    min over forward labels before it and backward labels after it:
        forward label + candidate + demands at prices + backward label

Transitions are mostly small against the differences between candidates, so a few labels per state
remain where plain states would be all combinations of toolchains over the live values.

Sources: Dijkstra's search over covered sets is that of TVM's Collage (RFC 0062); label setting with
dominance is the standard method for shortest paths with resources (Desrochers and Soumis 1988); the
pair of passes is the forward-backward scheme on the min-plus semiring, with backward labels used as
the vectors of point-based value iteration.

A worked example. Five nodes: ``0`` feeds ``1`` and ``2``, both feed ``3``, and ``3``
feeds ``4``. Toolchain ``a`` has ``0+1`` in one partition and every node by itself; toolchain ``b``
is faster at ``2`` and has ``3+4`` in one partition. Handing a value from one toolchain to the other
costs 1 us.

>>> from collage_engine.search.problem_json import problem_from
>>> from collage_engine.search.search import Search
>>> problem = problem_from({
...     "nodes": [
...         {"id": 0}, {"id": 1, "inputs": [0]}, {"id": 2, "inputs": [0]},
...         {"id": 3, "inputs": [1, 2]}, {"id": 4, "inputs": [3]},
...     ],
...     "candidates": [
...         {"id": "a0+1", "nodes": [0, 1], "toolchain": "a", "cost_us": 5},
...         {"id": "a0", "nodes": [0], "toolchain": "a", "cost_us": 4},
...         {"id": "a1", "nodes": [1], "toolchain": "a", "cost_us": 3},
...         {"id": "a2", "nodes": [2], "toolchain": "a", "cost_us": 4},
...         {"id": "b2", "nodes": [2], "toolchain": "b", "cost_us": 2.5},
...         {"id": "a3", "nodes": [3], "toolchain": "a", "cost_us": 2},
...         {"id": "a4", "nodes": [4], "toolchain": "a", "cost_us": 3},
...         {"id": "b3+4", "nodes": [3, 4], "toolchain": "b", "cost_us": 2.5},
...     ],
...     "transitions": {"pairs": [["a", "b", 1], ["b", "a", 1]]},
... })
>>> search = Search(problem)
>>> solution = search.find(problem.pins)

The states are the covered sets that some order of partitions can reach:

>>> space = search.space
>>> def covered(state):
...     ahead = {state.first_uncovered + k for k in range(5) if state.covered_ahead >> k & 1}
...     return sorted(space.order[p] for p in {*range(state.first_uncovered), *ahead})
>>> [covered(state) for state in space.ordered]
[[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]

At [0, 1, 2] there are forward labels for what can be known of the live values 1 and 2. Value 1
comes from ``a`` in every path. Value 2 comes from ``a`` (5 + 4 = 9 us) or from ``b`` (5 + 2.5 + 1
for handing over value 0 = 8.5 us). In the worst case the latter pays another 1 us for handing value
2 back to ``a``; 9.5 us is more than 9 us, so neither label dominates the other. The paths that
begin with ``a0`` and ``a1`` have cost 4 + 3 before node 2 instead of 5; they are dominated.

>>> state = space.ordered[3]
>>> sorted(search.to_us(cost) for _, cost in solution.labels.forward_labels[state.index])
[8.5, 9.0]

The rest from there is ``a3`` and ``a4`` (2 + 3 = 5 us, demanding both values for ``a``) or ``b3+4``
(2.5 us, demanding both for ``b``). Going to ``b`` costs at most 2 us more for values of ``a``, so
the former is dominated and one backward label is left:

>>> sorted(search.to_us(cost) for _, cost in solution.labels.backward_labels[state.index])
[2.5]

The best sum is 8.5 + 2.5 + 1 for handing value 1 over to ``b`` = 12 us. With ``a2`` instead of
``b2`` the best cover is 9 + 2.5 + 2 = 13.5 us, a regret of 1.5 us:

>>> [problem.candidates[c].id for c in solution.cover], search.to_us(solution.cost)
(['a0+1', 'b2', 'b3+4'], 12.0)
>>> a2 = [c.id for c in problem.candidates].index("a2")
>>> search.difference_us(solution.least_through[a2], solution.cost)
1.5
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

from collage_engine.search.pricing import IMPOSSIBLE, Prices, Value
from collage_engine.search.state_space import SearchLimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from collage_engine.search.state_space import Move, State, StateSpace
    from collage_engine.search.weights import Weights


@dataclass
class Solution:
    """What a solve has found; amounts are internal integers."""

    cost: int | None = None
    """Cost of the best cover; None when there is none (``decided``) or none was found."""
    lower_bound: int = 0
    """No cover costs less."""
    cover: list[int] = field(default_factory=list)
    least_through: dict[int, int] = field(default_factory=dict)
    """Candidate to the exact least cost of a cover through it."""
    lower_bound_through: dict[int, int] = field(default_factory=dict)
    """The candidates whose least cover is only known to cost at least this."""
    others_in_no_cover: bool = False
    """Whether the candidates in neither of the two are proved to be in no cover."""
    states: int = 0
    """Labels kept, or nodes of the branch and bound."""
    decided: bool = True
    """Whether it is known if there is a cover at all."""
    labels: LabelSetting | None = None
    """The labels of all states."""
    ranked_covers: Callable[[int, float], list[tuple[int, list[int]]]] | None = None
    """Where the integer program proved the cover to cost least: returns that many of the best
    covers, or those that it finds until a time, each with its cost."""

    @property
    def optimal(self) -> bool:
        """Return whether the cover is proved to cost least."""
        return self.cost is not None and self.lower_bound >= self.cost


Label = TypeVar("Label", bound=Hashable)
Values = tuple[Prices, ...]
"""The prices of a state's live values, in the order of ``State.live``."""
Demands = tuple[int, ...]
"""Per live value a bit mask of the atoms that the rest of a cover demands of it."""
ForwardLabel = tuple[Values, int]
"""The live values as a path leaves them, and the least cost of such a path."""
BackwardLabel = tuple[Demands, int]
"""What a rest of a cover demands of the live values, and the least cost of such a rest."""
Path = tuple["Path | None", int]
"""The candidates applied so far as a linked list, the last one first."""
DOMINANCE_COMPARISONS = 12
"""Labels that a new one is compared with (a count), the cheapest first, which dominate most; more
comparisons cost more time than the labels that they drop. Chosen; its effect on time and states is
seen with ``bench_search`` of commit ``4a516527``."""
CHECK_EVERY = 256
"""States after which the time is checked, and labels of one state after which it is checked within
that state too (a count; chosen)."""


class LabelSetting:
    """Sets the labels of every state, for one choice of allowed candidates."""

    def __init__(
        self,
        space: StateSpace,
        weights: Weights,
        eligible: Sequence[Sequence[int]],
        deadline: float,
    ) -> None:
        """Prepare the passes.

        Args:
            space: The state space.
            weights: Costs of the candidates.
            eligible: Per node set the candidates that a cover may hold.
            deadline: The latest time to end, in :func:`time.monotonic` seconds.

        Raises:
            SearchLimitExceeded: Exploring the space takes until the deadline.
        """
        self.space = space
        self.weights = weights
        self.eligible = eligible
        self.deadline = deadline
        self.states = space.explore(deadline)
        self.backward_labels: list[list[BackwardLabel]] = [[] for _ in range(len(space.states))]
        """Per state (by index) its undominated backward labels, the cheapest first."""
        self.forward_labels: list[list[ForwardLabel]] = [[] for _ in range(len(space.states))]
        """Per state (by index) its undominated forward labels, the cheapest first."""
        self.least_through: dict[int, int] = {}
        """Candidate to the least cost of any cover through it; absent when it is in no cover."""

    # -- backward ----------------------------------------------------------------------------

    def run_backward(self) -> int | None:
        """Compute the backward labels of all states.

        Returns:
            The least cost of a cover; None when there is none.

        Raises:
            SearchLimitExceeded: The time is over.
        """
        for done, state in enumerate(reversed(self.states)):
            if not done % CHECK_EVERY:
                self.check_clock()
            if state.first_uncovered == self.space.count:
                self.backward_labels[state.index] = [((), 0)]
                continue
            self.extend_backward(state)
        at_start = self.backward_labels[self.space.start().index]
        return at_start[0][1] if at_start else None

    def extend_backward(self, state: State) -> None:
        """Compute a state's backward labels from those of the states that its moves lead to."""
        labels = self.backward_labels
        best: dict[Demands, int] = {}
        for move in self.space.moves(state):
            later = labels[move.target.index]
            if not later:
                continue
            if len(later) > CHECK_EVERY:
                self.check_clock()
            for _, demands, cost in self.labels_before(move):
                if cost < best.get(demands, IMPOSSIBLE):
                    best[demands] = cost
        values = [self.space.values[position] for position in state.live]

        def excess(one: Demands, other: Demands) -> int:
            return sum(map(Value.gap, values, one, other, state.unconsumed))

        labels[state.index] = self._undominated(best, excess)

    def labels_before(self, move: Move) -> list[tuple[int, Demands, int]]:
        """Carry the backward labels of a move's target back over the move.

        Returns:
            Per candidate of the move's node set and per label: (candidate, demands, cost). Where
            the move only makes a node set pending the candidate is -1.
        """
        nodes = move.node_set
        if nodes is None:
            return [(-1, *label) for label in self.backward_labels[move.target.index]]
        eligible = self.eligible[nodes.index]
        cost_of = self.weights.cost
        before: list[tuple[int, Demands, int]] = []
        produced, consumed = move.produced, move.consumed
        prices_of, demands_of = self.weights.prices, self.weights.demands
        after = [
            (later, cost, move.gather_demands((*later, 0)))
            for later, cost in self.backward_labels[move.target.index]
        ]
        for c in eligible:
            own = cost_of[c]
            prices = prices_of[c]
            masks = demands_of[c]
            for later, later_cost, base in after:
                cost = own + later_cost
                for price, slot in zip(prices, produced, strict=True):
                    cost += price[later[slot]]
                demands = base
                for (slot, _), mask in zip(consumed, masks, strict=True):
                    both = demands[slot] | mask
                    if both != demands[slot]:
                        demands = (*demands[:slot], both, *demands[slot + 1 :])
                before.append((c, demands, cost))
        return before

    def _undominated(
        self, best: Mapping[Label, int], excess: Callable[[Label, Label], int]
    ) -> list[tuple[Label, int]]:
        """Return the labels of a state that no other one dominates, the cheapest first.

        Args:
            best: The least cost by what a label says of the live values.
            excess: Returns the most that one label can be charged above another one.
        """
        kept: list[tuple[Label, int]] = []
        for number, (label, cost) in enumerate(sorted(best.items(), key=itemgetter(1))):
            if number % CHECK_EVERY == CHECK_EVERY - 1:
                self.check_clock()
            for other, least in kept[:DOMINANCE_COMPARISONS]:
                if excess(other, label) <= cost - least:
                    break
            else:
                kept.append((label, cost))
        return kept

    # -- forward -----------------------------------------------------------------------------

    def run_forward(self) -> None:
        """Compute the forward labels of all states, and ``least_through`` from both kinds.

        Call it after :meth:`run_backward`.

        Raises:
            SearchLimitExceeded: The time is over.
        """
        arriving: dict[int, dict[Values, int]] = {self.space.start().index: {(): 0}}
        most = self.weights.book.excess
        for done, state in enumerate(self.states):
            if not done % CHECK_EVERY:
                self.check_clock()

            def excess(one: Values, other: Values, state: State = state) -> int:
                return sum(map(most, one, other, state.open_consumers))

            labels = self._undominated(arriving.pop(state.index, {}), excess)
            if not labels:
                continue
            self.forward_labels[state.index] = labels
            for move in self.space.moves(state):
                target = move.target.index
                if not self.backward_labels[target]:
                    continue
                there = arriving.setdefault(target, {})
                if len(labels) > CHECK_EVERY:
                    self.check_clock()
                self.extend_forward(labels, move, there)
                if move.node_set is not None:
                    self.update_least_through(move, labels)

    def extend_forward(
        self, labels: list[ForwardLabel], move: Move, there: dict[Values, int]
    ) -> None:
        """Carry forward labels over a move.

        Args:
            labels: The forward labels of the state that the move starts from.
            move: The move.
            there: Costs by values at the move's target, which are lowered where possible.
        """
        if move.node_set is None:
            for values, cost in labels:
                there[values] = min(cost, there.get(values, cost))
            return
        eligible = self.eligible[move.node_set.index]
        weights = self.weights
        gather, consumed = move.gather_values, move.consumed
        no_values = not move.target.live
        for c in eligible:
            own = weights.cost[c]
            produced = weights.prices[c]
            bills = [
                (slot, (mask, keep))
                for (slot, keep), mask in zip(consumed, weights.demands[c], strict=True)
            ]
            for values, path_cost in labels:
                cost = path_cost + own
                row = values
                for slot, bill in bills:
                    prices = values[slot]
                    paid = prices.paid.get(bill)
                    if paid is None:
                        paid = prices.pay(*bill)
                    cost += paid[0]
                    row = (*row, paid[1])
                key = () if no_values else gather((*row, *produced))
                if cost < there.get(key, IMPOSSIBLE):
                    there[key] = cost

    def update_least_through(self, move: Move, labels: list[ForwardLabel]) -> None:
        """Lower ``least_through`` of a move's candidates to the best sums over this move."""
        assert move.node_set is not None
        through, cost_of = self.least_through, self.weights.cost
        cheapest = labels[0][1]
        floor = cheapest + self.backward_labels[move.target.index][0][1]
        for c in self.eligible[move.node_set.index]:
            if floor + cost_of[c] < through.get(c, IMPOSSIBLE):
                break
        else:
            return  # even without transitions no cover over this move is better
        for c, demands, cost in self.labels_before(move):
            least = through.get(c, IMPOSSIBLE)
            if cheapest + cost >= least:
                continue
            if not demands:
                through[c] = cheapest + cost
                continue
            for values, path_cost in labels:  # the cheapest first
                total = path_cost + cost
                if total >= least:
                    break
                for prices, mask in zip(values, demands, strict=True):
                    if mask:
                        total += prices[mask]
                if total < least:
                    least = total
            if least < IMPOSSIBLE:
                through[c] = least

    # -- covers ------------------------------------------------------------------------------

    def cost_to_go(self, state: State, values: Values) -> int:
        """Return the least cost of the rest of a cover; ``IMPOSSIBLE`` when there is none.

        Args:
            state: The state that the rest begins at.
            values: The prices of its live values.
        """
        least = IMPOSSIBLE
        for demands, cost in self.backward_labels[state.index]:
            for prices, mask in zip(values, demands, strict=True):
                if mask:
                    cost += prices[mask]
            if cost < least:
                least = cost
        return least

    def check_clock(self) -> None:
        """Stop where the deadline has passed: a single state can have very many labels.

        Raises:
            SearchLimitExceeded: It has.
        """
        if time.monotonic() > self.deadline:
            raise SearchLimitExceeded


def apply_candidate(
    weights: Weights, move: Move, candidate: int, values: Values
) -> tuple[int, Values]:
    """Apply a candidate of a move's node set to the live values.

    Returns:
        The cost, transitions included, and the live values at the move's target.
    """
    cost = weights.cost[candidate]
    after = []
    for (slot, keep), mask in zip(move.consumed, weights.demands[candidate], strict=True):
        price, left = values[slot].pay(mask, keep)
        cost += price
        after.append(left)
    return cost, move.gather_values((*values, *after, *weights.prices[candidate]))


def cover_of_path(path: Path | None) -> list[int]:
    """Return the candidates of a path, in the order in which they were applied."""
    cover: list[int] = []
    while path is not None:
        before, candidate = path
        cover.append(candidate)
        path = before
    return cover[::-1]


def enumerate_covers(labels: LabelSetting, k: int) -> list[tuple[int, list[int]]]:
    """Return the k least-cost covers, the best first; fewer when there are fewer.

    Of covers of one cost that comes first whose candidates come first.

    Args:
        labels: Finished backward labels.
        k: How many covers are wanted.

    Returns:
        Per cover its cost, and its candidates in the order in which they are applied.
    """
    space, weights = labels.space, labels.weights
    start = space.start()
    no_values: Values = ()
    # (cost of the best cover through this path, less its moves: of equal ones the longest comes
    # first, then the earliest, number of the entry, state, values, cost so far, path)
    numbers = count()
    queue: list[tuple[int, int, int, State, Values, int, Path | None]] = [
        (labels.cost_to_go(start, no_values), 0, next(numbers), start, no_values, 0, None)
    ]
    covers: list[tuple[int, list[int]]] = []
    while queue and len(covers) < k:
        _, depth, _, state, values, cost, path = heapq.heappop(queue)
        if state.first_uncovered == space.count:
            covers.append((cost, cover_of_path(path)))
            continue
        for move in space.moves(state):
            if not labels.backward_labels[move.target.index]:
                continue
            if move.node_set is None:
                steps = [(cost, values, path)]
            else:
                steps = []
                for c in labels.eligible[move.node_set.index]:
                    price, after = apply_candidate(weights, move, c, values)
                    steps.append((cost + price, after, (path, c)))
            for total, after, longer in steps:
                forecast = total + labels.cost_to_go(move.target, after)
                if forecast < IMPOSSIBLE:
                    entry = (forecast, depth - 1, next(numbers))
                    heapq.heappush(queue, (*entry, move.target, after, total, longer))
    return covers
