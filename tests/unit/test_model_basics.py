"""Post-dominators, einsum plans, op kinds and random inputs: no TVM needed."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.einsum import matmul_plan
from collage_engine.model.op_pattern import kind_of
from collage_engine.model.post_dominators import post_dominators
from collage_engine.model.random_inputs import random_inputs
from collage_engine.records.graph import GraphRecord, Node, TensorType


def _paths_post_dominator(inputs: list[list[int]], outputs: set[int], node: int) -> int | None:
    """Nearest node on every path from ``node`` to the outside, by listing the paths."""
    users = [[u for u, sources in enumerate(inputs) if n in sources] for n in range(len(inputs))]

    def paths(at: int) -> list[list[int]]:
        found = [[*p] for user in users[at] for p in ([user, *rest] for rest in paths(user))]
        return [*found, []] if at in outputs or not users[at] else found

    every = paths(node)
    common = set(every[0]).intersection(*every[1:])
    return min(common, default=None)


@pytest.mark.parametrize("seed", range(30))
def test_post_dominators_are_those_of_the_path_definition(seed: int) -> None:
    dice = random.Random(seed)
    inputs = [dice.sample(range(n), min(n, dice.choice([1, 1, 2, 3]))) for n in range(9)]
    read = set(itertools.chain(*inputs))
    outputs = {n for n in range(9) if n not in read} | {dice.randrange(9)}
    found = post_dominators(inputs, outputs)
    for node in range(9):
        assert found[node] == _paths_post_dominator(inputs, outputs, node), (inputs, outputs, node)


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bij,bkj->kbi", [(2, 3, 4), (2, 5, 4)]),
        ("abc,cd->dab", [(2, 3, 4), (4, 5)]),
        ("ij,ij->", [(3, 4), (3, 4)]),
    ],
)
def test_einsum_as_matmul_gives_the_same_numbers(
    equation: str, shapes: list[tuple[int, ...]]
) -> None:
    dice = np.random.default_rng(0)
    a, b = (dice.standard_normal(s) for s in shapes)
    plan = matmul_plan(equation, shapes)
    assert plan is not None
    product = a.transpose(plan.left).reshape(plan.left_shape) @ b.transpose(plan.right).reshape(
        plan.right_shape
    )
    result = product.reshape(plan.shape).transpose(plan.order)
    np.testing.assert_allclose(result, np.einsum(equation, a, b), rtol=1e-12)


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ii->i", [(3, 3)]),
        ("ij,jk", [(3, 4), (4, 5)]),
        ("...j,jk->...k", [(3, 4), (4, 5)]),
        ("iij,jk->ik", [(3, 3, 4), (4, 5)]),
        ("ij,kl->ik", [(3, 4), (5, 6)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ij,jk->ik", [(3, 1), (4, 5)]),
    ],
)
def test_einsum_that_is_no_matmul_has_no_plan(equation: str, shapes: list) -> None:
    assert matmul_plan(equation, shapes) is None


def test_kinds_are_relays() -> None:
    expected = {
        "add": "broadcast",
        "nn.relu": "elementwise",
        "reshape": "injective",
        "mean": "reduction",
        "nn.conv2d": "anchor",
        "nn.max_pool2d": "anchor",
        "concat": "injective",
        "nn.layer_norm": "anchor",
        "topk": "opaque",
        "matmul": "anchor",
        "nn.softmax": "anchor",
    }
    assert {op: kind_of(op) for op in expected} == expected
    assert kind_of("no.such.op") is None


def _embedding() -> DataflowGraph:
    nodes = (
        Node(index=0, form="parameter", types=(TensorType((2, 3), "int64"),)),
        Node(index=1, form="parameter", types=(TensorType((2, 3), "int64"),)),
        Node(index=2, form="constant", types=(TensorType((7, 4), "float32"),)),
        Node(index=3, form="call", op="reshape", inputs=(0,), types=(TensorType((6,), "int64"),)),
        Node(
            index=4,
            form="call",
            op="take",
            inputs=(2, 3),
            attributes={"axis": 0},
            types=(TensorType((6, 4), "float32"),),
            is_output=True,
        ),
    )
    return DataflowGraph(GraphRecord(nodes=nodes, inputs=(0, 1), outputs=(4,)))


def test_random_integers_stay_within_the_table_they_index() -> None:
    graph = _embedding()
    inputs = tuple((n, graph.nodes[i].type) for n, i in (("ids", 0), ("mask", 1)))
    seen: set[int] = set()
    for seed in range(20):
        made = random_inputs(graph, inputs, seed)
        seen |= set(made["ids"].ravel().tolist())
        assert set(made["mask"].ravel().tolist()) <= {0, 1}
    assert seen == set(range(7))
    again = random_inputs(graph, inputs, 3)
    np.testing.assert_array_equal(again["ids"], random_inputs(graph, inputs, 3)["ids"])
