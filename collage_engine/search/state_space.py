"""The state space: which sets of nodes can be covered so far, and the moves between them.

Design
------
Partitions are laid down in an order in which they can run: a candidate is *applied* once every
input it has from outside is covered. So the covered set is always closed under "is needed by",
every acyclic cover has such an order and a cyclic one has none: joint acyclicity costs nothing
and is exact, for any number of exits.

A cover has many such orders; one of them is canonical, so that paths through the space and
acyclic covers are the same thing, one to one:

* The *target* is the first uncovered node. The cover's candidate that holds it is applied if it
  can be. If it still misses inputs it becomes *pending*, and the target is now the first uncovered
  node that the pending candidate needs. That node's candidate is applied, or becomes pending on
  top, and so on; as soon as the top of the stack of pending candidates can be applied, it is.
* A candidate that needs a node of a pending one can never be applied before it: that is a cycle,
  and the branch ends there.

A :class:`State` is a covered set with its stack of pending node sets. Which of several candidates
with the same nodes is meant (toolchain, formats, cost) is chosen when they are applied, so states
and the moves between them depend on node sets only: not on costs, pins or percentiles, which makes
re-solving cheap. What transitions need to know of the path so far (the toolchain and format of each
live value, who has already paid for a transition or conversion) is kept in the labels of each state
(:mod:`collage_engine.search.label_setting`).

Covered sets are written as (n, ahead): all nodes before position n, not n itself, and the bit set
``ahead`` relative to n. On chain-like graphs ``ahead`` has a few bits, so everything is local and
the work is linear in the number of candidates.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from collage_engine.search.pricing import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from collage_engine.search.problem import Problem


MOST_LIVE_COUNTED = sys.float_info.mant_dig
"""Live values above which the estimate of the states grows no further: it keeps the sum of powers
of two within the precision of a float."""


class SearchLimitExceeded(Exception):
    """Label setting has had its time: the integer program takes over."""


@dataclass(slots=True, eq=False)
class NodeSet:
    """A set of nodes that at least one usable candidate covers."""

    index: int
    members: tuple[int, ...]
    """Positions of its nodes in the sweep, ascending."""
    inputs: tuple[int, ...]
    """Positions of the producers outside the set, ascending."""
    first: int = field(init=False)
    mask: int = field(init=False)
    """Bit set of the members, relative to ``first``."""
    candidates: list[int] = field(default_factory=list)
    consumed: tuple[int, ...] = ()
    """The inputs on which a transition can cost something."""
    produced: tuple[int, ...] = ()
    """The members whose values others consume, where a transition can cost something."""

    def __post_init__(self) -> None:
        self.first = self.members[0]
        self.mask = sum(1 << (position - self.first) for position in self.members)


def _select_nothing(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return ()


@lru_cache(maxsize=20_000)  # some megabytes; on wide graphs hardly any two moves share one
def tuple_selector(places: tuple[int, ...]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function that takes these places of a tuple, as a tuple.

    >>> tuple_selector((2, 0))(("a", "b", "c"))
    ('c', 'a')
    """
    if not places:
        return _select_nothing
    if len(places) == 1:
        position = places[0]
        return lambda values: (values[position],)
    return itemgetter(*places)


@dataclass(slots=True, eq=False)
class Move:
    """An arc of the state space: apply a node set, or (``node_set`` is None) make one pending."""

    node_set: NodeSet | None
    target: State
    consumed: tuple[tuple[int, int], ...] = ()
    """Per consumed value: its slot in the source state, and the atoms to keep (0: it dies)."""
    produced: tuple[int, ...] = ()
    """Per produced value: its slot in the target state."""
    gather_values: Callable[[tuple[Any, ...]], tuple[Any, ...]] = _select_nothing
    """Maps (values at the source, consumed values after, produced values) to the values at the
    target."""
    gather_demands: Callable[[tuple[Any, ...]], tuple[Any, ...]] = _select_nothing
    """Maps (demands at the target, 0) to the demands at the source, without those of the node set
    itself."""


