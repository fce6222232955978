"""The GraphML that a report writes is read back by networkx with what it says of the placement."""

from __future__ import annotations

import io

import networkx as nx

from collage_engine.drawing.exports import placement_graphml
from collage_engine.drawing.report import render
from collage_engine.records.graph import GraphRecord, Node, TensorType
from tests.unit.test_session import a_document


def test_nodes_and_edges_carry_names_toolchain_cost_and_bytes():
    graph = nx.read_graphml(io.BytesIO(render(a_document(), "graphml")))
    assert set(graph) == {"n0", "n1"}
    assert graph.nodes["n1"] == {
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
    assert "toolchain" not in graph.nodes["n0"]
    assert graph.edges["n0", "n1"] == {"bytes": 16, "arguments": "0"}
    assert graph.graph["inputs"] == "x" and graph.graph["outputs"] == "y"


def test_several_types_and_no_placement():
    kinds = (TensorType((2, 3), "float32"), TensorType((), "int64"))
    record = GraphRecord(
        nodes=(Node(index=0, form="call", op="split", types=kinds, is_tuple=True, name="ä<&"),),
        inputs=(),
        outputs=(0,),
    )
    graph = nx.read_graphml(io.BytesIO(placement_graphml(record, None)))
    assert graph.nodes["n0"]["shapes"] == "2x3," and graph.nodes["n0"]["bytes"] == 32
    assert graph.nodes["n0"]["name"] == "ä<&"
