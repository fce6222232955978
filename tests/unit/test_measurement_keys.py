"""Canonical forms: equal for equal work, different for different work, and quick."""

from __future__ import annotations

from itertools import product

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import TensorType, operator_set
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.store.keys import KeyContext, KeyMaker
from tests.support.graphs import GraphBuilder

F = TensorType((1, 8), "float32")


Item = tuple[str, int, TensorType, tuple[int, ...], dict[str, object]]
"""What it is (an operator, ``parameter`` or ``constant``), its label, type, inputs, attributes."""


def graph(*items: Item, outputs: tuple[int, ...] = ()) -> DataflowGraph:
    b = GraphBuilder()
    handles: dict[int, int] = {}
    for what, label, kind, inputs, attributes in items:
        if what == "parameter":
            handles[label] = b.parameter(f"in{label}", kind.shape, kind.dtype)
        elif what == "constant":
            handles[label] = b.constant(kind.shape, f"w{label}", kind.dtype)
        else:
            read = (handles[i] for i in inputs)
            name = f"node_{label}"
            handles[label] = b.call(
                what, *read, shape=kind.shape, dtype=kind.dtype, name=name, **attributes
            )
    return b.build(*(handles[label] for label in outputs or (items[-1][1],)))


def param(label: int, kind: TensorType = F) -> Item:
    return "parameter", label, kind, (), {}


def const(label: int, kind: TensorType = F) -> Item:
    return "constant", label, kind, (), {}


def call(label: int, op: str, *inputs: int, kind: TensorType = F, **attributes: object) -> Item:
    return op, label, kind, inputs, attributes


def form(*items: Item, outputs: tuple[int, ...] = ()) -> str:
    g = graph(*items, outputs=outputs)
    return KeyMaker(g).form(g.everything)


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
    assert KeyMaker(g).form(operator_set([2, 3])) == small
    assert KeyMaker(g).form(operator_set([3, 4])) != small


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


def test_which_value_leaves_takes_part():
    one = form(param(0), call(1, "relu", 0), call(2, "tanh", 0), outputs=(1, 2))
    assert form(param(0), call(1, "relu", 0), call(2, "tanh", 0), outputs=(1,)) != one


def test_which_result_is_read_and_which_leaves():
    forms = set()
    for order, leaving in product(((0, 1), (1, 0)), (0, 1)):
        b = GraphBuilder((1, 8))
        split = b.call("split", b.parameter(), results=2)
        end = b.call("sub", *(b.result(split, place) for place in order))
        g = b.build(end, b.result(split, leaving))
        forms.add(KeyMaker(g).form(g.everything))
    assert len(forms) == 4


def test_small_integers_and_scalars_take_part_by_value():
    g = graph(
        param(0),
        const(1, TensorType((2,), "int64")),
        call(2, "gather", 0, 1),
        const(3, TensorType((), "float32")),
        call(4, "pow", 2, 3),
    )
    whole, scalar = (value.index for value in g.record.constants)
    values = {whole: np.array([3, 4]), scalar: np.float32(2.0)}
    one = KeyMaker(g, values.__getitem__).form(g.everything)
    assert "=[3, 4]" in one and "=2.0" in one
    other = {**values, scalar: np.float32(0.5)}
    assert KeyMaker(g, other.__getitem__).form(g.everything) != one
    weights = graph(param(0), const(1), call(2, "add", 0, 1))
    assert KeyMaker(weights, {}.__getitem__).form(1) == KeyMaker(weights).form(1)


def test_formats_take_part():
    g = graph(param(0), call(1, "relu", 0))
    maker, (given,) = KeyMaker(g), g.record.inputs
    forms = {
        maker.form(1),
        maker.form(1, takes={given: "NHWC"}),
        maker.form(1, gives={0: "NHWC"}),
        maker.form(1, takes={given: "NHWC"}, gives={0: "NHWC"}),
    }
    assert len(forms) == 4


def test_key_depends_on_every_part():
    base = KeyContext(
        tvm_version="0.27",
        target="llvm",
        fingerprint="f",
        versions={"onednn": "3.2", "tvm": "0.27"},
        sources={"onednn": "s"},
    )
    one = ToolchainInstance(toolchain="onednn")
    keys = {
        base.key("form", one),
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
    assert len(keys) == 12 and all(len(k) == 64 for k in keys)
    assert base.key("form", one) == base.key("form", one)
