"""Derives what a toolchain says of a match and of a sub-graph from what it says of one call."""

from __future__ import annotations

from collections.abc import Callable

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.matching import Match
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.numbering import NodeIndex, NodeSet

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
