"""Renames values that the branches of an ONNX node (If, Loop, Scan) read from around it.

ONNX does not list them among the node's inputs. A draft does, so that they are neither dropped
nor lost when they are renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy

from onnx import AttributeProto, GraphProto, NodeProto


def with_branches(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes, and those of their branches."""
    for node in nodes:
        yield node
        for graph in branches([node]):
            yield from with_branches(graph.node)


def branches(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    """Yield the branches of nodes, without those within them."""
    attributes = (a for node in nodes for a in node.attribute)
    return (graph for a in attributes for graph in ([a.g] if a.HasField("g") else a.graphs))


def outer_values(node: NodeProto) -> tuple[str, ...]:
    """Return values that a node's branches read and do not make, in order of their first use."""
    values: dict[str, None] = {}
    for attribute in node.attribute:
        if attribute.HasField("g"):
            values |= dict.fromkeys(_free(attribute.g))
    return tuple(values)


def _free(graph: GraphProto) -> list[str]:
    own = {i.name for i in graph.input} | {i.name for i in graph.initializer} | {""}
    read: list[str] = []
    for node in graph.node:
        read += [v for v in (*node.input, *outer_values(node)) if v not in own]
        own.update(node.output)
    return read + [o.name for o in graph.output if o.name not in own]


def with_outer_values(attribute: AttributeProto, names: Mapping[str, str]) -> AttributeProto:
    """Return the attribute; a branch reads the values from outside by other names."""
    if not attribute.HasField("g") or all(old == new for old, new in names.items()):
        return attribute
    copy = deepcopy(attribute)
    _rename(copy.g, names)
    return copy


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    own = {i.name for i in graph.input} | {i.name for i in graph.initializer}
    own.update(o for node in graph.node for o in node.output)
    names = {old: new for old, new in names.items() if old not in own}
    for node in graph.node:
        for number, value in enumerate(node.input):
            node.input[number] = names.get(value, value)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, names)
    for output in graph.output:
        output.name = names.get(output.name, output.name)
