"""Evaluates ONNX nodes whose inputs are all constant, with numpy.

The common ones, which only move or compare a few numbers, are done here; the rest by ONNX's
reference evaluator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from collage_engine.model.draft import Op

Values = list[Any]
"""The values of a node's inputs; None for an input that is absent."""


class NotFoldable(Exception):
    """The node has constant inputs but cannot be evaluated; it stays in the graph."""


def _axes(op: Op, values: Values, place: int = 1) -> list[int] | None:
    if len(values) > place and values[place] is not None:
        return [int(a) for a in values[place].reshape(-1)]
    axes = op.attribute("axes")
    return None if axes is None else [int(a) for a in axes]


def _reshape(op: Op, values: Values) -> np.ndarray:
    data = values[0]
    wanted = [int(d) for d in (values[1] if len(values) > 1 else op.attribute("shape"))]
    if not op.attribute("allowzero", 0):
        wanted = [data.shape[i] if d == 0 else d for i, d in enumerate(wanted)]
    return np.asarray(data.reshape(wanted))


def _unsqueeze(op: Op, values: Values) -> np.ndarray:
    return np.expand_dims(values[0], tuple(_axes(op, values) or ()))


def _squeeze(op: Op, values: Values) -> np.ndarray:
    axes = _axes(op, values)
    return np.asarray(np.squeeze(values[0], None if axes is None else tuple(axes)))


def _slice(op: Op, values: Values) -> np.ndarray:
    data = values[0]
    if len(values) > 1:
        starts, ends = values[1].tolist(), values[2].tolist()
        axes = _axes(op, values, 3)
        steps = values[4].tolist() if len(values) > 4 and values[4] is not None else None
    else:
        starts, ends = list(op.attribute("starts")), list(op.attribute("ends"))
        axes, steps = _axes(op, []), None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    cut = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # A negative step that runs over the beginning means "up to and including element 0".
        stop = None if step < 0 and end < -data.shape[axis] else end
        cut[axis] = slice(start, stop, step)
    return np.asarray(data[tuple(cut)])


def _constant_of_shape(op: Op, values: Values) -> np.ndarray:
    value = op.attribute("value")
    fill = np.zeros(1, np.float32) if value is None else numpy_helper.to_array(value)
    return np.full([int(d) for d in values[0]], fill.reshape(-1)[0], dtype=fill.dtype)


def _cast(op: Op, values: Values) -> np.ndarray:
    return np.asarray(values[0].astype(helper.tensor_dtype_to_np_dtype(op.attribute("to"))))


def _gather(op: Op, values: Values) -> np.ndarray:
    return np.asarray(np.take(values[0], values[1], axis=op.attribute("axis", 0)))


def _divide(op: Op, values: Values) -> np.ndarray:
    a, b = values
    if a.dtype.kind in "iu":
        if not np.all(b):
            raise NotFoldable
        quotient = np.abs(a) // np.abs(b)  # ONNX truncates towards zero.
        return np.asarray((np.sign(a) * np.sign(b) * quotient).astype(a.dtype))
    return np.asarray(a / b)


def _expand(op: Op, values: Values) -> np.ndarray:
    shape = np.broadcast_shapes(values[0].shape, tuple(int(d) for d in values[1]))
    return np.broadcast_to(values[0], shape)


def _range(op: Op, values: Values) -> np.ndarray:
    start, limit, delta = (v.reshape(()) for v in values)
    count = max(int(np.ceil((np.float64(limit) - np.float64(start)) / np.float64(delta))), 0)
    return np.asarray((np.arange(count) * delta + start).astype(start.dtype))


def _transpose(op: Op, values: Values) -> np.ndarray:
    return np.transpose(values[0], op.attribute("perm"))


def _concat(op: Op, values: Values) -> np.ndarray:
    return np.concatenate(values, axis=op.attribute("axis", 0))


_TABLE: dict[str, Callable[[Op, Values], np.ndarray]] = {
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Div": _divide,
    "Expand": _expand,
    "Gather": _gather,
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Identity": lambda op, v: v[0],
    "Add": lambda op, v: v[0] + v[1],
    "Sub": lambda op, v: v[0] - v[1],
    "Mul": lambda op, v: v[0] * v[1],
    "Neg": lambda op, v: -v[0],
    "Sqrt": lambda op, v: np.sqrt(v[0]),
    "Equal": lambda op, v: v[0] == v[1],
    "Greater": lambda op, v: v[0] > v[1],
    "Less": lambda op, v: v[0] < v[1],
    "Not": lambda op, v: ~v[0],
    "And": lambda op, v: v[0] & v[1],
    "Or": lambda op, v: v[0] | v[1],
    "Where": lambda op, v: np.asarray(np.where(v[0], v[1], v[2])),
}


def evaluate(op: Op, values: Values, opset: int) -> Values:
    """Return the outputs of a node for these inputs (None for an absent one).

    Raises ``NotFoldable`` when neither numpy nor the reference evaluator can do it.
    """
    compute = _TABLE.get(op.type) if not op.domain else None
    try:
        if compute is not None:
            return [np.asarray(compute(op, values))]
        return _reference(op, values, opset)
    except NotFoldable:
        raise
    except Exception as error:  # the evaluator raises whatever numpy or its author chose
        raise NotFoldable(f"{op.type}: {error}") from error


def _reference(op: Op, values: Values, opset: int) -> Values:
    from onnx.reference import ReferenceEvaluator

    if op.domain:
        raise NotFoldable(f"{op.domain}.{op.type}")
    inputs = [(n, v) for n, v in zip(op.inputs, values, strict=True) if n]
    graph = helper.make_graph(
        [op.to_proto()],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in dict(inputs).items()
        ],
        [helper.make_empty_tensor_value_info(o) for o in op.outputs if o],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    found = list(ReferenceEvaluator(model).run(None, dict(inputs)))
    if not all(isinstance(each, (np.ndarray, np.generic)) for each in found):
        raise NotFoldable(f"{op.type} makes a sequence or an optional value")
    results = iter(found)
    # An absent optional output keeps its place.
    return [np.asarray(next(results)) if o else np.empty(0) for o in op.outputs]
