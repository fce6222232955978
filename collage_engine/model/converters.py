"""Our own ONNX→Relax converters, where TVM's lower to TE or blow one node up to many.

Each takes (block builder, inputs, attributes, opset) and returns an expression, or None to
leave the node to TVM's converter. Inputs are variables or constants; shapes are static.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax
from tvm.ir import GenericConst

Converter = Callable[[Any, Any, dict[str, Any], int], Any]


def shape_of(value: Any) -> tuple[int, ...]:
    return tuple(int(d) for d in value.ty.shape.values)


def dtype_of(value: Any) -> str:
    return str(value.ty.dtype.dtype)


def values_of(value: Any) -> np.ndarray | None:
    """A constant's values; None when the value is no constant."""
    return value.value.numpy() if isinstance(value, GenericConst) else None


def _text(attributes: dict[str, Any], name: str, default: str) -> str:
    value = attributes.get(name, default)
    return value.decode() if isinstance(value, bytes) else value


def _clip(bb: Any, inputs: Any, attributes: dict[str, Any], opset: int) -> Any:
    x = inputs[0]
    if opset < 11:
        low, high = attributes.get("min"), attributes.get("max")
    else:
        for bound in (inputs[1], inputs[2]):
            if bound is not None and (values_of(bound) is None or values_of(bound).size != 1):
                return None
        low, high = (
            None if b is None else values_of(b).reshape(()).item() for b in (inputs[1], inputs[2])
        )
    # NaN bounds mean "none", as in ONNX Runtime.
    low = None if low is not None and low != low else low
    high = None if high is not None and high != high else high
    kind = dtype_of(x)
    if low is not None and high is not None:
        wrap = float if kind.startswith(("float", "bfloat")) else int
        return relax.op.clip(x, wrap(low), wrap(high))
    if low is not None:
        return relax.op.maximum(x, relax.const(low, kind))
    if high is not None:
        return relax.op.minimum(x, relax.const(high, kind))
    return x


def _cast(bb: Any, inputs: Any, attributes: dict[str, Any], opset: int) -> Any:
    target = str(helper.tensor_dtype_to_np_dtype(attributes["to"]))
    return inputs[0] if dtype_of(inputs[0]) == target else relax.op.astype(inputs[0], target)


def _unsqueeze(bb: Any, inputs: Any, attributes: dict[str, Any], opset: int) -> Any:
    axes = attributes.get("axes") if opset < 13 else values_of(inputs[1])
    if axes is None:
        return None
    return relax.op.expand_dims(inputs[0], [int(a) for a in axes])


def _gather(bb: Any, inputs: Any, attributes: dict[str, Any], opset: int) -> Any:
    """Negative indices count from the end: known ones are made positive, others wrap."""
    data, indices = inputs[0], inputs[1]
    axis = attributes.get("axis", 0)
    extent = shape_of(data)[axis]
    known = values_of(indices)
    if known is not None:
        positive = np.where(known < 0, known + extent, known).astype(known.dtype)
        return relax.op.take(data, relax.const(positive, str(positive.dtype)), axis)
    return relax.op.take(data, indices, axis, mode="wrap")


def _softmax_with(op: Callable[..., Any]) -> Converter:
    def convert(bb: Any, inputs: Any, attributes: dict[str, Any], opset: int) -> Any:
        if opset >= 13:
            return None
        shape = shape_of(inputs[0])
        axis = attributes.get("axis", 1) % max(len(shape), 1)
        # Before opset 13 softmax runs over all dimensions from ``axis`` on: the same thing as
        # over one of them when the others have one element.
        wide = [i for i in range(axis, len(shape)) if shape[i] != 1]
        if len(wide) > 1:
            return None
        return op(inputs[0], axis=wide[0] if wide else len(shape) - 1)

    return convert


def _pairwise(op: Callable[..., Any]) -> Converter:
    def convert(bb: Any, inputs: Any, attributes: dict[str, Any], opset: int) -> Any:
        result = inputs[0]
        for other in inputs[1:]:
            result = op(result, other)
        return result

    return convert


def _mean(bb: Any, inputs: Any, attributes: dict[str, Any], opset: int) -> Any:
    total = _pairwise(relax.op.add)(bb, inputs, attributes, opset)
    if len(inputs) == 1:
        return total
    return relax.op.divide(total, relax.const(len(inputs), dtype_of(inputs[0])))


def _tile(bb: Any, inputs: Any, attributes: dict[str, Any], opset: int) -> Any:
    repeats = values_of(inputs[1])
    return None if repeats is None else relax.op.tile(inputs[0], [int(r) for r in repeats])


def _pad(bb: Any, inputs: Any, attributes: dict[str, Any], opset: int) -> Any:
    rank = len(shape_of(inputs[0]))
    if opset < 11:
        pads, value = attributes.get("pads"), attributes.get("value", 0.0)
        axes: Any = range(rank)
    else:
        found = [None if i is None else values_of(i) for i in inputs[1:4]]
        found += [None] * (3 - len(found))
        if any(i is not None and f is None for i, f in zip(inputs[1:4], found, strict=False)):
            return None
        pads = found[0].tolist()
        value = 0.0 if found[1] is None else found[1].reshape(()).item()
        axes = range(rank) if found[2] is None else [int(a) % rank for a in found[2]]
    mode = {"constant": "constant", "edge": "replicate", "reflect": "reflect",
            "wrap": "circular"}.get(_text(attributes, "mode", "constant"))  # fmt: skip
    if mode is None or any(p < 0 for p in pads):
        return None
    widths = [0] * (2 * rank)
    half = len(pads) // 2
    for place, axis in enumerate(axes):
        widths[2 * axis], widths[2 * axis + 1] = int(pads[place]), int(pads[half + place])
    return relax.op.nn.pad(inputs[0], widths, mode, float(value))


CONVERTERS: dict[str, Converter] = {
    "Cast": _cast,
    "Clip": _clip,
    "Gather": _gather,
    "LogSoftmax": _softmax_with(relax.op.nn.log_softmax),
    "Max": _pairwise(relax.op.maximum),
    "Mean": _mean,
    "Min": _pairwise(relax.op.minimum),
    "Pad": _pad,
    "Softmax": _softmax_with(relax.op.nn.softmax),
    "Sum": _pairwise(relax.op.add),
    "Tile": _tile,
    "Unsqueeze": _unsqueeze,
}
