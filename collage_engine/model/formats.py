"""Formats of border values: by operator number in records, by node index in functions."""

from __future__ import annotations

from collections.abc import Iterable

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import IndexSet
from collage_engine.records.format import NHWC, PLAIN, Formats, differs


def by_value(
    graph: DataflowGraph, values: Iterable[int], formats: Formats | None
) -> dict[int, str]:
    """Formats of these border values (node indices), given by operator number of the producer.

    A producer of several values names one format for all; those that it does not change, and
    what no operator computes, are left plain.
    """
    if not formats:
        return {}
    found = {}
    for index in values:
        number = graph.operator_number.get(graph.producer(index))
        name = PLAIN if number is None else formats.get(number, PLAIN)
        if differs(graph.nodes[index].type, name):
            found[index] = name
    return found


def by_producer(graph: DataflowGraph, values: Iterable[int], name: str = NHWC) -> dict[int, str]:
    """All of these values that can be in a format: operator number of the producer → format.

    Graph inputs and constants are plain always, so they are no part of it.
    """
    found = {}
    for index in values:
        number = graph.operator_number.get(graph.producer(index))
        if number is not None and differs(graph.nodes[index].type, name):
            found[number] = name
    return found


def border_formats(
    graph: DataflowGraph, nodes: IndexSet, takes: Formats, gives: Formats
) -> tuple[dict[int, str], dict[int, str]]:
    """A record's formats by node index, over the border of a closed set."""
    if not takes and not gives:
        return {}, {}
    inputs, outputs = graph.boundary(nodes)
    return by_value(graph, inputs, takes), by_value(graph, outputs, gives)