@dataclass(slots=True, eq=False)
class State:
    """A set of covered nodes with a stack of pending node sets.

    All nodes before ``first_uncovered`` are covered, that one is not, and ``covered_ahead`` is the
    bit set, relative to it, of the covered nodes after it.
    """

    index: int
    first_uncovered: int
    covered_ahead: int
    pending: tuple[int, ...]
    """Indices of the pending node sets, the top of the stack last."""
    rank: int = 0
    """Every move leads to a state of higher rank."""
    live: tuple[int, ...] = ()
    """Positions of the live values on which a transition can cost something, ascending."""
    open_consumers: tuple[int, ...] = ()
    """Per live value: how many of its consumers are uncovered."""
    unconsumed: tuple[bool, ...] = ()
    """Per live value: whether none of its consumers is covered."""
    moves: list[Move] | None = None
    """The moves that start here; None until they are computed."""


StateKey = tuple[int, int, tuple[int, ...]]


class StateSpace:
    """Nodes in sweep order, node sets of the usable candidates, and the states found so far."""

    def __init__(self, problem: Problem, usable: Iterable[int]) -> None:
        """Prepare the space; states are computed when they are first needed.

        Args:
            problem: The problem; its pins and limits are ignored.
            usable: Indices of the candidates that may be chosen.
        """
        positions = {node.id: index for index, node in enumerate(problem.nodes)}
        given = [tuple({positions[i] for i in node.inputs}) for node in problem.nodes]
        self.order = sweep_order(given)
        """Position in the sweep to place in the problem."""
        self.mean_states = mean_states(self.order, given)
        """An estimate of the number of states for each node."""
        self.position = [0] * len(given)
        """Place in the problem to position in the sweep."""
        for position, index in enumerate(self.order):
            self.position[index] = position
        self.count = len(given)
        """Number of nodes."""
        self.inputs = [
            tuple(sorted(self.position[i] for i in given[index])) for index in self.order
        ]
        self.consumers: list[list[int]] = [[] for _ in given]
        for position, producers in enumerate(self.inputs):
            for producer in producers:
                self.consumers[producer].append(position)
        self.node_sets: list[NodeSet] = []
        self.starting_at: list[list[NodeSet]] = [[] for _ in given]
        """Position to the node sets whose first member it is."""
        self.node_set_of: dict[int, NodeSet] = {}
        """Candidate to its node set."""
        self.holding: list[list[NodeSet]] = [[] for _ in given]
        """Position to the node sets that hold it."""
        self._gather(problem, usable, positions)
        self.values: dict[int, Value] = {}
        """Position to the value; filled by :mod:`weights`, where a transition costs anything."""
        self.states: dict[StateKey, State] = {}
        self.ordered: list[State] | None = None
        """All states that can be reached, in an order in which moves lead forward; None until
        :meth:`explore` has found them."""

    def _gather(self, problem: Problem, usable: Iterable[int], positions: dict[int, int]) -> None:
        """Group the usable candidates by the nodes that they cover."""
        node_sets: dict[tuple[int, ...], NodeSet] = {}
        position = self.position
        for index in usable:
            nodes = problem.candidates[index].nodes
            members = tuple(sorted([position[positions[node]] for node in nodes]))
            node_set = node_sets.get(members)
            if node_set is None:
                inside = set(members)
                outside = {i for m in members for i in self.inputs[m] if i not in inside}
                node_set = NodeSet(len(self.node_sets), members, tuple(sorted(outside)))
                node_sets[members] = node_set
                self.node_sets.append(node_set)
                self.starting_at[node_set.first].append(node_set)
                for member in members:
                    self.holding[member].append(node_set)
            node_set.candidates.append(index)
            self.node_set_of[index] = node_set

    # -- states and moves --------------------------------------------------------------------

    def start(self) -> State:
        """Return the state in which nothing is covered."""
        return self._state(0, 0, ())

    def _state(self, first: int, ahead: int, pending: tuple[int, ...]) -> State:
        key = first, ahead, pending
        state = self.states.get(key)
        if state is None:
            state = self.states[key] = State(len(self.states), first, ahead, pending)
            waiting = sum(len(self.node_sets[i].members) for i in pending)
            state.rank = 2 * (first + ahead.bit_count()) + waiting
        return state

    def _covered(self, state: State, position: int) -> bool:
        if position < state.first_uncovered:
            return True
        return bool(state.covered_ahead >> (position - state.first_uncovered) & 1)

    def _set_live(self, state: State, live: Sequence[int]) -> None:
        """Store the live values of a state, which are the same on every path to it."""
        values = [self.values[position] for position in live]
        left = [sum(not self._covered(state, c) for c in value.consumers) for value in values]
        state.live, state.open_consumers = tuple(live), tuple(left)
        state.unconsumed = tuple(
            count == len(value.consumers) for count, value in zip(left, values, strict=True)
        )

    def moves(self, state: State) -> list[Move]:
        """Return the moves that start at a state; they are computed once."""
        if state.moves is not None:
            return state.moves
        moves: list[Move] = []
        state.moves = moves
        if state.first_uncovered == self.count:
            return moves
        first, pending = state.first_uncovered, state.pending
        taken, holding = state.covered_ahead, self.starting_at[first]
        if pending:
            top = self.node_sets[pending[-1]]
            missing = self._missing(top, state)
            assert missing is not None
            if not missing:
                moves.append(self._apply(state, top, pending[:-1]))
                return moves
            holding = self.holding[first + (missing & -missing).bit_length() - 1]
            for index in pending:
                taken |= self._relative_mask(self.node_sets[index], first)
        for nodes in holding:
            if nodes.first < first or self._relative_mask(nodes, first) & taken:
                continue
            missing = self._missing(nodes, state)
            if missing:
                moves.append(self._make_pending(state, nodes))
            elif missing is not None:
                moves.append(self._apply(state, nodes, pending))
        return moves

    def _relative_mask(self, nodes: NodeSet, first: int) -> int:
        return nodes.mask << (nodes.first - first)

    def _missing(self, nodes: NodeSet, state: State) -> int | None:
        """Return the uncovered nodes that a set needs, as bits relative to the state.

        None when it needs a node of a pending set, which would be a cycle.
        """
        first, ahead = state.first_uncovered, state.covered_ahead
        forbidden = 0
        for index in state.pending:
            if index != nodes.index:
                forbidden |= self._relative_mask(self.node_sets[index], first)
        missing = 0
        stack = list(nodes.inputs)
        while stack:
            position = stack.pop()
            if position < first:
                continue
            bit = 1 << (position - first)
            if ahead & bit or missing & bit:
                continue
            if forbidden & bit:
                return None
            missing |= bit
            stack.extend(self.inputs[position])
        return missing

    def _make_pending(self, state: State, nodes: NodeSet) -> Move:
        pending = (*state.pending, nodes.index)
        target = self._state(state.first_uncovered, state.covered_ahead, pending)
        if target.moves is None and not target.live:
            self._set_live(target, state.live)
        move = Move(None, target)
        places = tuple(range(len(state.live)))
        move.gather_values = move.gather_demands = tuple_selector(places)
        return move

    def _apply(self, state: State, nodes: NodeSet, pending: tuple[int, ...]) -> Move:
        grown = state.covered_ahead | self._relative_mask(nodes, state.first_uncovered)
        run = (~grown & (grown + 1)).bit_length() - 1
        target = self._state(state.first_uncovered + run, grown >> run, pending)
        move = Move(nodes, target)
        if state.live or nodes.produced:
            self._connect_values(state, nodes, move)
        return move

    def _connect_values(self, state: State, nodes: NodeSet, move: Move) -> None:
        """Compute, for a move, where each live value comes from and goes to."""
        target = move.target
        left = {
            position: [c for c in self.values[position].consumers if not self._covered(target, c)]
            for position in nodes.consumed
        }
        alive = sorted(p for p in (*nodes.produced, *state.live) if left.get(p, True))
        if not target.live and alive:
            self._set_live(target, alive)
        slot_here = {position: slot for slot, position in enumerate(state.live)}
        slot_there = {position: slot for slot, position in enumerate(target.live)}
        consumed = []
        for position, consumers in left.items():
            keep = 0
            for consumer in consumers:
                keep |= self.values[position].node_atoms[consumer]
            consumed.append((slot_here[position], keep))
        places = (*state.live, *nodes.consumed, *nodes.produced)
        source = {position: place for place, position in enumerate(places)}
        move.consumed = tuple(consumed)
        move.produced = tuple(slot_there[position] for position in nodes.produced)
        move.gather_values = tuple_selector(tuple(source[position] for position in target.live))
        there = len(target.live)
        move.gather_demands = tuple_selector(
            tuple(slot_there.get(position, there) for position in state.live)
        )

    # -- exploration -------------------------------------------------------------------------

    def explore(self, deadline: float) -> list[State]:
        """Find every state that can be reached.

        Args:
            deadline: The latest time to end, in :func:`time.monotonic` seconds.

        Returns:
            The states, in an order in which every move leads forward.

        Raises:
            SearchLimitExceeded: The deadline has passed.
        """
        if self.ordered is not None:
            return self.ordered
        start = self.start()
        waiting: dict[int, list[State]] = {start.rank: [start]}
        seen = {start.index}
        ordered: list[State] = []
        for rank in range(2 * self.count + 1):
            for state in waiting.pop(rank, ()):
                if not len(ordered) % 16 and time.monotonic() > deadline:
                    raise SearchLimitExceeded
                ordered.append(state)
                for move in self.moves(state):
                    target = move.target
                    if target.index not in seen:
                        seen.add(target.index)
                        waiting.setdefault(target.rank, []).append(target)
        self.ordered = ordered
        return ordered


