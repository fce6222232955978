"""Computes bytes and rates of partitions, and how far the rates are below the best ones seen.

Bytes are counted from the types of the values in the dataflow graph.

A partition achieves so many operations and moves so many bytes a second. The *roof* is the best
rate of each kind that any measured candidate of the model achieved on this machine, so nothing is
measured for it. In the roofline model (Williams, Waterman and Patterson, 2009) arithmetic and
memory overlap: at the roof a partition takes the longer of the two times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.graph import GraphRecord, ValueIndex
from collage_engine.records.operators import work_of_operators
from collage_engine.records.placement import Partition, Placement


@dataclass(frozen=True, kw_only=True)
class ByteCounts:
    """The bytes of the values that some operators read, write and hold."""

    weights: int
    inputs: int
    outputs: int
    inside: int
    """Bytes of the values between the operators."""

    @property
    def moved_bytes(self) -> int:
        """Return the bytes that are read, weights included, and written."""
        return self.weights + self.inputs + self.outputs


@dataclass(frozen=True, kw_only=True)
class PartitionFigures(ByteCounts):
    """The bytes of a partition, and its time beside what it would take at the roof."""

    partition: Partition
    us: float | None
    """The partition's time in µs in the last run, or else the expected one."""
    operations: float
    """Of its convolutions and matrix products."""
    roof_us: float
    """What it would take at the roof, in µs; 0 where no candidate has a cost."""

    @property
    def gflops(self) -> float | None:
        """Return the achieved GFLOP/s; None where the time is not known."""
        return self.operations / self.us / 1e3 if self.us else None

    @property
    def gigabytes_per_s(self) -> float | None:
        """Return the achieved GB/s; None where the time is not known."""
        return self.moved_bytes / self.us / 1e3 if self.us else None

    @property
    def left_us(self) -> float | None:
        """Return how much of its time lies above the roof; never negative, since costs scatter."""
        return None if self.us is None else max(0.0, self.us - self.roof_us)

    @property
    def efficiency(self) -> float | None:
        """Return its time at the roof as a share of its time, 0…1."""
        return min(1.0, self.roof_us / self.us) if self.us else None


def partition_figures(
    graph: GraphRecord, placement: Placement, candidates: Iterable[CandidateRecord]
) -> list[PartitionFigures]:
    """Return the bytes, the time and the roof of each partition of a placement.

    Args:
        graph: The dataflow graph.
        placement: A placement of it.
        candidates: All candidates of the model; the roof is the best of those that have a cost.
    """
    work, counter = work_of_operators(graph), _Counter(graph)

    def amounts(nodes: tuple[int, ...]) -> tuple[float, ByteCounts]:
        return sum(work[number].operations for number in nodes), counter.count(nodes)

    most_operations = most_bytes = 0.0
    for candidate in candidates:
        if candidate.cost.usable and candidate.cost.median_us:
            operations, counts = amounts(candidate.nodes)
            most_operations = max(most_operations, operations / candidate.cost.median_us)
            most_bytes = max(most_bytes, counts.moved_bytes / candidate.cost.median_us)
    figures = []
    for part in placement.partitions:
        operations, counts = amounts(part.nodes)
        roofs_us = (
            operations / most_operations if most_operations else 0.0,
            counts.moved_bytes / most_bytes if most_bytes else 0.0,
        )
        figures.append(
            PartitionFigures(
                **vars(counts),
                partition=part,
                us=part.in_place_us if part.in_place_us is not None else part.estimated_us,
                operations=operations,
                roof_us=max(roofs_us),
            )
        )
    return figures


class _Counter:
    """Counts the bytes of the values that sets of operators of one graph read and write."""

    def __init__(self, graph: GraphRecord) -> None:
        self._graph = graph
        self._readers: dict[ValueIndex, set[int]] = {}
        for node in graph.nodes:
            for index in node.inputs:
                self._readers.setdefault(index, set()).add(node.index)

    def count(self, operators: Iterable[int]) -> ByteCounts:
        """Count the bytes of the values of a set of operators."""
        graph, inside = self._graph, set(operators)
        nodes = [graph.nodes[operator] for operator in inside]
        made = {index for node in nodes for index in node.outputs}
        read = {index for node in nodes for index in node.inputs}
        out = {i for i in made if i in graph.outputs or self._readers.get(i, set()) - inside}
        weights = {i for i in read if graph.values[i].constant}
        return ByteCounts(
            weights=self._bytes(weights),
            inputs=self._bytes(read - made - weights),
            outputs=self._bytes(out),
            inside=self._bytes(made - out),
        )

    def _bytes(self, values: Iterable[ValueIndex]) -> int:
        return sum(self._graph.values[index].type.bytes for index in values)
