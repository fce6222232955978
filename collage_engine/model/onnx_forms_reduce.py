"""Writes ONNX forms of Relax's reductions, running sums and sorting."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.model.onnx_builder import Form, Writer
from collage_engine.model.onnx_types import element_type
from collage_engine.records.graph import Node


def _cumsum(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    data, kind = inputs[0], w.types(node)[0].dtype
    if kind != node.type.dtype:
        data = w.add("Cast", [data], to=element_type(node.type.dtype))
    axis = node.attributes.get("axis")
    if axis is None:
        data, axis = w.add("Reshape", [data, w.ints([-1])]), 0
    exclusive = int(bool(node.attributes.get("exclusive")))
    w.add("CumSum", [data, w.const(axis, np.int64)], outputs[0], exclusive=exclusive)


def _topk(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    a = node.attributes
    data_type = w.types(node)[0]
    axis = a["axis"] % len(data_type.shape)
    k = data_type.shape[axis] if a["k"] < 1 else a["k"]
    both = a.get("ret_type", "both")
    values = outputs[0] if both in ("both", "values") else w.fresh()
    raw = w.fresh()
    largest = int(bool(a["largest"]))
    w.add("TopK", [inputs[0], w.ints([k])], [values, raw], axis=axis, largest=largest)
    if both in ("both", "indices"):
        w.add("Cast", [raw], outputs[-1], to=element_type(node.types[-1].dtype))


def _sorted(indices: bool) -> Form:
    def form(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
        a = node.attributes
        shape = node.type.shape
        axis = a["axis"] % len(shape)
        values, places = w.fresh(), w.fresh()
        w.add(
            "TopK",
            [inputs[0], w.ints([shape[axis]])],
            [values, places],
            axis=axis,
            largest=int(bool(a["descending"])),
        )
        if indices:
            w.add("Cast", [places], outputs[0], to=element_type(node.type.dtype))
        else:
            w.add("Identity", [values], outputs[0])

    return form


def _arg(op: str) -> Form:
    def form(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
        axis, keep = node.attributes.get("axis"), int(bool(node.attributes["keepdims"]))
        data = inputs[0]
        if axis is None:
            data, axis, keep = w.add("Reshape", [data, w.ints([-1])]), 0, 0
        found = w.add(op, [data], axis=axis, keepdims=keep)
        found = w.add("Reshape", [found, w.ints(node.type.shape)])
        w.add("Cast", [found], outputs[0], to=element_type(node.type.dtype))

    return form


def _reduce(op: str) -> Form:
    def form(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
        axes = node.attributes.get("axis")
        if axes is None:
            axes = list(range(len(w.types(node)[0].shape)))
        if not axes:
            w.add("Identity", inputs, outputs[0])
            return
        keep = int(bool(node.attributes["keepdims"]))
        w.add(op, [inputs[0], w.ints(axes)], outputs[0], keepdims=keep)

    return form


def _variance(root: bool) -> Form:
    def form(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
        axes = node.attributes.get("axis")
        rank = len(w.types(node)[0].shape)
        which = w.ints(range(rank) if axes is None else axes)
        mean = w.add("ReduceMean", [inputs[0], which], keepdims=1)
        apart = w.add("Sub", [inputs[0], mean])
        square = w.add("Mul", [apart, apart])
        keep = int(bool(node.attributes["keepdims"]))
        last = None if root else outputs[0]
        found = w.add("ReduceMean", [square, which], last, keepdims=keep)
        if root:
            w.add("Sqrt", [found], outputs[0])

    return form


REDUCE_FORMS: dict[str, Form] = {
    "argmax": _arg("ArgMax"),
    "argmin": _arg("ArgMin"),
    "argsort": _sorted(indices=True),
    "cumsum": _cumsum,
    "max": _reduce("ReduceMax"),
    "mean": _reduce("ReduceMean"),
    "min": _reduce("ReduceMin"),
    "prod": _reduce("ReduceProd"),
    "sort": _sorted(indices=False),
    "std": _variance(root=True),
    "sum": _reduce("ReduceSum"),
    "topk": _topk,
    "variance": _variance(root=False),
}
