"""Derives what a toolchain says of a match and of a sub-graph from what it says of one call."""

from __future__ import annotations

from collections.abc import Callable, Container

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.opaque_names import is_opaque
from collage_engine.partition.matching import Match
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.operator_titles import onnx_type

Reason = Callable[[DataflowGraph, NodeIndex], "str | None"]
"""A function that says why a toolchain cannot take the call at an index; None when it can."""


def against_nodes(reason: Reason, graph: DataflowGraph, nodes: NodeSet) -> str | None:
    """Return the reason against the first call of a set that cannot be taken."""
    for index in graph.operators:
        if nodes >> index & 1:
            found = reason(graph, index)
            if found is not None:
                return found
    return None


def against_match(reason: Reason) -> Callable[[DataflowGraph, Match], str | None]:
    """Return the predicate of a pattern table's entry: every matched call can be taken."""
    return lambda graph, match: against_nodes(reason, graph, match.nodes)


def against_sub_graph(reason: Reason) -> Callable[[SubGraph], str | None]:
    """Return the ``validate`` of a partition spec: every call inside can be taken."""
    return lambda sub_graph: against_nodes(reason, sub_graph.graph, sub_graph.inside)


def against_onnx(
    graph: DataflowGraph,
    index: NodeIndex,
    types: Container[str],
    refusal: str,
    open_sizes: str = "",
) -> str | None:
    """Returns why a toolchain that is given ONNX cannot be expected to take a call; else None.

    An operator without an ONNX form of its own still runs as the ONNX node it came from, in a
    sub-graph that holds the whole of that node.

    Args:
        graph: The model's dataflow graph.
        index: The graph index of the call.
        types: Element types that the toolchain computes.
        refusal: How the sentence on another element type begins.
        open_sizes: What to say of results whose size depends on the data; empty if the toolchain
            returns them.
    """
    from collage_engine.model.onnx_forms import FORMS

    node = graph.nodes[index]
    if open_sizes and any(value.is_open for value in node.types):
        return open_sizes
    if node.op not in FORMS and not node.onnx_nodes and not is_opaque(node.op):
        return f"{onnx_type(node.op)} has no ONNX form"
    for value in (*node.types, *(t for i in node.inputs for t in graph.nodes[i].types)):
        if value.dtype not in types:
            return f"{refusal} {value.dtype}"
    return None
