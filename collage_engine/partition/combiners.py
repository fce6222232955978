"""Joins candidates until nothing new follows (RFC 0062, "CombinePartitionRule").

Upstream pairs all candidates in rounds and skips pairs it believes to have tried, too many of
them. Here each new candidate meets, once, exactly the ones at its border: they are indexed by the
nodes they enter at, leave from and read, so a chain costs linear time. The set that results does
not depend on the order, because combining only ever adds; the smallest come first, so that limits
take the largest away.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.sub_graph import TAKE_LISTS, SubGraph
from collage_engine.records.graph import (
    KIND_ORDER,
    NO_OPERATORS,
    OperatorNumber,
    OperatorSet,
    OpKind,
    first,
)

PAIRS: tuple[tuple[OpKind, OpKind], ...] = (
    ("anchor", "broadcast"),
    ("broadcast", "reduction"),
    ("injective", "injective"),
)
"""The greatest kinds of an upstream and of a downstream candidate that TVM's FuseOps fuses."""

# Limits: chosen. They bound graphs of any structure (``test_partition_combine`` counts the calls
# for ten of 500 operators), and no model of ``tests/zoo`` spends more than 510 steps.

MOST_DEPTH = 8
"""Operators on the longest path through a candidate, at most: a bound of the sum of the depths of
what is joined."""
MOST_EXITS = 3
"""Unions with more exits are not built upon. An addition may still reduce exits, so this leaves
some room above the one exit that is wanted in the end."""
MOST_AT_OPERATOR = 48
"""Candidates that begin at the same operator, at most."""
STEPS = 800
"""Steps of work for each candidate there is to begin with: looking at a pair, or at a producer of a
value in a list, is one, and making a union ``STEPS_OF_UNION``. Small unions are made first, all
over the graph, so that what this leaves out are the largest."""
STEPS_OF_UNION = 25
"""What making a union costs, in looks at a pair: 20 to 45 µs where a look takes 1 (cProfile of
``test_work_is_bounded_for_any_structure``)."""
MOST_LISTS = 64
"""Combinations of producers tried for one list, the largest producers first."""


