"""Gives the dataflow graph as a ``networkx`` graph, for analysis and for export to other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collage_engine.records.graph import GraphRecord, NodeIndex

if TYPE_CHECKING:
    import networkx as nx

    from collage_engine.records.placement import Partition, Placement


def networkx_graph(record: GraphRecord, placement: Placement | None = None) -> nx.DiGraph[int]:
    """Return a directed graph with one node per node of the record, keyed by node index.

    Args:
        record: The dataflow graph.
        placement: Where its operators run. Partitions hold operators; constants, tuples and
            projections are in none.

    Returns:
        A graph whose nodes have the attributes ``form``, ``operator`` (Relax name, empty for what
        is no call), ``kind`` (of fusion), ``number`` (operator number, None for what is no call),
        ``name``, ``onnx_nodes`` and ``onnx_value`` (names in the user's file), ``onnx_type`` and
        ``onnx_node`` (type and number of the ONNX node that a call is a part of), ``dtypes`` and
        ``shapes`` (several for a tuple), ``bytes`` and ``is_output``; with a placement the calls
        also have ``partition``, ``toolchain``, ``estimated_us`` and ``in_place_us`` (microseconds
        of the whole partition; None when unknown). An edge leads from a value to what reads it and
        has ``bytes`` and ``arguments`` (the places at which it is read).
    """
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph(inputs=record.input_names, outputs=record.output_names)
    where, outputs = _partitions(placement), set(record.outputs)
    number = 0
    for node in record.nodes:
        call = node.form == "call"
        attributes: dict[str, Any] = {
            "form": node.form,
            "operator": node.op,
            "kind": node.kind,
            "number": number if call else None,
            "name": node.name,
            "onnx_nodes": node.onnx_nodes,
            "onnx_type": node.onnx_type,
            "onnx_node": node.onnx_node if node.onnx_node >= 0 else None,
            "onnx_value": node.onnx_value,
            "dtypes": tuple(kind.dtype for kind in node.types),
            "shapes": tuple(kind.shape for kind in node.types),
            "bytes": sum(kind.bytes for kind in node.types),
            "is_output": node.index in outputs,
        }
        if call and number in where:
            part = where[number]
            attributes |= {
                "partition": part.id,
                "toolchain": part.instance,
                "estimated_us": part.estimated_us,
                "in_place_us": part.in_place_us,
            }
        number += call
        graph.add_node(node.index, **attributes)
        places: dict[NodeIndex, list[int]] = {}
        for place, source in enumerate(node.inputs):
            places.setdefault(source, []).append(place)
        for source, arguments in places.items():
            size = graph.nodes[source]["bytes"]
            graph.add_edge(source, node.index, bytes=size, arguments=tuple(arguments))
    return graph


def _partitions(placement: Placement | None) -> dict[int, Partition]:
    """Return the partition of each operator number."""
    if placement is None:
        return {}
    return {number: part for part in placement.partitions for number in part.nodes}
