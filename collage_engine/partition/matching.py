"""What matching a pattern ends with: where it matched, or why it did not."""

from __future__ import annotations

from dataclasses import dataclass

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.operator_titles import onnx_type


@dataclass(frozen=True)
class Match:
    """A match says where a pattern matched."""

    root: NodeIndex
    nodes: NodeSet
    """Matched nodes, without what only wildcards matched and without inlinable nodes."""
    bindings: dict[str, NodeIndex]
    """Node index of every named part."""


@dataclass(frozen=True)
class Failure:
    """Why a pattern did not match: the attempt that got furthest."""

    node: int
    part: str
    """The part of the pattern that failed."""
    found: str
    """What stands there instead, or what about it is wrong."""
    progress: int
    """Parts that had matched before."""

    def __str__(self) -> str:
        return f"expected {self.part}, found {self.found}"


class Trace:
    """Keeps the failure that got furthest, where someone wants to know it."""

    def __init__(self, graph: DataflowGraph, wanted: bool = True) -> None:
        self.graph = graph
        self.wanted = wanted
        self.best: Failure | None = None

    def fail(self, pattern: object, index: NodeIndex, found: str | None, progress: int) -> None:
        """Note that a pattern failed at a node, and keep it if none got further."""
        if self.wanted and (self.best is None or progress > self.best.progress):
            what = found or describe(self.graph, index)
            self.best = Failure(index, str(pattern), what, progress)


def describe(graph: DataflowGraph, index: NodeIndex) -> str:
    """Return a node in a few words, for reasons."""
    node = graph.nodes[index]
    if node.form == "call":
        which = f"'{node.name}'" if node.name else f"(node {index})"
        return f"{onnx_type(node.op)} {which}"
    if node.form == "constant":
        return f"constant {node.types[0]}" if node.types else "a constant"
    if node.form == "parameter":
        return f"parameter '{node.name}'"
    if node.form == "projection":
        return f"field {node.field} of node {node.inputs[0]}"
    if node.form == "tuple":
        return f"a tuple of {len(node.inputs)}"
    return f"node {index}"
