"""Converts Gather, scatter and Slice: negative indices become positive with the known extents.

TVM's converters read the extents when the model runs (shape_of, take, add, less, where for one
Gather), and lose the output's size doing so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import Expr

from collage_engine.model.converter_tools import Converter, dtype_of, shape_of, values_of


def _positive(indices: Any, extent: np.ndarray) -> Any:
    """Add ``extent`` (a number, or one per coordinate) to the negative ones of some indices."""
    kind = dtype_of(indices)
    if kind.startswith("uint"):
        return indices
    known = values_of(indices)
    if known is not None:
        if not (known < 0).any():
            return indices
        return relax.const(np.where(known < 0, known + extent, known).astype(kind), kind)
    wide = relax.const(np.asarray(extent).astype(kind), kind)
    less = relax.op.less(indices, relax.const(0, kind))
    return relax.op.where(less, relax.op.add(indices, wide), indices)


def _gather(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    """Converts Gather to one operator: known indices are made positive, others wrap."""
    data, indices = inputs[0], inputs[1]
    axis = attributes.get("axis", 0)
    if values_of(indices) is None:
        return relax.op.take(data, indices, axis, mode="wrap")
    return relax.op.take(data, _positive(indices, np.array(shape_of(data)[axis])), axis)


def _gather_elements(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    axis = attributes.get("axis", 0)
    extent = np.array(shape_of(inputs[0])[axis])
    return relax.op.gather_elements(inputs[0], _positive(inputs[1], extent), axis)


def _gather_nd(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    batch = attributes.get("batch_dims", 0)
    width = shape_of(inputs[1])[-1]
    extents = np.array(shape_of(inputs[0])[batch : batch + width])
    return relax.op.gather_nd(inputs[0], _positive(inputs[1], extents), batch)


def _slice(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    """Converts Slice before opset 10, where bounds are attributes that TVM's converter ignores."""
    if opset >= 10:
        return None
    starts, ends = attributes["starts"], attributes["ends"]
    rank = len(shape_of(inputs[0]))
    axes = [a % rank for a in attributes.get("axes", range(len(starts)))]
    return relax.op.strided_slice(inputs[0], axes, list(starts), list(ends), [1] * len(axes))


def _reduction(attributes: dict[str, Any]) -> str:
    how = attributes.get("reduction", b"none")
    how = how.decode() if isinstance(how, bytes) else how
    return "update" if how == "none" else how


def _scatter_elements(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    shape, reached = list(shape_of(inputs[0])), list(shape_of(inputs[1]))
    axis = attributes.get("axis", 0) % len(shape)
    indices = _positive(inputs[1], np.array(shape[axis]))
    del shape[axis], reached[axis]
    if shape != reached:  # TVM's kernel takes both for equally long but along the axis
        raise ValueError("indices that reach a part of the data only are not supported")
    how = _reduction(attributes)
    return relax.op.scatter_elements(inputs[0], indices, inputs[2], axis=axis, reduction=how)


def _scatter_nd(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    extents = np.array(shape_of(inputs[0])[: shape_of(inputs[1])[-1]])
    indices = _positive(inputs[1], extents)
    return relax.op.scatter_nd(inputs[0], indices, inputs[2], _reduction(attributes))


def _one_hot(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    depth, values = values_of(inputs[1]), values_of(inputs[2])
    if depth is None or values is None:
        raise ValueError("a depth or values known only when the model runs are not supported")
    extent, kind = int(depth.reshape(-1)[0]), dtype_of(inputs[2])
    off, on = (relax.prim_value(tirx.const(v.item(), kind)) for v in values)
    indices = inputs[0]
    if not dtype_of(indices).startswith(("int", "uint")):
        indices = relax.op.astype(indices, "int64")
    indices = bb.normalize(indices)
    axis = attributes.get("axis", -1) % (len(shape_of(indices)) + 1)
    return relax.op.one_hot(_positive(indices, np.array(extent)), on, off, extent, axis)


def _reverse_sequence(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    axes = attributes.get("time_axis", 0), attributes.get("batch_axis", 1)
    return relax.op.reverse_sequence(inputs[0], inputs[1], *axes)


INDEX_CONVERTERS: dict[str, Converter] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
}