class Pool:
    """The candidates found so far, indexed by their borders.

    Of two candidates of the same operators the one with fewer composites is kept, but one with a
    composite before one without.
    """

    def __init__(self, graph: DataflowGraph, seeds: Sequence[SubGraph]) -> None:
        """Take the candidates to begin with, which no limit keeps out."""
        self.graph = graph
        self.found: list[SubGraph] = []
        self.place: dict[OperatorSet, int] = {}
        self.depths: list[int] = []
        self.kinds: list[int] = []
        self.by_entry: dict[OperatorNumber, list[int]] = {}
        self.by_exit: dict[OperatorNumber, list[int]] = {}
        self.starting: dict[OperatorNumber, int] = {}
        self.queue: list[tuple[int, int]] = []
        self.waiting: set[int] = set()
        self.indexed: set[int] = set()
        self.steps_left = STEPS * len(seeds)
        self.fed = {o for given in graph.record.inputs for o in graph.readers[given]}
        """Operators that read a parameter, which no candidate can make."""
        for seed in seeds:
            self.add(seed)

    def add(self, sub_graph: SubGraph) -> None:
        """Add a candidate, unless a better one of its operators is known."""
        index = self.place.get(sub_graph.inside)
        if index is not None:
            if self.improves(sub_graph.inside, len(sub_graph.composites)):
                self.found[index] = sub_graph
                self._enqueue(index)
            return
        index = len(self.found)
        self.found.append(sub_graph)
        self.depths.append(sub_graph.depth)
        self.kinds.append(KIND_ORDER[sub_graph.kind])
        self.place[sub_graph.inside] = index
        self.starting[sub_graph.first] = self.starting.get(sub_graph.first, 0) + 1
        self._enqueue(index)

    def _enqueue(self, index: int) -> None:
        """Put a candidate into the queue of those that have not met the others."""
        if index not in self.waiting:
            self.waiting.add(index)
            heapq.heappush(self.queue, (self.found[index].inside.bit_count(), index))

    def next(self) -> int:
        """Return the smallest candidate that has not met the others yet, which it now does."""
        place = heapq.heappop(self.queue)[1]
        self.waiting.discard(place)
        if place not in self.indexed:
            self.indexed.add(place)
            for index in self.found[place].entry:
                self.by_entry.setdefault(index, []).append(place)
            for index in self.found[place].exit:
                self.by_exit.setdefault(index, []).append(place)
        return place

    def spend(self, steps: int) -> bool:
        """Count steps of work, and tell whether the limits allow them."""
        self.steps_left -= steps
        return self.steps_left >= 0

    def is_full(self, first: OperatorNumber) -> bool:
        """Tell whether the limits allow no further union that begins here."""
        return self.starting.get(first, 0) >= MOST_AT_OPERATOR

    def has_room(self, union: SubGraph) -> bool:
        """Tell whether the limits allow a union: it is known, or begins and leaves where few do."""
        # In this order: to find the exits takes as long as there are operators and readers.
        return union.inside in self.place or (
            not self.is_full(union.first) and len(union.exit) <= MOST_EXITS
        )

    def largest_first(self, index: int) -> tuple[int, OperatorSet]:
        """Return the key that sorts candidates by size, the largest first."""
        inside = self.found[index].inside
        return -inside.bit_count(), inside

    def improves(self, inside: OperatorSet, parts: int) -> bool:
        """Tell whether a candidate of these operators, with so many composites, would be kept."""
        place = self.place.get(inside)
        if place is None:
            return True
        known = len(self.found[place].composites)
        return parts > 0 if known == 0 else 0 < parts < known

    # Unions of two that touch

    def pairs(self, new: int) -> Iterator[SubGraph]:
        """Yield unions with candidates that read this one, then with those that it reads."""
        sub_graph = self.found[new]
        below: dict[int, None] = {}
        for output in sub_graph.output:
            if self.graph.nodes[output].op not in TAKE_LISTS:
                below.update(dict.fromkeys(self.by_entry.get(output, ())))
        above: dict[int, None] = {}
        for source in sub_graph.input:
            above.update(dict.fromkeys(self.by_exit.get(source, ())))
        if not self.spend(len(below) + len(above)):
            return
        room = MOST_DEPTH - self.depths[new]
        for places, is_above in ((below, True), (above, False)):
            for other in places:
                # The cheap tests first: most pairs at a border fail one of them.
                if self.depths[other] > room or sub_graph.inside & self.found[other].inside:
                    continue
                up, down = (new, other) if is_above else (other, new)
                if fires(self.kinds[up], self.kinds[down]):
                    joined = self._pair(self.found[up], self.found[down])
                    if joined is not None:
                        yield joined

    def _pair(self, up: SubGraph, down: SubGraph) -> SubGraph | None:
        """Return the union of two candidates; None where it is known, too much, or a cycle."""
        inside = up.inside | down.inside
        if not self.improves(inside, len(up.composites) + len(down.composites)):
            return None
        # Limits are looked at before anything is built: wide graphs have far more unions than
        # are kept.
        if inside not in self.place and (
            self.is_full(min(up.first, down.first))
            or _exits_of_union(self.graph, up, down, inside) > MOST_EXITS
        ):
            return None
        return up.union(down) if self.spend(STEPS_OF_UNION) and up.joins(down) else None

    # Unions of a list's consumer with producers of all of its values

    def lists(self, new: int) -> Iterator[SubGraph]:
        """Yield unions with the candidate as a list's consumer, then as a value's producer.

        Everything is injective: this is upstream's two-step I → tuple → I rule. A value's producers
        must not overlap the others' (upstream aborts there); a producer of several values serves
        them all, and a constant or a value that the consumer itself makes needs none.
        """
        nodes = self.graph.nodes
        if not self._injective(new):
            return
        for operator in self.found[new].entry:
            if nodes[operator].op in TAKE_LISTS:
                yield from self._unions(new, operator, None)
        for operator in self.found[new].output:
            if nodes[operator].op not in TAKE_LISTS:
                continue
            for place in list(self.by_entry.get(operator, ())):
                if place != new and self._injective(place):
                    yield from self._unions(place, operator, new)

    def _injective(self, place: int) -> bool:
        return self.kinds[place] <= KIND_ORDER["injective"]

    def _unions(
        self, consumer: int, operator: OperatorNumber, required: int | None
    ) -> Iterator[SubGraph]:
        """Yield unions of a list's consumer with one producer for each value.

        Args:
            consumer: The place in the pool of the candidate that reads the list.
            operator: Its operator that takes the list.
            required: The place of the producer that a union must hold; None: any will do.
        """
        if operator in self.fed:
            return
        inside = self.found[consumer].inside
        choices: list[list[int]] = []
        for maker in self.graph.inputs[operator]:
            if inside >> maker & 1:
                continue
            places = self.by_exit.get(maker, ())
            if not self.spend(len(places)):
                return
            producers = [
                place
                for place in places
                if not self.found[place].inside & inside and self._injective(place)
            ]
            if not producers:
                return
            producers.sort(key=self.largest_first)
            choices.append(producers)
        if not choices:
            return
        for tried, chosen in enumerate(_choices_with(choices, required), 1):
            if tried > MOST_LISTS or not self.spend(len(choices)):
                return
            joined = self._list([consumer, *dict.fromkeys(chosen)])
            if joined is not None:
                yield joined

    def _list(self, places: Sequence[int]) -> SubGraph | None:
        """Return the union of a list's consumer and producers.

        None where they overlap or make a cycle, or the union is known or too much.
        """
        parts = [self.found[place] for place in places]
        inside = NO_OPERATORS
        for part in parts:
            if inside & part.inside:
                return None
            inside |= part.inside
        if not self.improves(inside, sum(len(part.composites) for part in parts)):
            return None
        if inside not in self.place and self.is_full(first(inside)):
            return None
        if not self.spend(STEPS_OF_UNION):
            return None
        joined = reduce(SubGraph.union, parts)
        return joined if joined.feeds_itself is None else None


