"""Sums up a placement's memory by partition and toolchain: counted, measured or not known.

The bytes of weights and of values are counted from the types in the dataflow graph. What a
toolchain holds of packed weights is measured in the process that confirmed a run. Nothing else is
known, and nothing is estimated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collage_engine.records.graph import GraphRecord, Node
from collage_engine.records.memory import MemoryUse
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


@dataclass(frozen=True, kw_only=True)
class ToolchainMemory:
    """The bytes of weights that one toolchain has in a placement."""

    toolchain: str
    partitions: int
    weights: int
    """Counted: what its partitions read; a weight that two partitions read counts twice."""
    stored: int | None
    """Measured: what it was given in the run; None where that is not known."""
    packed: int | None
    """Measured: what it holds in memory; None where that is not known."""


def partition_memory(graph: GraphRecord, placement: Placement) -> list[PartitionMemory]:
    """Count the bytes of each partition.

    Args:
        graph: The dataflow graph.
        placement: A placement of it.
    """
    nodes = {node.index: node for node in graph.nodes}
    calls = [node for node in graph.nodes if node.form == "call"]
    readers: dict[NodeIndex, set[NodeIndex]] = {}
    for call in calls:
        for source in _sources(nodes, call):
            readers.setdefault(source, set()).add(call.index)
    leaving = {source for index in graph.outputs for source in _through(nodes, index)}
    return [_count(part, nodes, calls, readers, leaving) for part in placement.partitions]


def _count(
    part: Partition,
    nodes: Mapping[NodeIndex, Node],
    calls: list[Node],
    readers: Mapping[NodeIndex, set[NodeIndex]],
    leaving: set[NodeIndex],
) -> PartitionMemory:
    own = {calls[number].index for number in part.nodes}
    read = {source for index in own for source in _sources(nodes, nodes[index])}
    out = {i for i in own if i in leaving or readers.get(i, set()) - own}
    return PartitionMemory(
        partition=part,
        weights=sum(_bytes(nodes[i]) for i in read if nodes[i].form == "constant"),
        inputs=sum(_bytes(nodes[i]) for i in read - own if nodes[i].form != "constant"),
        outputs=sum(_bytes(nodes[i]) for i in out),
        inside=sum(_bytes(nodes[i]) for i in own - out),
    )


def toolchain_memory(parts: list[PartitionMemory], use: MemoryUse | None) -> list[ToolchainMemory]:
    """Return the weights of each toolchain, in the order of its first partition.

    Args:
        parts: The partitions of a placement.
        use: What the run of this placement measured; None where it is not known.
    """
    rows = []
    for name in dict.fromkeys(each.partition.toolchain for each in parts):
        own = [each for each in parts if each.partition.toolchain == name]
        rows.append(
            ToolchainMemory(
                toolchain=name,
                partitions=len(own),
                weights=sum(each.weights for each in own),
                stored=use.stored.get(name) if use is not None else None,
                packed=use.seen.held.get(name) if use is not None else None,
            )
        )
    return rows


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
