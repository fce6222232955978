"""A placement for other programs: as metadata of ONNX nodes, and as GraphML."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from typing import Any

from collage_engine.model.networkx_graph import networkx_graph
from collage_engine.records.graph import GraphRecord
from collage_engine.records.placement import Partition, Placement

LAYER_SETTINGS = "session.layer_assignment_settings"
"""ONNX Runtime's session option that says which layers go to which device. A layer is what
``layer_ann`` says in a node's metadata."""


def node_annotations(placement: Placement, reasons: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the metadata of each ONNX node by the node's name.

    Names that nodes in several partitions have are left out.

    Args:
        placement: The placement.
        reasons: By partition why it runs where it does.
    """
    owners = Counter(name for part in placement.partitions for name in part.onnx_nodes)
    found: dict[str, dict[str, str]] = {}
    for part in placement.partitions:
        us = part.estimated_us if part.in_place_us is None else part.in_place_us
        about = {
            "layer_ann": _layer(part),
            "collage.toolchain": part.instance,
            "collage.partition": part.id,
            "collage.cost_us": "" if us is None else f"{us:.3f}",
            "collage.reason": reasons.get(part.id, ""),
        }
        about = {key: text for key, text in about.items() if text}
        found.update({name: about for name in part.onnx_nodes if owners[name] == 1})
    return found


def layer_settings(placement: Placement) -> str:
    """Return the value of ``LAYER_SETTINGS``: ``cpu(=tvm_cpu, =onednn_cpu); cuda(=cublas_cuda)``.

    ONNX Runtime has no other toolchains: what it keeps of a placement is the split among devices.
    """
    layers: dict[str, dict[str, None]] = {}
    for part in placement.partitions:
        layers.setdefault(_device(part), {})[f"={_layer(part)}"] = None
    return "; ".join(f"{device}({', '.join(names)})" for device, names in layers.items())


def _layer(part: Partition) -> str:
    """Name the layer of a partition, without what separates layers in the setting."""
    return f"{part.toolchain}_{_device(part)}"


def _device(part: Partition) -> str:
    return part.device.partition(":")[0]


def placement_graphml(graph: GraphRecord, placement: Placement | None) -> bytes:
    """Return the graph of ``networkx_graph`` as a GraphML file.

    GraphML knows numbers, truth values and strings only: what is not known is left out, and
    several values are written with commas (``1x64x56x56,1x64x56x56`` for the shapes of a tuple).
    """
    import networkx as nx

    view = networkx_graph(graph, placement)
    plain: nx.DiGraph[str] = nx.DiGraph(
        **{name: _plain(value) for name, value in view.graph.items()}
    )
    for index, attributes in view.nodes(data=True):
        plain.add_node(f"n{index}", **_known(attributes))
    for source, target, attributes in view.edges(data=True):
        plain.add_edge(f"n{source}", f"n{target}", **_known(attributes))
    file = io.BytesIO()
    nx.write_graphml_xml(plain, file)
    return file.getvalue()


def _known(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in attributes.items() if value is not None}


def _plain(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    return ",".join("x".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in value)
