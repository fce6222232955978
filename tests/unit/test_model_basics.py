"""Post-dominators, einsum plans, op kinds and random inputs: no TVM needed.

Each clean-up pass alone: what it guarantees, and where the user's node names go.
"""

from __future__ import annotations

import io
import random
import subprocess
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage_engine.drawing.exports import networkx_graph, placement_graphml
from collage_engine.model import onnx_cleanup as passes
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.draft import Draft
from collage_engine.model.einsum import matmul_plan
from collage_engine.model.random_inputs import RANGES, random_inputs
from collage_engine.partition.fuse_ops import post_dominators
from collage_engine.records.graph import TensorType, members
from collage_engine.records.placement import Placement
from collage_engine.support.errors import ModelError
from tests.support.graphs import GraphBuilder
from tests.support.runs import partition


def _users(inputs: list[list[int]]) -> list[list[int]]:
    return [[u for u, sources in enumerate(inputs) if n in sources] for n in range(len(inputs))]


@pytest.mark.parametrize("seed", range(5))
def test_post_dominators_are_those_that_networkx_finds(seed: int) -> None:
    dice = random.Random(seed)
    size = 300
    inputs = [
        sorted({n - 1 - dice.randrange(min(n, 7)) for _ in range(2)}) if n else []
        for n in range(size)
    ]
    outputs = {dice.randrange(size) for _ in range(3)}
    users = _users(inputs)
    reverse = nx.DiGraph((n, s) for n, sources in enumerate(inputs) for s in sources)
    reverse.add_edges_from((size, n) for n in range(size) if n in outputs or not users[n])
    expected = nx.immediate_dominators(reverse, size)
    found = post_dominators(users, outputs.__contains__, range(size))
    assert [size if p is None else p for p in found.parent] == [expected[n] for n in range(size)]
    for node, parent in enumerate(found.parent):
        assert found.depth[node] == (0 if parent is None else found.depth[parent] + 1)


def plain(value: object) -> object:
    """Write a value as GraphML can hold it."""
    if not isinstance(value, tuple):
        return value
    return ",".join("x".join(map(str, v)) if isinstance(v, tuple) else v for v in value)


def test_the_graph_as_a_networkx_graph_and_as_graphml() -> None:
    b = GraphBuilder((1, 4))
    x, weight = b.parameter("image"), b.constant((4, 4))
    matmul = b.call("matmul", x, weight)
    split = b.call("split", matmul, results=2)
    left, right = b.result(split, 0), b.result(split, 1)
    both = b.call("add", b.call("multiply", left, right), right, name="ä<&")
    graph = b.build(both)
    placement = Placement(
        partitions=(partition(0, config={"threads": "2"}, us=3.5),),
        estimated_us=4.0,
    )
    view = networkx_graph(graph.record, placement)
    assert set(view) == {b.index(x), b.index(weight), *graph.operators}
    assert nx.is_directed_acyclic_graph(view)
    parameter = view.nodes[b.index(x)]
    assert parameter["form"] == "parameter" and parameter["number"] is None
    assert view.nodes[matmul]["operator"] == "matmul" and view.nodes[matmul]["number"] == 0
    assert view.nodes[matmul]["toolchain"] == "onednn[threads=2]"
    assert view.nodes[matmul]["partition"] == "p0" and view.nodes[matmul]["estimated_us"] == 3.5
    assert "toolchain" not in view.nodes[both] and view.nodes[both]["is_output"]
    assert view.edges[b.index(weight), matmul] == {"bytes": 64, "arguments": (1,)}
    assert view.edges[split, both - 1] == {"bytes": 32, "arguments": (0, 1)}
    assert view.edges[split, both] == {"bytes": 16, "arguments": (1,)}
    assert "partition" not in networkx_graph(graph.record).nodes[matmul]
    # GraphML has the same, but what is not known; several values are written with commas.
    written = nx.read_graphml(io.BytesIO(placement_graphml(graph.record, placement)))
    assert len(written) == len(view) and written.size() == view.size()
    for node, about in view.nodes.items():
        known = {name: plain(value) for name, value in about.items() if value is not None}
        assert written.nodes[f"n{node}"] == known
    assert written.edges[f"n{split}", f"n{both - 1}"] == {"bytes": 32, "arguments": "0,1"}
    assert written.nodes[f"n{split}"]["shapes"] == "1x4,1x4"
    # What networkx says of the order and of the pieces is what the graph's own sets say.
    for operator in graph.operators:
        assert nx.descendants(view, operator) == set(members(graph.downstream[operator]))


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