def sweep_order(inputs: Sequence[Sequence[int]]) -> list[int]:
    """Return the places of the nodes in the better of two topological orders.

    Every topological order gives the same covers; the number of states grows with the number of
    values that are live while it is crossed, so the order with the lower estimate of that number is
    taken. One is the given order. The other is the depth-first post-order that follows the deepest
    branch first, as Sethi and Ullman (1970) order the evaluation of expressions: on models it keeps
    the fewest values live.

    Args:
        inputs: Per node the places of its producers; the given order is topological.

    >>> sweep_order([[], [], [0], [1], [2, 3]])
    [0, 2, 1, 3, 4]
    """
    users = _users(inputs)
    orders = [list(range(len(inputs))), _deepest_first(inputs, users)]
    return min(orders, key=lambda order: _estimated_states(order, inputs, users))


def mean_states(order: list[int], inputs: Sequence[Sequence[int]]) -> float:
    """Estimate how many states there are for each node when it is swept over in this order."""
    return _estimated_states(order, inputs, _users(inputs)) / max(len(order), 1)


def _users(inputs: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the consumers of each node."""
    users: list[list[int]] = [[] for _ in inputs]
    for node, producers in enumerate(inputs):
        for producer in producers:
            users[producer].append(node)
    return users


def _estimated_states(
    order: list[int], inputs: Sequence[Sequence[int]], users: list[list[int]]
) -> float:
    """Estimate the number of states as the sum over the sweep of 2^(live values)."""
    left = [len(u) for u in users]
    live = 0
    total = 0.0
    for node in order:
        for producer in inputs[node]:
            left[producer] -= 1
            if left[producer] == 0:
                live -= 1
        if left[node]:
            live += 1
        total += 2.0 ** min(live, MOST_LIVE_COUNTED)
    return total


def _deepest_first(inputs: Sequence[Sequence[int]], users: list[list[int]]) -> list[int]:
    """Return the depth-first post-order from the nodes without users, deep inputs first."""
    depth = [0] * len(inputs)
    for node, producers in enumerate(inputs):
        depth[node] = 1 + max((depth[i] for i in producers), default=0)
    order: dict[int, None] = {}
    stack = [node for node in reversed(range(len(inputs))) if not users[node]]
    while stack:
        first = [i for i in inputs[stack[-1]] if i not in order]
        if first:
            stack.append(max(first, key=lambda i: depth[i]))
        else:
            order[stack.pop()] = None
    return [*order]
