"""Writes the graph and its placement as GraphML, for Gephi, yEd, Cytoscape and networkx."""

from __future__ import annotations

import io
from typing import Any

from collage_engine.model.networkx_graph import networkx_graph
from collage_engine.records.graph import GraphRecord
from collage_engine.records.placement import Placement


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