def fires(upstream: int, downstream: int) -> bool:
    """Tell whether candidates of these kinds (as numbers) are joined."""
    return any(
        upstream <= KIND_ORDER[above] and downstream <= KIND_ORDER[below] for above, below in PAIRS
    )


def _choices_with(choices: Sequence[list[int]], required: int | None) -> Iterator[tuple[int, ...]]:
    """Yield every choice of one candidate for each value, or those only that hold a required one.

    The others are not gone through: of a concatenation of twenty values they are millions.

    Args:
        choices: The places of the candidates for each value.
        required: The place that a choice must hold; None: any choice will do.
    """
    if required is None:
        yield from product(*choices)
        return
    for number, producers in enumerate(choices):
        if required in producers:
            before = [[c for c in some if c != required] for some in choices[:number]]
            yield from product(*before, [required], *choices[number + 1 :])


def _exits_of_union(graph: DataflowGraph, up: SubGraph, down: SubGraph, inside: OperatorSet) -> int:
    """Return how many operators of a union have a value that leaves it."""
    users, leaving = graph.users, graph.leaving
    return sum(
        1
        for index in (*up.exit, *down.exit)
        if bool(leaving >> index & 1) or any(not inside >> user & 1 for user in users[index])
    )


def combine(graph: DataflowGraph, seeds: Sequence[SubGraph], lists: bool) -> list[SubGraph]:
    """Join candidates as FuseOps does until nothing new follows.

    Args:
        graph: The dataflow graph.
        seeds: The candidates to begin with.
        lists: Whether operators that take a list are joined with the producers of its values.

    Returns:
        The seeds and then the unions, in the order in which they were found, each set of nodes
        once.
    """
    pool = Pool(graph, seeds)
    while pool.queue:
        new = pool.next()
        for unions in (pool.pairs, pool.lists)[: 1 + lists]:
            for union in list(unions(new)):
                if pool.has_room(union):
                    pool.add(union)
    return pool.found
