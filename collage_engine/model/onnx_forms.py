"""Writes ONNX forms of Relax operators: elementwise ones, shapes and indexing.

Reductions and sorting are in ``onnx_forms_reduce``, the rest in ``onnx_forms_nn``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.model.numpy_types import numpy_type
from collage_engine.model.onnx_builder import Form, Writer
from collage_engine.model.onnx_forms_nn import NN_FORMS
from collage_engine.model.onnx_forms_reduce import REDUCE_FORMS
from collage_engine.model.onnx_types import element_type
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.operators import OPERATORS, Operator


def _written(row: Operator) -> Form:
    """Return the form of an operator that ONNX has with the same inputs."""

    def form(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
        named = {name: node.attributes[relax] for name, relax in (row.attributes or {}).items()}
        w.add(row.onnx, inputs, outputs[0], **named)

    return form


def _dropout(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    w.add("Identity", inputs, outputs[0])  # in inference it does nothing


def _scalar(w: Writer, value: float, node: Node) -> str:
    return w.const(value, numpy_type(node.type.dtype))


def _rsqrt(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    w.add("Reciprocal", [w.add("Sqrt", inputs)], outputs[0])


def _square(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    w.add("Mul", [inputs[0], inputs[0]], outputs[0])


def _trunc(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    size = w.add("Floor", [w.add("Abs", inputs)])
    w.add("Mul", [w.add("Sign", inputs), size], outputs[0])


def _isfinite(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    w.add("Not", [w.add("Or", [w.add("IsInf", inputs), w.add("IsNaN", inputs)])], outputs[0])


def _not_equal(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    w.add("Not", [w.add("Equal", inputs)], outputs[0])


def _floor_divide(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    kind = node.type.dtype
    if kind.startswith("uint"):
        w.add("Div", inputs, outputs[0])
    elif kind.startswith("int"):
        # (a − a mod b) / b is exact, and mod has the divisor's sign.
        rest = w.add("Mod", inputs)
        w.add("Div", [w.add("Sub", [inputs[0], rest]), inputs[1]], outputs[0])
    else:
        w.add("Floor", [w.add("Div", inputs)], outputs[0])


def _floor_mod(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    if node.type.dtype.startswith(("int", "uint")):
        w.add("Mod", inputs, outputs[0])
    else:
        whole = w.add("Floor", [w.add("Div", inputs)])
        w.add("Sub", [inputs[0], w.add("Mul", [whole, inputs[1]])], outputs[0])


def _mod(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    w.add("Mod", inputs, outputs[0], fmod=1)


def _shift(direction: str) -> Form:
    def form(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
        if not node.type.dtype.startswith("uint"):
            raise UnsupportedError(f"{node.op} of {node.type.dtype} has no ONNX form")
        w.add("BitShift", inputs, outputs[0], direction=direction)

    return form


def _log_add_exp(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    top = w.add("Max", inputs)
    parts = [w.add("Exp", [w.add("Sub", [i, top])]) for i in inputs]
    w.add("Add", [top, w.add("Log", [w.add("Add", parts)])], outputs[0])


def _fma(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    w.add("Add", [w.add("Mul", inputs[:2]), inputs[2]], outputs[0])


def _clip(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    low, high = (_scalar(w, node.attributes[k], node) for k in ("min", "max"))
    w.add("Clip", [inputs[0], low, high], outputs[0])


def _astype(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    w.add("Cast", inputs, outputs[0], to=element_type(node.type.dtype))


def _reshape(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    # Every size is known: reshape, flatten, squeeze and expand_dims are the same thing.
    w.add("Reshape", [inputs[0], w.ints(node.type.shape)], outputs[0], allowzero=1)


def _permute(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    rank = len(node.type.shape)
    axes = node.attributes.get("axes") or list(range(rank))[::-1]
    w.add("Transpose", inputs, outputs[0], perm=[a % rank for a in axes])


def _broadcast_to(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    w.add("Expand", [inputs[0], w.ints(node.type.shape)], outputs[0])


def _concat(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    w.add("Concat", inputs[0], outputs[0], axis=node.attributes["axis"] or 0)


def _stack(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    axis = (node.attributes.get("axis") or 0) % len(node.type.shape)
    parts = [w.add("Unsqueeze", [i, w.ints([axis])]) for i in inputs[0]]
    w.add("Concat", parts, outputs[0], axis=axis)


def _split(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    axis = node.attributes["axis"] % len(node.types[0].shape)
    sizes = [t.shape[axis] for t in node.types]
    w.add("Split", [inputs[0], w.ints(sizes)], outputs, axis=axis)


def _strided_slice(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    a = node.attributes
    steps = a.get("strides") or [1] * len(a["begin"])
    parts = [w.ints(a["begin"]), w.ints(a["end"]), w.ints(a["axes"]), w.ints(steps)]
    w.add("Slice", [inputs[0], *parts], outputs[0])


def _flip(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    least = np.iinfo(np.int64).min + 1
    parts = [w.ints([-1]), w.ints([least]), w.ints([node.attributes["axis"]]), w.ints([-1])]
    w.add("Slice", [inputs[0], *parts], outputs[0])


def _take(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    data, axis = inputs[0], node.attributes.get("axis")
    table = w.types(node)[0]
    if axis is None:
        data, axis = w.add("Reshape", [data, w.ints([-1])]), 0
    extent = table.elements if node.attributes.get("axis") is None else table.shape[axis]
    indices = inputs[1]
    kind = w.types(node)[1].dtype
    if kind not in ("int32", "int64"):
        indices = w.add("Cast", [indices], to=element_type("int64"))
        kind = "int64"
    if node.attributes.get("mode") == "clip":
        low, high = w.const(0, numpy_type(kind)), w.const(extent - 1, numpy_type(kind))
        indices = w.add("Clip", [indices, low, high])
    # Other modes differ only outside of the table, where ONNX allows no index.
    w.add("Gather", [data, indices], outputs[0], axis=axis)


def _tile(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    repeats = list(node.attributes["repeats"])
    shape = w.types(node)[0].shape
    data = inputs[0]
    if len(repeats) > len(shape):
        full = [1] * (len(repeats) - len(shape)) + list(shape)
        data = w.add("Reshape", [data, w.ints(full)])
    repeats = [1] * (len(shape) - len(repeats)) + repeats
    w.add("Tile", [data, w.ints(repeats)], outputs[0])


def _repeat(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    shape = list(w.types(node)[0].shape)
    times, axis = node.attributes["repeats"], node.attributes.get("axis")
    if axis is None:
        shape, axis = [int(np.prod(shape))], 0
    axis %= len(shape)
    thin = [*shape[: axis + 1], 1, *shape[axis + 1 :]]
    wide = [*shape[: axis + 1], times, *shape[axis + 1 :]]
    spread = w.add("Expand", [w.add("Reshape", [inputs[0], w.ints(thin)]), w.ints(wide)])
    w.add("Reshape", [spread, w.ints(node.type.shape)], outputs[0])


def _gather_nd(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    indices = w.add("Cast", [inputs[1]], to=element_type("int64"))
    w.add("GatherND", [inputs[0], indices], outputs[0], batch_dims=node.attributes["batch_dims"])


def _reduction_of(node: Node) -> str:
    how = node.attributes.get("reduction", "update")
    return "none" if how == "update" else how


def _scatter_elements(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    axis = node.attributes["axis"]
    w.add("ScatterElements", inputs, outputs[0], axis=axis, reduction=_reduction_of(node))


def _scatter_nd(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    indices = w.add("Cast", [inputs[1]], to=element_type("int64"))
    w.add("ScatterND", [inputs[0], indices, inputs[2]], outputs[0], reduction=_reduction_of(node))


def _one_hot(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    a, kind = node.attributes, node.type.dtype
    plain = kind in ("float32", "int32", "int64")  # what runtimes have kernels for
    values = w.const([a["off_value"], a["on_value"]], numpy_type(kind) if plain else np.float32)
    indices = w.add("Cast", [inputs[0]], to=element_type("int64"))
    depth = w.const(a["depth"], np.int64)
    found = w.add("OneHot", [indices, depth, values], outputs[0] if plain else None, axis=a["axis"])
    if not plain:
        w.add("Cast", [found], outputs[0], to=element_type(kind))


def _filled(value: float | None) -> Form:
    """Return a tensor of one value: given, or the operator's scalar argument."""

    def form(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
        if value is not None:
            source = w.const(value, numpy_type(node.type.dtype))
        else:
            source = w.add("Cast", [inputs[-1]], to=element_type(node.type.dtype))
        w.add("Expand", [source, w.ints(node.type.shape)], outputs[0])

    return form


def _arange(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    a = node.attributes
    values = np.arange(a["start"], a["end"], a["step"]).astype(numpy_type(node.type.dtype))
    w.add("Identity", [w.const(values)], outputs[0])


def _eye(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    rows, columns = node.type.shape
    values = np.eye(rows, columns, node.attributes["k"], dtype=numpy_type(node.type.dtype))
    w.add("Identity", [w.const(values)], outputs[0])


def _triangle(upper: int) -> Form:
    def form(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
        k = w.const(node.attributes["k"], np.int64)
        w.add("Trilu", [inputs[0], k], outputs[0], upper=upper)

    return form


def _einsum(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    w.add("Einsum", inputs[0], outputs[0], equation=node.attributes["subscripts"])


FORMS: dict[str, Form] = {
    **{row.name: _written(row) for row in OPERATORS.values() if row.attributes is not None},
    **NN_FORMS,
    **REDUCE_FORMS,
    "arange": _arange,
    "astype": _astype,
    "broadcast_to": _broadcast_to,
    "clip": _clip,
    "concat": _concat,
    "einsum": _einsum,
    "ewise_fma": _fma,
    "expand_dims": _reshape,
    "eye": _eye,
    "eye_like": _eye,
    "flatten": _reshape,
    "flip": _flip,
    "floor_divide": _floor_divide,
    "floor_mod": _floor_mod,
    "full": _filled(None),
    "full_like": _filled(None),
    "gather_nd": _gather_nd,
    "isfinite": _isfinite,
    "left_shift": _shift("LEFT"),
    "log_add_exp": _log_add_exp,
    "mod": _mod,
    "nn.batch_flatten": _reshape,
    "nn.dropout": _dropout,
    "not_equal": _not_equal,
    "one_hot": _one_hot,
    "ones": _filled(1),
    "ones_like": _filled(1),
    "permute_dims": _permute,
    "repeat": _repeat,
    "reshape": _reshape,
    "right_shift": _shift("RIGHT"),
    "rsqrt": _rsqrt,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "split": _split,
    "square": _square,
    "squeeze": _reshape,
    "stack": _stack,
    "strided_slice": _strided_slice,
    "take": _take,
    "tile": _tile,
    "tril": _triangle(0),
    "triu": _triangle(1),
    "trunc": _trunc,
    "zeros": _filled(0),
    "zeros_like": _filled(0),
}
