"""The GraphML that a report writes is read back by networkx with what it says of the placement."""

from __future__ import annotations

import io

import msgspec
import networkx as nx

from collage_engine.drawing.exports import placement_graphml
from collage_engine.drawing.report import render
from collage_engine.records.graph import TensorType
from tests.support.graphs import GraphBuilder
from tests.unit.test_session import a_document


def test_nodes_and_edges_carry_names_toolchain_cost_and_bytes():
    graph = nx.read_graphml(io.BytesIO(render(a_document(), "graphml")))
    assert set(graph) == {"n0", "n1"}
    assert graph.nodes["n0"] == {
        "form": "call",
        "operator": "nn.relu",
        "kind": "elementwise",
        "number": 0,
        "name": "relu",
        "onnx_nodes": "relu",
        "onnx_type": "",
        "dtypes": "float32",
        "shapes": "1x4",
        "bytes": 16,
        "is_output": True,
        "partition": "p0",
        "toolchain": "onednn[k=v]",
        "estimated_us": 3.0,
    }
    assert "toolchain" not in graph.nodes["n1"]
    assert graph.edges["n1", "n0"] == {"bytes": 16, "arguments": "0"}
    assert graph.graph["inputs"] == "x" and graph.graph["outputs"] == "y"


def test_several_types_and_no_placement():
    b = GraphBuilder((2, 3))
    split = b.call("split", results=2, name="ä<&")
    whole, rest = b.nodes[split].results
    number = msgspec.structs.replace(rest, type=TensorType((), "int64"))
    b.nodes[split] = msgspec.structs.replace(b.nodes[split], results=(whole, number))
    record = b.build(split).record
    graph = nx.read_graphml(io.BytesIO(placement_graphml(record, None)))
    assert graph.nodes["n0"]["shapes"] == "2x3," and graph.nodes["n0"]["bytes"] == 32
    assert graph.nodes["n0"]["name"] == "ä<&"
