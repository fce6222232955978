"""Operators that a library runs only along with others: supported where it can take them along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import NO_NODES, one_node
from collage_engine.partition.patterns import Pattern, all_matches
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.toolchains.runtime.products import Dialect, in_an_epilogue_only

Refused = Callable[[DataflowGraph, NodeSet], str | None]
"""The reason against a set of calls; None: the library runs it."""

_known: WeakKeyDictionary[DataflowGraph, dict[str, NodeSet]] = WeakKeyDictionary()


def reason_against(
    graph: DataflowGraph,
    index: NodeIndex,
    dialect: Dialect,
    patterns: Sequence[tuple[str, Pattern]],
    refused: Refused,
    key: str = "",
) -> str | None:
    """Return why the library runs an operator neither alone nor along with others.

    ``key``: what ``refused`` depends on beside the dialect, such as a precision.
    """
    op = graph.nodes[index].op
    anchor = op in dialect.channel_axes
    reason = refused(graph, one_node(index)) if anchor else in_an_epilogue_only(op, dialect)
    if reason is None:
        return None
    name = f"{dialect.name} {key}"
    return None if taken_along(graph, name, patterns, refused) >> index & 1 else reason


def taken_along(
    graph: DataflowGraph, name: str, patterns: Sequence[tuple[str, Pattern]], refused: Refused
) -> NodeSet:
    """Returns the calls of a graph that are in a match which is not refused.

    It is computed for each graph and name once.
    """
    by_name = _known.setdefault(graph, {})
    if name not in by_name:
        found = NO_NODES
        for _, pattern in patterns:
            for root in graph.operators:
                for match in all_matches(graph, pattern, root):
                    if match.nodes & ~found and refused(graph, match.nodes) is None:
                        found |= match.nodes
        by_name[name] = found
    return by_name[name]
