"""Counts the bytes that partitions read, write and hold, from the types in the dataflow graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from collage_engine.records.graph import GraphRecord, Node
from collage_engine.records.numbering import NodeIndex
from collage_engine.records.placement import Partition, Placement


@dataclass(frozen=True, kw_only=True)
class PartitionMemory:
    """The bytes that a partition reads, writes and holds, counted from the types of its values."""

    partition: Partition
    weights: int
    inputs: int
    outputs: int
    inside: int
    """Bytes of the values between the partition's own operators."""


def partition_memory(graph: GraphRecord, placement: Placement) -> list[PartitionMemory]:
    """Count the bytes of each partition.

    Args:
        graph: The dataflow graph.
        placement: A placement of it.
    """
    counter = ValueBytes(graph)
    return [counter.of_partition(part) for part in placement.partitions]


class ValueBytes:
    """Counts the bytes of the values that sets of operators of one graph read and write."""

    def __init__(self, graph: GraphRecord) -> None:
        self._nodes = {node.index: node for node in graph.nodes}
        self._calls = [node for node in graph.nodes if node.form == "call"]
        self._sources = {call.index: _sources(self._nodes, call) for call in self._calls}
        self._readers: dict[NodeIndex, set[NodeIndex]] = {}
        for reader, sources in self._sources.items():
            for source in sources:
                self._readers.setdefault(source, set()).add(reader)
        self._leaving = {i for index in graph.outputs for i in _through(self._nodes, index)}

    def of_partition(self, part: Partition) -> PartitionMemory:
        """Return the bytes of a partition."""
        nodes = self._nodes
        own, read, out = self._values(part.nodes)
        return PartitionMemory(
            partition=part,
            weights=sum(_bytes(nodes[i]) for i in read if nodes[i].form == "constant"),
            inputs=sum(_bytes(nodes[i]) for i in read - own if nodes[i].form != "constant"),
            outputs=sum(_bytes(nodes[i]) for i in out),
            inside=sum(_bytes(nodes[i]) for i in own - out),
        )

    def across_border(self, operators: Iterable[int]) -> int:
        """Return the bytes that a set of operators reads from outside, weights too, and gives."""
        own, read, out = self._values(operators)
        return sum(_bytes(self._nodes[i]) for i in (read - own) | out)

    def _values(
        self, operators: Iterable[int]
    ) -> tuple[set[NodeIndex], set[NodeIndex], set[NodeIndex]]:
        """Return the values that a set of operators makes, reads, and gives to others."""
        own = {self._calls[number].index for number in operators}
        read = {source for index in own for source in self._sources[index]}
        out = {i for i in own if i in self._leaving or self._readers.get(i, set()) - own}
        return own, read, out


def _sources(nodes: Mapping[NodeIndex, Node], call: Node) -> set[NodeIndex]:
    """Return the calls, constants and parameters whose values a call reads, through tuples."""
    return {source for index in call.inputs for source in _through(nodes, index)}


def _through(nodes: Mapping[NodeIndex, Node], index: NodeIndex) -> set[NodeIndex]:
    """Return what a value is made by: itself, or what a tuple or a projection stands for."""
    if nodes[index].form not in ("tuple", "projection"):
        return {index}
    return {source for inner in nodes[index].inputs for source in _through(nodes, inner)}


def _bytes(node: Node) -> int:
    return sum(kind.bytes for kind in node.types)