def _embedding() -> DataflowGraph:
    b = GraphBuilder()
    ids = b.parameter("ids", (2, 3), "int64")
    b.parameter("mask", (2, 3), "int64")
    flat = b.call("reshape", ids, shape=(6,), dtype="int64")
    return b.build(b.call("take", b.constant((7, 4)), flat, shape=(6, 4), axis=0))


def _inputs(graph: DataflowGraph) -> tuple[tuple[str, TensorType], ...]:
    return tuple((value.name, value.type) for value in graph.record.parameters)


def _drawn(shape: tuple[int, ...], numbers: str = "normal") -> np.ndarray:
    b = GraphBuilder()
    graph = b.build(b.parameter("x", shape))
    return random_inputs(graph, _inputs(graph), 5, numbers)["x"]


def test_random_floats_come_from_the_range_that_is_asked_for() -> None:
    found = {numbers: _drawn((40, 50), numbers) for numbers in RANGES}
    assert found["normal"].min() < -2 < 2 < found["normal"].max()
    assert found["positive"].min() >= 0 and found["positive"].max() > 2
    assert 0 < found["0 to 1"].min() < 0.1 < 0.9 < found["0 to 1"].max() < 1
    assert 1 <= found["above 1"].min() < found["above 1"].max()
    assert 0 < np.abs(found["near 0"]).max() < 0.1
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}


def test_nothing_is_divided_by_zero() -> None:
    """An integer divisor of 0 ends a process, or is refused by one runtime and not by another."""
    b = GraphBuilder((4, 50), "int64")
    first, second, third = b.parameter("a"), b.parameter("b", dtype="int8"), b.parameter("c")
    turned = b.call("permute_dims", first, shape=(50, 4))
    quotient = b.call("divide", third, turned, shape=(50, 4))
    graph = b.build(quotient, b.call("floor_mod", second, second, dtype="int8"))
    made = random_inputs(graph, _inputs(graph), 1)
    divisors = {*range(-8, 0), *range(1, 9)}
    assert set(made["a"].ravel().tolist()) == divisors == set(made["b"].ravel().tolist())
    assert made["c"].min() < -(2**40) and made["c"].max() > 2**40


@pytest.mark.parametrize(
    ("dtype", "operators", "bits"),
    [
        ("int32", ["floor_mod"], 31),
        ("int64", ["add", "permute_dims", "maximum"], 62),
        ("int32", ["add", "multiply"], 30),
        ("int32", ["add", "cumsum"], 23),
        ("int64", ["subtract", "equal"], 62),
        ("int64", ["subtract", "astype"], 1),
        ("int64", ["subtract", "onnx:Unknown"], 1),
        ("uint8", ["subtract"], 7),
        ("uint64", ["maximum"], 64),
    ],
)
def test_whole_numbers_are_as_large_as_nothing_overflows(
    dtype: str, operators: list[str], bits: int
) -> None:
    """A library that computes them in float32, or in 32 bits, is right about small ones."""
    b = GraphBuilder((4, 50), dtype)
    value, two = b.parameter("a"), b.constant((4, 50), largest=2)
    given = {"astype": "float32", "equal": "bool"}
    for op in operators:
        value = b.call(op, value, two, dtype=given.get(op, dtype))
    graph = b.build(value)
    drawn = random_inputs(graph, _inputs(graph), 1)["a"]
    assert drawn.dtype == dtype and 2**bits * 0.4 < abs(int(drawn.max())) + 1 <= 2**bits
    signed = dtype.startswith("int") and bits > 1
    assert drawn.min() < -(2 ** (bits - 4)) if signed else drawn.min() == 0


