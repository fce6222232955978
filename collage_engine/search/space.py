"""The state space: which sets of nodes can be covered so far, and the ways on from there.

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

A :class:`Spot` is a covered set with its stack of pending node sets. Which of several candidates
with the same nodes is meant (toolchain, formats, cost) is chosen when they are applied, so spots
and the moves between them depend on node sets only: not on costs, pins or percentiles, which
makes searching again cheap. What transitions need to know of the past (the toolchain and format
each live value is in, who has already paid for a handover or conversion) is kept per spot by the
passes (:mod:`collage_engine.search.shortest_path`).

Covered sets are written (n, ahead): all nodes before position n, not n itself, and the bit set
``ahead`` relative to n. On chain-like graphs ``ahead`` has a few bits, so everything is local and
the work is linear in the number of candidates.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from collage_engine.search.order import sweep_order
from collage_engine.search.pricing import Value
from collage_engine.search.spots import Move, NodeSet, SpaceLimit, Spot, picker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collage_engine.search.problem import Problem


class Space:
    """Nodes in sweep order, node sets of the usable candidates, and the spots found so far."""

    def __init__(self, problem: Problem, usable: Iterable[int]) -> None:
        """``usable``: indices of the candidates that may be chosen (pins aside)."""
        place = {node.id: at for at, node in enumerate(problem.nodes)}
        given = [tuple({place[i] for i in node.inputs}) for node in problem.nodes]
        self.order = sweep_order(given)
        """Position to place in the problem."""
        self.position = [0] * len(given)
        for position, at in enumerate(self.order):
            self.position[at] = position
        self.count = len(given)
        self.inputs = [tuple(sorted(self.position[i] for i in given[at])) for at in self.order]
        self.consumers: list[list[int]] = [[] for _ in given]
        for position, producers in enumerate(self.inputs):
            for producer in producers:
                self.consumers[producer].append(position)
        self.sets: list[NodeSet] = []
        self.starting: list[list[NodeSet]] = [[] for _ in given]
        self.set_of: dict[int, NodeSet] = {}
        """Candidate to its node set."""
        self._containing: list[list[NodeSet]] | None = None
        self._gather(problem, usable, [self.position[place[n.id]] for n in problem.nodes], place)
        self.values: list[Value | None] = [None] * self.count
        """Filled by :mod:`weights`; None where no transition of the value costs anything."""
        self.spots: dict[tuple, Spot] = {}
        self._links: tuple[list, list] | None = None
        self.ordered: list[Spot] | None = None
        """All spots that can be reached, in an order in which moves go forward."""

    def _gather(
        self, problem: Problem, usable: Iterable[int], where: list[int], place: dict[int, int]
    ) -> None:
        known: dict[tuple[int, ...], NodeSet] = {}
        for index in usable:
            nodes = problem.candidates[index].nodes
            members = tuple(sorted([where[place[node]] for node in nodes]))
            found = known.get(members)
            if found is None:
                inside = set(members)
                outside = {i for m in members for i in self.inputs[m] if i not in inside}
                found = NodeSet(len(self.sets), members, tuple(sorted(outside)))
                known[members] = found
                self.sets.append(found)
                self.starting[found.first].append(found)
            found.candidates.append(index)
            self.set_of[index] = found

    def containing(self, position: int) -> list[NodeSet]:
        """Node sets that hold a node."""
        if self._containing is None:
            self._containing = [[] for _ in range(self.count)]
            for nodes in self.sets:
                for member in nodes.members:
                    self._containing[member].append(nodes)
        return self._containing[position]

    def forget(self) -> None:
        """Let go of all spots; what still holds some must not be used with new ones."""
        self.spots.clear()
        self.ordered = None
        self._links = None

    # -- spots and moves ---------------------------------------------------------------------

    def start(self) -> Spot:
        return self._spot(0, 0, ())

    def is_goal(self, spot: Spot) -> bool:
        return spot.first == self.count

    def _spot(self, first: int, ahead: int, pending: tuple[int, ...]) -> Spot:
        key = (first, ahead, pending) if pending else (first, ahead)
        spot = self.spots.get(key)
        if spot is None:
            spot = self.spots[key] = Spot(len(self.spots), first, ahead, pending)
            waiting = sum(self.sets[i].size for i in pending)
            spot.rank = 2 * (first + ahead.bit_count()) + waiting
        return spot

    def _covered(self, spot: Spot, position: int) -> bool:
        if position < spot.first:
            return True
        return bool(spot.ahead >> (position - spot.first) & 1)

    def _set_live(self, spot: Spot, live: Iterable[int]) -> None:
        """Fill what the spot says of its live values (the same from wherever it is reached)."""
        spot.live = tuple(live)
        left = []
        untouched = []
        for position in spot.live:
            value = self.values[position]
            assert value is not None
            open_ = sum(1 for c in value.consumers if not self._covered(spot, c))
            left.append(open_)
            untouched.append(open_ == len(value.consumers))
        spot.left = tuple(left)
        spot.untouched = tuple(untouched)

    def moves(self, spot: Spot) -> list[Move]:
        """The ways on from a spot (found once)."""
        if spot.moves is not None:
            return spot.moves
        moves: list[Move] = []
        spot.moves = moves
        if spot.first == self.count:
            return moves
        if spot.pending:
            self._pending_moves(spot, moves)
            return moves
        ahead = spot.ahead
        for nodes in self.starting[spot.first]:
            if nodes.mask & ahead:
                continue
            if nodes.late & ~ahead:
                if self._missing(nodes, spot) is not None:
                    moves.append(self._wait(spot, nodes))
            else:
                moves.append(self._apply(spot, nodes, ()))
        return moves

    def _pending_moves(self, spot: Spot, moves: list[Move]) -> None:
        top = self.sets[spot.pending[-1]]
        missing = self._missing(top, spot)
        assert missing is not None
        if not missing:
            moves.append(self._apply(spot, top, spot.pending[:-1]))
            return
        target = spot.first + (missing & -missing).bit_length() - 1
        taken = spot.ahead
        for index in spot.pending:
            taken |= self._relative(self.sets[index], spot.first)
        for nodes in self.containing(target):
            if nodes.first < spot.first or self._relative(nodes, spot.first) & taken:
                continue
            lacks = self._missing(nodes, spot)
            if lacks is None:
                continue
            if lacks:
                moves.append(self._wait(spot, nodes))
            else:
                moves.append(self._apply(spot, nodes, spot.pending))

    def _relative(self, nodes: NodeSet, first: int) -> int:
        return nodes.mask << (nodes.first - first)

    def _missing(self, nodes: NodeSet, spot: Spot) -> int | None:
        """Uncovered nodes a set needs, relative to the spot; None when a pending one is needed."""
        first, ahead = spot.first, spot.ahead
        forbidden = 0
        for index in spot.pending:
            if index != nodes.index:
                forbidden |= self._relative(self.sets[index], first)
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

    def _wait(self, spot: Spot, nodes: NodeSet) -> Move:
        target = self._spot(spot.first, spot.ahead, (*spot.pending, nodes.index))
        if target.moves is None and not target.live:
            self._set_live(target, spot.live)
        move = Move(None, target)
        places = tuple(range(len(spot.live)))
        move.pick = move.back = picker(places)
        return move

    def _apply(self, spot: Spot, nodes: NodeSet, pending: tuple[int, ...]) -> Move:
        grown = spot.ahead | self._relative(nodes, spot.first)
        run = (~grown & (grown + 1)).bit_length() - 1
        first = spot.first + run
        ahead = grown >> run
        target = self._spot(first, ahead, pending)
        move = Move(nodes, target)
        if spot.live or nodes.makes:
            self._slots(spot, nodes, move)
        return move

    def _slots(self, spot: Spot, nodes: NodeSet, move: Move) -> None:
        """Work out where each live value comes from and goes to."""
        target = move.target
        alive = list(nodes.makes)
        eats = set(nodes.eats)
        for position in spot.live:
            value = self.values[position]
            assert value is not None
            if position not in eats or any(not self._covered(target, c) for c in value.consumers):
                alive.append(position)
        alive.sort()
        if not target.live and alive:
            self._set_live(target, alive)
        slot_here = {position: slot for slot, position in enumerate(spot.live)}
        slot_there = {position: slot for slot, position in enumerate(target.live)}
        here = len(spot.live)
        eaten = []
        source = dict(slot_here)
        for nth, position in enumerate(nodes.eats):
            value = self.values[position]
            assert value is not None
            keep = 0
            if position in slot_there:
                for consumer in value.consumers:
                    if not self._covered(target, consumer):
                        keep |= value.node_atoms[consumer]
            eaten.append((slot_here[position], keep))
            source[position] = here + nth
        for nth, position in enumerate(nodes.makes):
            source[position] = here + len(nodes.eats) + nth
        move.eaten = tuple(eaten)
        move.made = tuple(slot_there[position] for position in nodes.makes)
        move.pick = picker(tuple(source[position] for position in target.live))
        there = len(target.live)
        move.back = picker(tuple(slot_there.get(position, there) for position in spot.live))

    def links(self) -> tuple[list[list[tuple[Spot, Move]]], list[list[tuple[Spot, Move]]]]:
        """Per spot the moves that lead to it, per node set the moves that apply it, with the
        spots they start from. Of the explored space."""
        if self._links is None:
            assert self.ordered is not None
            leading: list[list[tuple[Spot, Move]]] = [[] for _ in self.spots]
            applying: list[list[tuple[Spot, Move]]] = [[] for _ in self.sets]
            for spot in self.ordered:
                for move in self.moves(spot):
                    leading[move.target.index].append((spot, move))
                    if move.set is not None:
                        applying[move.set.index].append((spot, move))
            self._links = leading, applying
        return self._links

    # -- everything --------------------------------------------------------------------------

    def explore(self, limit: int | None = None, deadline: float | None = None) -> list[Spot]:
        """Every spot that can be reached, moves going forward in the list.

        :class:`SpaceLimit` when there are, or as far as can be seen will be, more than ``limit``
        moves, or the deadline (:func:`time.monotonic` seconds) has passed.
        """
        if self.ordered is not None:
            return self.ordered
        start = self.start()
        waiting: dict[int, list[Spot]] = {start.rank: [start]}
        seen = {start.index}
        ordered: list[Spot] = []
        steps = 0
        last = 2 * self.count
        for rank in range(last + 1):
            # Moves so far over the part of the sweep that is done tell where this is going.
            if limit is not None and (
                steps > limit or (steps > limit // 20 and steps * last > 2 * limit * max(rank, 1))
            ):
                raise SpaceLimit(f"more than {limit} ways on")
            if deadline is not None and not rank & 15 and time.monotonic() > deadline:
                raise SpaceLimit("out of time")
            for spot in waiting.pop(rank, ()):
                ordered.append(spot)
                moves = self.moves(spot)
                steps += 1 + len(moves)
                for move in moves:
                    target = move.target
                    if target.index not in seen:
                        seen.add(target.index)
                        waiting.setdefault(target.rank, []).append(target)
        self.ordered = ordered
        return ordered
