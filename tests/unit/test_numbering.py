"""A type checker keeps node indices and operator numbers apart; both are plain integers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mypy import api

from collage_engine.model.index_set import (
    NO_NODES,
    first,
    members,
    node_set,
    one_node,
    operator_set,
)
from tests.support.graphs import GraphBuilder

ROOT = Path(__file__).resolve().parents[2]

RIGHT = """
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members, node_set, one_node
from collage_engine.records.numbering import NodeIndex, OperatorNumber, OperatorSet

def right(graph: DataflowGraph, number: OperatorNumber, operators: OperatorSet) -> bool:
    index: NodeIndex = graph.operators[number]
    nodes = graph.to_indices(members(operators)) | one_node(index)
    return bool(nodes >> index & 1) and graph.operator_number[index] == number
"""
WRONG = {
    "an operator number where a node index is wanted": "graph.producer(number)",
    "a set of operators where a set of nodes is wanted": "graph.close(operators)",
    "a union of both": "nodes | operators",
    "a member of the other numbering": "nodes >> number",
    "an integer that says nothing": "graph.close(5)",
    "node indices as operator numbers": "graph.to_indices(members(nodes))",
}


def check(text: str, folder: Path) -> str:
    """What mypy finds in a module of this text."""
    path = folder / "module.py"
    path.write_text(text)
    found, failure, _ = api.run(
        [
            str(path),
            "--ignore-missing-imports",
            "--follow-imports=silent",
            f"--cache-dir={folder / 'cache'}",
            f"--python-executable={sys.executable}",
        ]
    )
    assert not failure
    return found


def test_the_checker_refuses_what_mixes_the_numberings(tmp_path, monkeypatch):
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    assert "Success" in check(RIGHT, tmp_path)
    lines = [
        "from collage_engine.model.dataflow_graph import DataflowGraph",
        "from collage_engine.model.index_set import members",
        "from collage_engine.records.numbering import NodeSet, OperatorNumber, OperatorSet",
        "def wrong(",
        "    graph: DataflowGraph, nodes: NodeSet, operators: OperatorSet, number: OperatorNumber",
        ") -> None:",
    ]
    start = len(lines) + 1
    found = check("\n".join([*lines, *(f"    {line}" for line in WRONG.values())]), tmp_path)
    for line, what in enumerate(WRONG, start):
        assert f"module.py:{line}: error" in found, what


def test_sets_are_plain_integers():
    assert node_set([]) == NO_NODES == 0
    assert node_set([3, 5, 3]) == operator_set([5, 3]) == 0b101000
    assert one_node(70) == 1 << 70
    assert list(members(node_set([0, 64, 200]))) == [0, 64, 200]
    assert first(node_set([9, 4])) == 4


@pytest.mark.parametrize("glue", [False, True])
def test_the_graph_converts_both_ways(glue):
    b = GraphBuilder()
    x = b.parameter()
    if glue:
        split = b.call("split", x, fields=2)
        last = b.call("concat", b.tuple(b.projection(split, 0), b.projection(split, 1)))
    else:
        last = b.call("exp", b.call("abs", x))
    graph = b.build(last)
    assert graph.to_operators(graph.to_indices((0, 1))) == (0, 1)
    assert [graph.operator_number[i] for i in graph.operators] == [0, 1]
    assert graph.nodes[graph.operators[1]].index == last
