"""Finds enclosures: ONNX nodes that have to run together, because of the values between them.

Tensors of a known size and of an element type that TVM has can pass from one partition to the
next. Sequences, optional values, texts, numbers of less than a byte and values whose size depends
on the data cannot: who makes such a value and all who read it are enclosed in one operator of the
graph, with everything that lies on a path between them. So no candidate can cut there.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto

from collage_engine.model.onnx_outer_values import outer_values

CARRIED = {
    TensorProto.BFLOAT16,
    TensorProto.BOOL,
    TensorProto.DOUBLE,
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT16,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.INT8,
    TensorProto.UINT16,
    TensorProto.UINT32,
    TensorProto.UINT64,
    TensorProto.UINT8,
}
"""Element types of tensors that can pass from one partition to the next."""
AT_BORDER = CARRIED | {TensorProto.STRING}
"""Element types of the inputs and outputs of a model."""
OPEN_RESULTS = {"Compress", "NonMaxSuppression", "NonZero", "Unique"}
"""Operators of the standard whose results always have a size that depends on the data."""


def held_constants(graph: GraphProto) -> dict[str, TensorProto]:
    """Returns the constants whose element type cannot pass between partitions, by name."""
    return {t.name: t for t in graph.initializer if t.data_type not in CARRIED}


def with_dependent(
    nodes: Iterable[NodeProto],
    found: Collection[str],
    shapes: Mapping[str, tuple[int, tuple[int, ...] | None]],
) -> set[str]:
    """Open values, with all that are made from them and have no size that could be inferred.

    Args:
        nodes: Of the model, in an order in which they can run.
        found: Values that are known to be open.
        shapes: Element type and shape of values, None where a size is not known.
    """
    open_values = set(found)
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
    nodes = list(graph.node)
    producer = {o: i for i, node in enumerate(nodes) for o in node.output if o}
    reads = [
        {producer[v] for v in (*node.input, *outer_values(node)) if v in producer} for node in nodes
    ]
    enclosure = _components(nodes, reads, producer, values)
    members: dict[int, list[int]] = {}
    for place, label in enumerate(enclosure):
        members.setdefault(int(label), []).append(place)
    if len(members) == len(nodes):
        return []
    order = _topological(members, enclosure, reads)
    copies = [NodeProto() for _ in nodes]
    sources = [nodes[i] for label in order for i in members[label]]
    for copy, source in zip(copies, sources, strict=True):
        copy.CopyFrom(source)
    sizes = [len(members[label]) for label in order]
    del graph.node[:]
    graph.node.extend(copies)
    ordered, place, enclosures = list(graph.node), 0, []
    for size in sizes:
        if size > 1:
            enclosures.append(ordered[place : place + size])
        place += size
    return enclosures


def _components(
    nodes: list[NodeProto],
    reads: list[set[int]],
    producer: Mapping[str, int],
    values: Collection[str],
) -> np.ndarray:
    """Return the enclosure of each node by number; a node alone has one of its own.

    A maker and its readers reach each other over an edge back, so that they, and whatever lies on
    a path between them, are one strongly connected component.
    """
    from scipy.sparse import csr_matrix  # takes 0.1 s to import
    from scipy.sparse.csgraph import connected_components

    edges = {(source, i) for i, sources in enumerate(reads) for source in sources}
    for i, node in enumerate(nodes):
        for value in (*node.input, *outer_values(node)):
            if value in values and value in producer:
                edges.add((i, producer[value]))
    rows = [a for a, _ in edges]
    columns = [b for _, b in edges]
    size = len(nodes)
    matrix = csr_matrix((np.ones(len(edges), np.int8), (rows, columns)), shape=(size, size))
    _, labels = connected_components(matrix, directed=True, connection="strong")
    return np.asarray(labels)


def _topological(
    members: Mapping[int, list[int]], enclosure: np.ndarray, reads: list[set[int]]
) -> list[int]:
    """Returns the enclosures in an order in which they can run, close to the file's order."""
    waits: dict[int, set[int]] = {}
    followers: dict[int, set[int]] = {label: set() for label in members}
    for label, places in members.items():
        before = {int(enclosure[s]) for i in places for s in reads[i]} - {label}
        waits[label] = before
        for other in before:
            followers[other].add(label)
    ready = [(places[0], label) for label, places in members.items() if not waits[label]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, label = heapq.heappop(ready)
        order.append(label)
        for follower in followers[label]:
            waits[follower].discard(label)
            if not waits[follower]:
                heapq.heappush(ready, (members[follower][0], follower))
    return order
