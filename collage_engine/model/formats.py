"""Looks up formats of border values: by operator number in records, by node index in functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from weakref import WeakKeyDictionary

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.format import HOST, NHWC, PLAIN, Formats, differs
from collage_engine.records.graph import NodeIndex, NodeSet
from collage_engine.records.operators import names_where

_SPATIAL = names_where(layout="spatial")
_CARRIERS = names_where(layout="carrier")


def by_value(
    graph: DataflowGraph, values: Iterable[NodeIndex], formats: Formats | None
) -> dict[int, str]:
    """Return the formats of border values, given by operator number of their producers.

    A producer of several values names one format for all; those that it does not change, and what
    no operator computes, are left plain.

    Args:
        graph: The model's dataflow graph.
        values: Node indices of the border values.
        formats: The format of each operator's values, by operator number.

    Returns:
        The formats that are not plain, by node index.
    """
    if not formats:
        return {}
    found: dict[int, str] = {}
    for index in values:
        number = graph.operator_number.get(graph.producer(index))
        name = PLAIN if number is None else formats.get(number, PLAIN)
        if differs(graph.nodes[index].type, name):
            found[index] = name
    return found


def border_formats(
    graph: DataflowGraph, nodes: NodeSet, takes: Formats, gives: Formats
) -> tuple[dict[int, str], dict[int, str]]:
    """Return a record's formats by node index, over the border of a closed set.

    Args:
        graph: The model's dataflow graph.
        nodes: The closed set.
        takes: The formats of its inputs, by the operator number of their producers.
        gives: The formats of its outputs, by operator number.

    Returns:
        The formats of inputs and of outputs that are not plain, by node index.
    """
    if not takes and not gives:
        return {}, {}
    inputs, outputs = graph.boundary(nodes)
    return by_value(graph, inputs, takes), by_value(graph, outputs, gives)


def values_of(graph: DataflowGraph, number: int) -> tuple[int, ...]:
    """Return the node indices of the tensor values that an operator computes.

    They are the operator itself, or its projections where it gives a tuple.
    """
    index = graph.operators[number]
    if not graph.nodes[index].is_tuple:
        return (index,)
    return tuple(u for u in graph.users[index] if graph.nodes[u].form == "projection")


def channels_last_border(graph: DataflowGraph, nodes: NodeSet) -> tuple[Formats, Formats]:
    """Return ``takes`` and ``gives`` of a set with every image of its border NHWC, by operator.

    Empty where no value is another one in memory then. Graph inputs are plain always; so is what
    only leaves the model, since its user wants it plain.
    """
    nodes = graph.close(nodes)
    inputs, outputs = graph.boundary(nodes)
    images = image_values(graph)
    takes: dict[int, str] = {}
    gives: dict[int, str] = {}
    for index in inputs:
        number = graph.operator_number.get(graph.producer(index))
        if number is not None and index in images:
            takes[number] = NHWC
    for index in outputs:
        read = any(not nodes >> user & 1 for user in graph.users[index])
        if index in images and (read or not graph.output_set >> index & 1):
            gives[graph.operator_number[graph.producer(index)]] = NHWC
    return takes, gives


def host_border(graph: DataflowGraph, nodes: NodeSet) -> tuple[Formats, Formats]:
    """Return ``takes`` and ``gives`` of a set that runs wholly on the host of a device."""
    inputs, outputs = graph.boundary(graph.close(nodes))
    numbers = (graph.operator_number.get(graph.producer(index)) for index in inputs)
    gives: dict[int, str] = {
        graph.operator_number[graph.producer(index)]: HOST for index in outputs
    }
    return {number: HOST for number in numbers if number is not None}, gives


_images: WeakKeyDictionary[DataflowGraph, frozenset[NodeIndex]] = WeakKeyDictionary()


def image_values(graph: DataflowGraph) -> frozenset[NodeIndex]:
    """Return the tensor values that belong to images and are other bytes in NHWC than plain.

    What a spatial operator reads or gives is one, and what elementwise operators, concatenations
    and the like make of it, or it of them. Attention's four axes are none.
    """
    found = _images.get(graph)
    if found is None:
        found = _images.setdefault(graph, _search(graph))
    return found


def _search(graph: DataflowGraph) -> frozenset[NodeIndex]:
    found: set[NodeIndex] = set()
    groups = []
    for index in graph.operators:
        node = graph.nodes[index]
        if node.op in _SPATIAL:
            if str(node.attributes.get("data_layout", node.attributes.get("layout"))) == "NCHW":
                found.update(i for i in (node.inputs[0], index) if _could_be(graph, i))
        elif node.kind in ("elementwise", "broadcast") or node.op in _CARRIERS:
            group = {
                i
                for i in (*_operands(graph, index), *_results(graph, index))
                if _could_be(graph, i)
            }
            if len(group) > 1:
                groups.append(group)
    grown = True
    while grown:
        grown = False
        waiting = []
        for group in groups:
            if group & found:
                found |= group
                grown = True
            else:
                waiting.append(group)
        groups = waiting
    return frozenset(found)


def _could_be(graph: DataflowGraph, index: NodeIndex) -> bool:
    node = graph.nodes[index]
    return (
        node.form in ("call", "projection", "parameter")
        and not node.is_tuple
        and differs(node.type)
    )


def _operands(graph: DataflowGraph, index: NodeIndex) -> Iterator[NodeIndex]:
    for source in graph.nodes[index].inputs:
        node = graph.nodes[source]
        yield from node.inputs if node.form == "tuple" else (source,)


def _results(graph: DataflowGraph, index: NodeIndex) -> Iterator[NodeIndex]:
    if graph.nodes[index].is_tuple:
        yield from (u for u in graph.users[index] if graph.nodes[u].form == "projection")
    else:
        yield index
