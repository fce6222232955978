"""Looks up formats of border values: by operator number in records, by value index in functions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.format import HOST, NHWC, PLAIN, Formats, differs
from collage_engine.records.graph import OperatorSet, ValueIndex
from collage_engine.records.operators import names_where

_SPATIAL = names_where(layout="spatial")
_CARRIERS = names_where(layout="carrier")


def by_value(
    graph: DataflowGraph, values: Iterable[ValueIndex], formats: Formats | None
) -> dict[int, str]:
    """Return the formats of border values, given by operator number of their producers.

    A producer of several values names one format for all; those that it does not change, and what
    no operator computes, are left plain.

    Args:
        graph: The model's dataflow graph.
        values: The border values.
        formats: The format of each operator's values, by operator number.

    Returns:
        The formats that are not plain, by value index.
    """
    if not formats:
        return {}
    names: dict[int, str] = {}
    for index in values:
        number = graph.values[index].producer
        name = PLAIN if number is None else formats.get(number, PLAIN)
        if differs(graph.values[index].type, name):
            names[index] = name
    return names


def border_formats(
    graph: DataflowGraph, operators: OperatorSet, takes: Formats, gives: Formats
) -> tuple[dict[int, str], dict[int, str]]:
    """Return a record's formats by value index, over the border of a set of operators.

    Args:
        graph: The model's dataflow graph.
        operators: The operators.
        takes: The formats of its inputs, by the operator number of their producers.
        gives: The formats of its outputs, by operator number.

    Returns:
        The formats of inputs and of outputs that are not plain, by value index.
    """
    if not takes and not gives:
        return {}, {}
    inputs, outputs = graph.boundary(operators)
    return by_value(graph, inputs, takes), by_value(graph, outputs, gives)


def channels_last_border(graph: DataflowGraph, operators: OperatorSet) -> tuple[Formats, Formats]:
    """Return ``takes`` and ``gives`` of a set with every image of its border NHWC, by operator.

    Empty where no value is another one in memory then. Graph inputs are plain always; so is what
    only leaves the model, since its user wants it plain.
    """
    inputs, outputs = graph.boundary(operators)
    images = image_values(graph)
    takes = dict.fromkeys(graph.record.producers(i for i in inputs if i in images), NHWC)
    gives: dict[int, str] = {}
    for index in outputs:
        read = any(not operators >> reader & 1 for reader in graph.readers[index])
        if index in images and (read or index not in graph.leaving_values):
            gives.update(dict.fromkeys(graph.record.producers([index]), NHWC))
    return takes, gives


def host_border(graph: DataflowGraph, operators: OperatorSet) -> tuple[Formats, Formats]:
    """Return ``takes`` and ``gives`` of a set that runs wholly on the host of a device."""
    takes, gives = map(graph.record.producers, graph.boundary(operators))
    return dict.fromkeys(takes, HOST), dict.fromkeys(gives, HOST)


@lru_cache(maxsize=8)  # a process works on one model, or on a few of its shapes
def image_values(graph: DataflowGraph) -> frozenset[ValueIndex]:
    """Return the tensor values that belong to images and are other bytes in NHWC than plain.

    What a spatial operator reads or gives is one, and what elementwise operators, concatenations
    and the like make of it, or it of them. Attention's four axes are none.
    """
    images: set[ValueIndex] = set()
    groups = []
    for node in graph.nodes:
        if node.op in _SPATIAL:
            if str(node.attributes.get("data_layout", node.attributes.get("layout"))) == "NCHW":
                images.update(i for i in (node.inputs[0], node.index) if _could_be(graph, i))
        elif node.kind in ("elementwise", "broadcast") or node.op in _CARRIERS:
            group = {i for i in (*node.inputs, *node.outputs) if _could_be(graph, i)}
            if len(group) > 1:
                groups.append(group)
    while touching := [group for group in groups if group & images]:
        images.update(*touching)
        groups = [group for group in groups if not group <= images]
    return frozenset(images)


def _could_be(graph: DataflowGraph, index: ValueIndex) -> bool:
    value = graph.values[index]
    return not value.constant and differs(value.type)
