"""Combiner rules and the fix-point that applies them (RFC 0062, "CombinePartitionRule").

Upstream pairs all candidates in rounds and skips pairs it believes to have tried, too many of
them. Here each new candidate meets, once, exactly the ones at its border: they are indexed by the
nodes they enter at, leave from and read, so a chain costs linear time. The set that results does
not depend on the order, because combining only ever adds; the smallest come first, so that limits
take the largest away.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.candidate import CandidatePartition
from collage_engine.partition.sub_graph import TAKE_LISTS, SubGraph
from collage_engine.records.graph import (
    KIND_ORDER,
    NO_OPERATORS,
    OperatorNumber,
    OperatorSet,
    OpKind,
    first,
)

SimpleCombiner = tuple[OpKind, OpKind]
"""The greatest kinds of an upstream and of a downstream candidate that are joined."""

A_TO_B: SimpleCombiner = ("anchor", "broadcast")
B_TO_R: SimpleCombiner = ("broadcast", "reduction")
I_TO_I: SimpleCombiner = ("injective", "injective")


@dataclass(frozen=True)
class CombineLimits:
    """Bounds that keep wide graphs from exploding; 0 means none. Upstream has none."""

    max_exits: int = 0
    """Unions with more exits are not built upon. An addition may still reduce exits, so this
    should leave some room above what is wanted in the end."""
    per_node: int = 0
    """Candidates that begin at the same operator, at most."""
    steps: int = 0
    """Steps of work, for each candidate there is to begin with: looking at a pair, or at a
    producer of a value in a list, is one, and making a union ``STEPS_OF_UNION``. Small unions are
    made first, all over the graph, so that what this leaves out are the largest."""
    list_choices: int = 64
    """Combinations of producers tried for one list, the largest producers first."""


STEPS_OF_UNION = 25
"""What making a union costs, in looks at a pair: 20 to 45 µs where a look takes 1 (cProfile of
``test_work_is_bounded_for_any_structure``)."""


class Pool:
    """The candidates found so far, indexed by their borders.

    Of two candidates of the same operators the one with fewer composites is kept, but one with a
    composite before one without.
    """

    def __init__(self, graph: DataflowGraph, max_depth: int, limits: CombineLimits) -> None:
        self.graph = graph
        self.max_depth = max_depth
        self.limits = limits
        self.found: list[CandidatePartition] = []
        self.place: dict[OperatorSet, int] = {}
        self.depths: list[int] = []
        self.kinds: list[int] = []
        self.firsts: list[OperatorNumber] = []
        self.by_entry: dict[OperatorNumber, list[int]] = {}
        self.by_exit: dict[OperatorNumber, list[int]] = {}
        self.starting: dict[OperatorNumber, int] = {}
        self.queue: list[tuple[int, int]] = []
        self.waiting: set[int] = set()
        self.indexed: set[int] = set()
        self.steps_left = 0
        self.fed = {o for given in graph.record.inputs for o in graph.readers[given]}
        """Operators that read a parameter, which no candidate can make."""

    def add(self, candidate: CandidatePartition, *, seed: bool = False) -> None:
        """Add a candidate, unless it is known or a limit is reached.

        Args:
            candidate: The candidate.
            seed: Whether it is one to begin with, which no limit keeps out.
        """
        sub_graph = candidate.sub_graph
        inside = sub_graph.inside
        index = self.place.get(inside)
        if index is not None:
            if self.improves(inside, len(sub_graph.composites)):
                self.found[index] = candidate
                self._enqueue(index)
            return
        first = sub_graph.first
        # In this order: to find the exits takes as long as there are operators and readers.
        if not seed and (self.is_full(first) or not self.has_room(first, len(sub_graph.exit))):
            return
        index = len(self.found)
        self.found.append(candidate)
        self.depths.append(sub_graph.depth)
        self.kinds.append(KIND_ORDER[sub_graph.kind])
        self.firsts.append(first)
        self.place[inside] = index
        self.starting[first] = self.starting.get(first, 0) + 1
        self._enqueue(index)

    def _enqueue(self, index: int) -> None:
        """Put a candidate into the queue of those that have not met the others."""
        if index not in self.waiting:
            self.waiting.add(index)
            size = self.found[index].sub_graph.inside.bit_count()
            heapq.heappush(self.queue, (size, index))

    def next(self) -> int:
        """Return the smallest candidate that has not met the others yet, which it now does."""
        place = heapq.heappop(self.queue)[1]
        self.waiting.discard(place)
        if place not in self.indexed:
            self.indexed.add(place)
            sub_graph = self.found[place].sub_graph
            for index in sub_graph.entry:
                self.by_entry.setdefault(index, []).append(place)
            for index in sub_graph.exit:
                self.by_exit.setdefault(index, []).append(place)
        return place

    def spend(self, steps: int) -> bool:
        """Count steps of work, and tell whether the limits allow them."""
        self.steps_left -= steps
        return not self.limits.steps or self.steps_left >= 0

    def is_full(self, first: OperatorNumber) -> bool:
        """Tell whether the limits allow no further union that begins here."""
        most = self.limits.per_node
        return bool(most) and self.starting.get(first, 0) >= most

    def has_room(self, first: OperatorNumber, exits: int) -> bool:
        """Tell whether the limits allow another union that begins here and has so many exits."""
        most = self.limits.max_exits
        return not self.is_full(first) and not (most and exits > most)

    def largest_first(self, index: int) -> tuple[int, OperatorSet]:
        """Return the key that sorts candidates by size, the largest first."""
        inside = self.found[index].sub_graph.inside
        return -inside.bit_count(), inside

    def improves(self, inside: OperatorSet, parts: int) -> bool:
        """Tell whether a candidate of these operators, with so many composites, would be kept."""
        place = self.place.get(inside)
        if place is None:
            return True
        known = len(self.found[place].sub_graph.composites)
        return parts > 0 if known == 0 else 0 < parts < known


class CombinerRule(ABC):
    """Makes candidates from a new candidate and those found before."""

    @abstractmethod
    def combine(self, pool: Pool, new: int) -> Iterator[CandidatePartition]:
        """Yield unions of a candidate with others in the pool, in both roles.

        Args:
            pool: The candidates found so far.
            new: The place of the candidate in the pool.
        """


@dataclass(frozen=True)
class AllSimple(CombinerRule):
    """Joins touching candidates whenever one of the simple combiners fires."""

    simple: tuple[SimpleCombiner, ...]

    def combine(self, pool: Pool, new: int) -> Iterator[CandidatePartition]:
        """Yield unions with candidates that read this one, then with those that it reads."""
        sub_graph = pool.found[new].sub_graph
        below: dict[int, None] = {}
        for output in sub_graph.output:
            if pool.graph.nodes[output].op not in TAKE_LISTS:
                below.update(dict.fromkeys(pool.by_entry.get(output, ())))
        above: dict[int, None] = {}
        for source in sub_graph.input:
            above.update(dict.fromkeys(pool.by_exit.get(source, ())))
        inside = sub_graph.inside
        if not pool.spend(len(below) + len(above)):
            return
        room = pool.max_depth - pool.depths[new] if pool.max_depth else len(pool.graph)
        for places, is_above in ((below, True), (above, False)):
            for other in places:
                # The cheap tests first: most pairs at a border fail one of them.
                if pool.depths[other] > room or inside & pool.found[other].sub_graph.inside:
                    continue
                up, down = (new, other) if is_above else (other, new)
                if self.fires(pool.kinds[up], pool.kinds[down]):
                    joined = self._join(pool, pool.found[up], pool.found[down])
                    if joined is not None:
                        yield joined

    def fires(self, upstream: int, downstream: int) -> bool:
        """Tell whether a simple combiner takes these kinds (as numbers)."""
        return any(
            upstream <= KIND_ORDER[above] and downstream <= KIND_ORDER[below]
            for above, below in self.simple
        )

    def _join(
        self, pool: Pool, above: CandidatePartition, below: CandidatePartition
    ) -> CandidatePartition | None:
        """Return the union of two candidates; None where it is known, too much, or a cycle."""
        up, down = above.sub_graph, below.sub_graph
        inside = up.inside | down.inside
        if not pool.improves(inside, len(up.composites) + len(down.composites)):
            return None
        # Limits are looked at before anything is built: wide graphs have far more unions than
        # are kept.
        if inside not in pool.place:
            exits = _exits_of_union(pool.graph, up, down, inside) if pool.limits.max_exits else 0
            if not pool.has_room(min(up.first, down.first), exits):
                return None
        return above.union(below) if pool.spend(STEPS_OF_UNION) and up.joins(down) else None


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


@dataclass(frozen=True)
class ListArgument(CombinerRule):
    """Joins an operator that takes a list with producers of *all* its values, everything injective.

    Upstream's two-step I → tuple → I rule. A value's producers must not overlap the others'
    (upstream aborts there); a producer of several values serves them all, and a constant or a value
    that the consumer itself makes needs none.
    """

    def combine(self, pool: Pool, new: int) -> Iterator[CandidatePartition]:
        """Yield unions with the candidate as a list's consumer, then as a value's producer."""
        nodes = pool.graph.nodes
        candidate = pool.found[new]
        if not _injective(candidate):
            return
        for operator in candidate.sub_graph.entry:
            if nodes[operator].op in TAKE_LISTS:
                yield from self._unions(pool, new, operator, None)
        for operator in candidate.sub_graph.output:
            if nodes[operator].op not in TAKE_LISTS:
                continue
            for place in list(pool.by_entry.get(operator, ())):
                if place != new and _injective(pool.found[place]):
                    yield from self._unions(pool, place, operator, new)

    def _unions(
        self, pool: Pool, consumer: int, operator: OperatorNumber, required: int | None
    ) -> Iterator[CandidatePartition]:
        """Yield unions of a list's consumer with one producer for each value.

        Args:
            pool: The candidates found so far.
            consumer: The place in the pool of the candidate that reads the list.
            operator: Its operator that takes the list.
            required: The place of the producer that a union must hold; None: any will do.
        """
        if operator in pool.fed:
            return
        inside = pool.found[consumer].sub_graph.inside
        choices: list[list[int]] = []
        for maker in pool.graph.inputs[operator]:
            if inside >> maker & 1:
                continue
            places = pool.by_exit.get(maker, ())
            if not pool.spend(len(places)):
                return
            producers = [
                place
                for place in places
                if not pool.found[place].sub_graph.inside & inside and _injective(pool.found[place])
            ]
            if not producers:
                return
            producers.sort(key=pool.largest_first)
            choices.append(producers)
        if not choices:
            return
        for tried, chosen in enumerate(_choices_with(choices, required), 1):
            if pool.limits.list_choices and tried > pool.limits.list_choices:
                return
            if not pool.spend(len(choices)):
                return
            joined = self._join(pool, [consumer, *dict.fromkeys(chosen)])
            if joined is not None:
                yield joined

    def _join(self, pool: Pool, places: Sequence[int]) -> CandidatePartition | None:
        """Return the union of a list's consumer and producers.

        None where they overlap or make a cycle, or the union is known or too much.
        """
        parts = [pool.found[place] for place in places]
        inside = NO_OPERATORS
        for part in parts:
            if inside & part.sub_graph.inside:
                return None
            inside |= part.sub_graph.inside
        if not pool.improves(inside, sum(len(part.sub_graph.composites) for part in parts)):
            return None
        if inside not in pool.place and pool.is_full(first(inside)):
            return None
        if not pool.spend(STEPS_OF_UNION):
            return None
        joined = reduce(CandidatePartition.union, parts)
        return joined if joined.sub_graph.feeds_itself is None else None


def _injective(candidate: CandidatePartition) -> bool:
    return KIND_ORDER[candidate.sub_graph.kind] <= KIND_ORDER["injective"]


def combine(
    graph: DataflowGraph,
    seeds: Sequence[CandidatePartition],
    combiners: Sequence[CombinerRule],
    max_depth: int = 0,
    limits: CombineLimits | None = None,
) -> list[CandidatePartition]:
    """Join candidates by combiner rules until nothing new follows.

    Args:
        graph: The dataflow graph.
        seeds: The candidates to begin with.
        combiners: The rules.
        max_depth: Bounds the sum of the depths of what is joined; 0: no bound.
        limits: How many unions are tried and kept; None: all.

    Returns:
        The seeds and then the unions, in the order in which they were found, each set of nodes
        once.
    """
    pool = Pool(graph, max_depth, limits or CombineLimits())
    for seed in seeds:
        pool.add(seed, seed=True)
    pool.steps_left = pool.limits.steps * len(seeds)
    while pool.queue:
        new = pool.next()
        for combiner in combiners:
            for made in list(combiner.combine(pool, new)):
                pool.add(made)
    return pool.found
