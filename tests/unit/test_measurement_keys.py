"""Canonical forms: equal for equal work, different for different work, and quick."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import GraphRecord, Node, TensorType, node_set
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.store.keys import KeyContext, KeyMaker

F = TensorType((1, 8), "float32")


def graph(*nodes: Node, outputs: tuple[int, ...] = ()) -> DataflowGraph:
    inputs = tuple(n.index for n in nodes if n.form == "parameter")
    return DataflowGraph(
        GraphRecord(nodes=nodes, inputs=inputs, outputs=outputs or (nodes[-1].index,))
    )


def param(i: int, kind: TensorType = F) -> Node:
    return Node(index=i, form="parameter", types=(kind,), name=f"in{i}")


def const(i: int, kind: TensorType = F) -> Node:
    return Node(index=i, form="constant", types=(kind,), name=f"w{i}")


def call(i: int, op: str, *inputs: int, kind: TensorType = F, **attributes) -> Node:
    return Node(
        index=i,
        form="call",
        op=op,
        inputs=inputs,
        types=(kind,),
        attributes=attributes,
        name=f"node_{i}",
        onnx_nodes=(f"onnx{i}",),
    )


def calls(g: DataflowGraph) -> int:
    return node_set(g.operators)


def form(*nodes: Node, outputs: tuple[int, ...] = ()) -> str:
    g = graph(*nodes, outputs=outputs)
    return KeyMaker(g).form(calls(g))


def test_does_not_depend_on_numbering_names_or_surroundings():
    small = form(param(0), const(1), call(2, "add", 0, 1), call(3, "relu", 2))
    g = graph(
        const(0),
        param(1),
        call(2, "exp", 1),
        const(3),
        call(4, "mul", 2, 0),
        call(5, "add", 4, 3),
        call(6, "relu", 5),
        call(7, "tanh", 6),
    )
    assert KeyMaker(g).form(node_set([5, 6])) == small
    assert KeyMaker(g).form(node_set([3, 5, 6])) == small, "closed or not is the same set"
    assert KeyMaker(g).form(node_set([6, 7])) != small


def test_differences_that_matter():
    base = form(param(0), const(1), call(2, "add", 0, 1), call(3, "relu", 2))
    other_type = TensorType((1, 9), "float32")
    half = TensorType((1, 8), "float16")
    variants = [
        form(param(0), const(1), call(2, "sub", 0, 1), call(3, "relu", 2)),
        form(param(0), const(1), call(2, "add", 0, 1), call(3, "relu", 2, axis=1)),
        form(param(0), param(1), call(2, "add", 0, 1), call(3, "relu", 2)),
        form(const(0), param(1), call(2, "add", 0, 1), call(3, "relu", 2)),
        form(param(0), const(1), call(2, "add", 0, 1), call(3, "relu", 2), outputs=(2, 3)),
        form(param(0, other_type), const(1), call(2, "add", 0, 1), call(3, "relu", 2)),
        form(param(0), const(1, half), call(2, "add", 0, 1), call(3, "relu", 2)),
        form(param(0), call(1, "add", 0, 0), call(2, "relu", 1)),
    ]
    assert len({base, *variants}) == len(variants) + 1


def test_several_outputs_are_put_in_an_order_of_their_own():
    one = form(param(0), call(1, "relu", 0), call(2, "tanh", 0), outputs=(1, 2))
    other = form(param(0), call(1, "tanh", 0), call(2, "relu", 0), outputs=(1, 2))
    assert one == other
    assert form(param(0), call(1, "relu", 0), call(2, "tanh", 0), outputs=(1,)) != one


def test_tuples_and_projections():
    pair = Node(index=1, form="call", op="split", inputs=(0,), types=(F, F), is_tuple=True)

    def take(i: int, field: int) -> Node:
        return Node(index=i, form="projection", inputs=(1,), field=field, types=(F,))

    one = form(param(0), pair, take(2, 0), take(3, 1), call(4, "add", 2, 3))
    swapped = form(param(0), pair, take(2, 0), take(3, 1), call(4, "add", 3, 2))
    assert one != swapped and "field 1" in one


def test_small_integers_and_scalars_take_part_by_value():
    g = graph(
        param(0),
        const(1, TensorType((2,), "int64")),
        call(2, "gather", 0, 1),
        const(3, TensorType((), "float32")),
        call(4, "pow", 2, 3),
    )
    values = {1: np.array([3, 4]), 3: np.float32(2.0)}
    one = KeyMaker(g, values.__getitem__).form(calls(g))
    assert "=[3, 4]" in one and "=2.0" in one
    assert KeyMaker(g, {**values, 3: np.float32(0.5)}.__getitem__).form(calls(g)) != one
    weights = graph(param(0), const(1), call(2, "add", 0, 1))
    assert KeyMaker(weights, {}.__getitem__).form(4) == KeyMaker(weights).form(4)


def test_formats_take_part():
    g = graph(param(0), call(1, "relu", 0))
    maker = KeyMaker(g)
    forms = {
        maker.form(2),
        maker.form(2, takes={0: "NHWC"}),
        maker.form(2, gives={1: "NHWC"}),
        maker.form(2, takes={0: "NHWC"}, gives={1: "NHWC"}),
    }
    assert len(forms) == 4


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_any_topological_renumbering_has_the_same_form(seed):
    rng = random.Random(seed)
    count = rng.randint(2, 14)
    ops = [
        (rng.choice(["add", "mul", "sub"]), [rng.randrange(-2, i) for _ in range(2)])
        for i in range(count)
    ]

    def build(order: list[int]) -> str:
        # Values -2 and -1 are two parameters of different types.
        place = {-2: 0, -1: 1} | {op: 2 + at for at, op in enumerate(order)}
        nodes = [param(0, TensorType((8,), "float32")), param(1)]
        nodes += [call(place[op], ops[op][0], *(place[s] for s in ops[op][1])) for op in order]
        return form(*nodes, outputs=(place[count - 1],))

    def shuffled() -> list[int]:
        left, order = set(range(count)), []
        while left:
            ready = [op for op in left if not any(s in left for s in ops[op][1])]
            order.append(rng.choice(ready))
            left.remove(order[-1])
        return order

    sinks = [i for i in range(count) if all(i not in s for _, s in ops[i + 1 :])]
    if len(sinks) == 1:  # several dead ends may tie; then equality is not promised
        assert build(list(range(count))) == build(shuffled())


def test_key_depends_on_every_part():
    base = KeyContext(
        tvm_version="0.27",
        target="llvm",
        fingerprint="f",
        versions={"onednn": "3.2", "tvm": "0.27"},
        sources={"onednn": "s"},
    )
    one = ToolchainInstance(toolchain="onednn")
    calls_it = ToolchainInstance(toolchain="tvm", config=(("library", "onednn"),))
    other = {"onednn": "3.3", "tvm": "0.27"}
    keys = {
        base.key("form", one),
        base.key("form", calls_it),
        KeyContext("0.27", "llvm", "f", other, base.sources).key("form", calls_it),
        base.key("form2", one),
        base.key("form", ToolchainInstance(toolchain="onednn", threads=2)),
        base.key("form", ToolchainInstance(toolchain="onednn", precision="float16")),
        base.key("form", ToolchainInstance(toolchain="onednn", config=(("a", "b"),))),
        base.key("form", ToolchainInstance(toolchain="tvm")),
        KeyContext("0.28", "llvm", "f", base.versions, base.sources).key("form", one),
        KeyContext("0.27", "cuda", "f", base.versions, base.sources).key("form", one),
        KeyContext("0.27", "llvm", "g", base.versions, base.sources).key("form", one),
        KeyContext("0.27", "llvm", "f", {"onednn": "3.3"}, base.sources).key("form", one),
        KeyContext("0.27", "llvm", "f", base.versions, {"onednn": "t"}).key("form", one),
        KeyContext("0.27", "llvm", "f", base.versions, base.sources, 99).key("form", one),
    }
    assert len(keys) == 14 and all(len(k) == 64 for k in keys)
    assert base.key("form", one) == base.key("form", one)
