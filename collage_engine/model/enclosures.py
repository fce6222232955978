"""Finds enclosures: ONNX nodes that have to run together, because of the values between them.

Tensors of a known size and of an element type that TVM has can pass from one partition to the
next. Sequences, optional values, texts, numbers of less than a byte and values whose size depends
on the data cannot: who makes such a value and all who read it are enclosed in one operator of the
graph, with everything that lies on a path between them. So no candidate can cut there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy

from onnx import GraphProto, NodeProto, TensorProto

from collage_engine.model.onnx_external import MAPPED_TYPES
from collage_engine.model.onnx_outer_values import outer_values

CARRIED = MAPPED_TYPES | {TensorProto.BOOL}
"""Element types of tensors that can pass from one partition to the next."""
AT_BORDER = CARRIED | {TensorProto.STRING}
"""Element types of the inputs and outputs of a model."""
OPEN_RESULTS = {"Compress", "NonMaxSuppression", "NonZero", "Unique"}
"""Operators of the standard whose results always have a size that depends on the data."""


def held_constants(graph: GraphProto) -> dict[str, TensorProto]:
    """Return the constants whose element type cannot pass between partitions, by name."""
    return {t.name: t for t in graph.initializer if t.data_type not in CARRIED}


def with_dependent(
    nodes: Iterable[NodeProto],
    known_open: Collection[str],
    shapes: Mapping[str, tuple[int, tuple[int, ...] | None]],
) -> set[str]:
    """Open values, with all that are made from them and have no size that could be inferred.

    Args:
        nodes: Of the model, in an order in which they can run.
        known_open: Values that are known to be open.
        shapes: Element type and shape of values, None where a size is not known.
    """
    open_values = set(known_open)
    for node in nodes:
        reads = (*node.input, *outer_values(node))
        makes = node.op_type in OPEN_RESULTS and not node.domain
        if makes or not open_values.isdisjoint(reads):
            open_values |= {o for o in node.output if o and shapes.get(o, (0, None))[1] is None}
    return open_values


def enclose(graph: GraphProto, values: Collection[str]) -> list[list[NodeProto]]:
    """Order a graph's nodes, in place, so that those of each enclosure stand together.

    Args:
        graph: The cleaned model's.
        values: Those that must not pass between partitions.

    Returns:
        The enclosures of more than one node, each in an order in which its nodes can run.
    """
    if not values:
        return []
    import networkx as nx  # takes 0.2 s to import

    nodes = list(graph.node)
    producer = {o: i for i, node in enumerate(nodes) for o in node.output if o}
    edges: nx.DiGraph[int] = nx.DiGraph()
    edges.add_nodes_from(range(len(nodes)))
    for i, node in enumerate(nodes):
        for value in (*node.input, *outer_values(node)):
            if value in producer:
                edges.add_edge(producer[value], i)
                if value in values:
                    edges.add_edge(i, producer[value])
    # A maker and its readers reach each other over an edge back, so that they, and whatever lies on
    # a path between them, are one strongly connected component.
    components = nx.condensation(edges)
    members = {label: sorted(held) for label, held in components.nodes(data="members")}
    if len(members) == len(nodes):
        return []
    order = list(nx.lexicographical_topological_sort(components, key=lambda c: members[c][0]))
    copies = deepcopy([nodes[i] for label in order for i in members[label]])
    del graph.node[:]
    graph.node.extend(copies)
    ordered, index, enclosures = list(graph.node), 0, []
    for size in (len(members[label]) for label in order):
        if size > 1:
            enclosures.append(ordered[index : index + size])
        index += size
    return enclosures
