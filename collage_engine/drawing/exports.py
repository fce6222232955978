"""The graph and a placement for other programs: as ``networkx`` and GraphML."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from collage_engine.records.graph import GraphRecord, Value, ValueIndex
from collage_engine.records.placement import Placement

if TYPE_CHECKING:
    import networkx as nx


def networkx_graph(record: GraphRecord, placement: Placement | None = None) -> nx.DiGraph[int]:
    """Return a directed graph of operators, and of the parameters and constants that they read.

    Its nodes are keyed by operator number, those of parameters and constants by value index.

    Args:
        record: The dataflow graph.
        placement: Where its operators run.

    Returns:
        A graph whose nodes have the attributes ``form`` (``call``, ``parameter`` or ``constant``),
        ``operator`` (Relax name, empty for what is no call), ``number`` (operator number, None for
        what is no call), ``name``, ``onnx_value`` (name of the first value in the user's file),
        ``dtypes``, ``shapes`` (of each value), ``bytes`` and ``is_output``. Calls also have
        ``kind`` (of fusion), ``onnx_nodes``, ``onnx_type`` and ``onnx_node`` (names, type and
        number of the ONNX node that they are a part of); with a placement also ``partition``,
        ``toolchain``, ``estimated_us`` and ``in_place_us`` (microseconds of the whole partition;
        None when unknown). An edge leads to what reads a value and has ``bytes`` and ``arguments``
        (the places at which values are read).
    """
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph(inputs=record.input_names, outputs=record.output_names)
    parts, outputs = placement.partitions if placement is not None else (), set(record.outputs)
    where = {number: part for part in parts for number in part.nodes}
    for value in (*record.parameters, *record.constants):
        form = "constant" if value.constant else "parameter"
        number = {"operator": "", "number": None, "name": value.name}
        graph.add_node(value.index, form=form, **number, **_values((value,), outputs))
    for node in record.nodes:
        attributes = {
            "form": "call",
            "operator": node.op,
            "kind": node.kind,
            "number": node.index,
            "name": node.name,
            "onnx_nodes": node.onnx_nodes,
            "onnx_type": node.onnx_type,
            "onnx_node": node.onnx_node if node.onnx_node >= 0 else None,
            **_values(node.results, outputs),
        }
        if node.index in where:
            part = where[node.index]
            attributes |= {
                "partition": part.id,
                "toolchain": part.instance,
                "estimated_us": part.estimated_us,
                "in_place_us": part.in_place_us,
            }
        graph.add_node(node.index, **attributes)
        places: dict[int, list[int]] = {}
        for position, index in enumerate(node.inputs):
            producer = record.values[index].producer
            places.setdefault(index if producer is None else producer, []).append(position)
        for source, arguments in places.items():
            read = {node.inputs[position] for position in arguments}
            size = sum(record.values[index].type.bytes for index in read)
            graph.add_edge(source, node.index, bytes=size, arguments=tuple(arguments))
    return graph


def _values(values: Sequence[Value], outputs: set[ValueIndex]) -> dict[str, Any]:
    """Return what a node of the exported graph says of its values."""
    return {
        "onnx_value": values[0].onnx_value,
        "dtypes": tuple(value.type.dtype for value in values),
        "shapes": tuple(value.type.shape for value in values),
        "bytes": sum(value.type.bytes for value in values),
        "is_output": any(value.index in outputs for value in values),
    }


def placement_graphml(graph: GraphRecord, placement: Placement | None) -> bytes:
    """Return the graph of ``networkx_graph`` as a GraphML file.

    GraphML knows numbers, truth values and strings only: what is not known is left out, and
    several values are written with commas (``1x64x56x56,1x64x56x56`` for the shapes of a tuple).
    """
    import networkx as nx

    view = networkx_graph(graph, placement)
    nodes = (attributes for _, attributes in view.nodes(data=True))
    edges = (attributes for *_, attributes in view.edges(data=True))
    for attributes in (view.graph, *nodes, *edges):
        for name in [name for name, value in attributes.items() if value is None]:
            del attributes[name]
        attributes.update({name: _plain(value) for name, value in attributes.items()})
    file = io.BytesIO()
    nx.write_graphml_xml(nx.relabel_nodes(view, "n{}".format), file)
    return file.getvalue()


def _plain(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    return ",".join("x".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in value)
