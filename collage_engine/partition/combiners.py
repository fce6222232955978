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

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.sub_graph import TAKE_LISTS, SubGraph
from collage_engine.records.graph import (
    KIND_ORDER,
    OperatorNumber,
    OperatorSet,
    OpKind,
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
"""Steps of work for each candidate there is to begin with: looking at a pair is one, and making a
union ``STEPS_OF_UNION``. Small unions are made first, all
over the graph, so that what this leaves out are the largest."""
STEPS_OF_UNION = 25
"""What making a union costs, in looks at a pair: 20 to 45 µs where a look takes 1 (cProfile of
``test_work_is_bounded_for_any_structure``)."""


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

    def improves(self, inside: OperatorSet, parts: int) -> bool:
        """Tell whether a candidate of these operators, with so many composites, would be kept."""
        place = self.place.get(inside)
        if place is None:
            return True
        known = len(self.found[place].composites)
        return parts > 0 if known == 0 else 0 < parts < known

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


def fires(upstream: int, downstream: int) -> bool:
    """Tell whether candidates of these kinds (as numbers) are joined."""
    return any(
        upstream <= KIND_ORDER[above] and downstream <= KIND_ORDER[below] for above, below in PAIRS
    )


def _exits_of_union(graph: DataflowGraph, up: SubGraph, down: SubGraph, inside: OperatorSet) -> int:
    """Return how many operators of a union have a value that leaves it."""
    users, leaving = graph.users, graph.leaving
    return sum(
        1
        for index in (*up.exit, *down.exit)
        if bool(leaving >> index & 1) or any(not inside >> user & 1 for user in users[index])
    )


def combine(graph: DataflowGraph, seeds: Sequence[SubGraph]) -> list[SubGraph]:
    """Join candidates as FuseOps does until nothing new follows.

    Args:
        graph: The dataflow graph.
        seeds: The candidates to begin with.

    Returns:
        The seeds and then the unions, in the order in which they were found, each set of nodes
        once.
    """
    pool = Pool(graph, seeds)
    while pool.queue:
        for union in pool.pairs(pool.next()):
            pool.add(union)
    return pool.found
