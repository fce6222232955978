"""Computes bytes and rates of partitions.

Bytes are counted from the types of the values in the dataflow graph. A partition achieves so many
operations and moves so many bytes a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
    """The bytes, the time and the rates of a partition."""

    partition: Partition
    us: float | None
    """The partition's time in µs in the last run, or else the expected one."""
    operations: float
    """Of its convolutions and matrix products."""

    @property
    def gflops(self) -> float | None:
        """Return the achieved GFLOP/s; None where the time is not known."""
        return self.operations / self.us / 1e3 if self.us else None

    @property
    def gigabytes_per_s(self) -> float | None:
        """Return the achieved GB/s; None where the time is not known."""
        return self.moved_bytes / self.us / 1e3 if self.us else None


def partition_figures(graph: GraphRecord, placement: Placement) -> list[PartitionFigures]:
    """Return the bytes, the time and the operations of each partition of a placement.

    Args:
        graph: The dataflow graph.
        placement: A placement of it.
    """
    work, counter = work_of_operators(graph), _Counter(graph)
    return [
        PartitionFigures(
            **vars(counter.count(part.nodes)),
            partition=part,
            us=part.in_place_us if part.in_place_us is not None else part.estimated_us,
            operations=sum(work[number].operations for number in part.nodes),
        )
        for part in placement.partitions
    ]


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