@pytest.mark.parametrize("depth", [1, 4, 100])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_products_and_powers_of_drawn_numbers_are_exact(dtype: str, depth: int) -> None:
    builder = GraphBuilder((9, 9), dtype)
    left, right = builder.parameter("a", (9, depth)), builder.parameter("b", (depth, 9))
    product = builder.call("matmul", left, right)
    graph = builder.build(builder.call("power", product, builder.parameter("c")))
    made = random_inputs(graph, _inputs(graph), 1)
    a, b, c = (values.astype(object) for values in made.values())
    largest = max(abs(value) for value in ((a @ b) ** c).ravel())
    assert {0, 1, 2, 3} == set(c.ravel()) and largest <= np.iinfo(dtype).max
    assert max(abs(value) for value in a.ravel()) > (2 if dtype == "int32" else 30)


def test_images_are_smooth_pictures_and_other_shapes_white_noise() -> None:
    """Neighbouring pixels are alike; neighbours in white noise have nothing in common."""

    def alike(values: np.ndarray) -> float:
        return float(np.corrcoef(values[..., 1:].ravel(), values[..., :-1].ravel())[0, 1])

    for shape in ((1, 3, 224, 160), (2, 1, 32, 33)):
        picture = _drawn(shape)
        assert picture.shape == shape and 0.5 < alike(picture) < 0.95
    assert _drawn((1, 3, 64, 64), "0 to 1").min() > 0
    for shape in ((1, 64, 56, 56), (1, 3, 8, 8), (64, 256)):
        assert abs(alike(_drawn(shape))) < 0.2


def test_random_integers_stay_within_the_table_they_index() -> None:
    graph = _embedding()
    inputs = _inputs(graph)
    seen: set[int] = set()
    for seed in range(20):
        made = random_inputs(graph, inputs, seed)
        seen |= set(made["ids"].ravel().tolist())
        assert set(made["mask"].ravel().tolist()) <= {0, 1}
    assert seen == set(range(7))
    again = random_inputs(graph, inputs, 3)
    np.testing.assert_array_equal(again["ids"], random_inputs(graph, inputs, 3)["ids"])


FOLDER = Path(__file__).parents[2] / "resources/models"


def test_generator_writes_the_shipped_bytes(tmp_path: Path) -> None:
    out = tmp_path / "mnist.onnx"
    subprocess.run([sys.executable, str(FOLDER / "make_mnist.py"), str(out)], check=True)
    assert out.read_bytes() == (FOLDER / "mnist.onnx").read_bytes()


node = helper.make_node


def draft(*nodes, shape=(1, 2, 4, 4), outputs=("y",), **constants) -> Draft:
    """A draft over an input ``x`` of float32."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return Draft(model, "m.onnx")


def types(found: Draft) -> list[str]:
    return [op.type for op in found.ops]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({"value": numpy_helper.from_array(np.float32([1, 2]))}, np.float32([1, 2])),
        ({"value_float": 0.5}, np.float32(0.5)),
        ({"value_floats": [0.5, 2]}, np.float32([0.5, 2])),
        ({"value_int": 3}, np.int64(3)),
        ({"value_ints": [3]}, np.int64([3])),
        ({"value_string": "é"}, np.array("é", object)),
        ({"value_strings": ["é", ""]}, np.array(["é", ""], object)),
    ],
)
def test_constants_become_initializers(value: dict, wanted: np.ndarray) -> None:
    d = draft(node("Constant", [], ["k"], **value), node("Add", ["x", "k"], ["y"]))
    passes.constants_to_initializers(d)
    assert types(d) == ["Add"] and d.constants["k"].dtype == wanted.dtype
    np.testing.assert_array_equal(d.constants["k"], wanted)


@pytest.mark.parametrize("values", [{}, {"value_int": 1, "value_float": 1.0}])
def test_a_constant_has_one_value(values: dict) -> None:
    d = draft(node("Constant", [], ["k"], **values), node("Add", ["x", "k"], ["y"]))
    with pytest.raises(ModelError, match=r"^m\.onnx: the constant 'k' needs one value and has"):
        passes.constants_to_initializers(d)
