"""Folds scale and shift by constants into the convolution (or dense layer) before them.

BatchNormalization at inference is y = x·a + b per channel with
a = scale/√(var+ε), b = shift − mean·a. After a convolution, a goes into its weights and b into
its bias; elsewhere it becomes Mul and Add. The same is done for Mul and Add by constants per
channel, which exporters put after BatchNormalization. Computed in float64, kept in the
weights' type.
"""

from __future__ import annotations

import numpy as np
from onnx import helper

from collage_engine.model.draft import Draft, Op

_CONVOLUTIONS = ("Conv", "ConvTranspose")


def fold_affine(draft: Draft) -> None:
    """Fold, in place."""
    made = _normalizations_to_mul_add(draft)
    _fold_chains(draft, made)


def _channel_vector(values: np.ndarray, rank: int) -> np.ndarray | None:
    """Return a constant that broadcasts along dimension 1 only, as a vector (or one element)."""
    if values.size == 1:
        return values.reshape(1)
    if values.ndim > rank:
        return None
    padded = (1,) * (rank - values.ndim) + values.shape
    if rank < 2 or padded[1] != values.size:
        return None
    return values.reshape(-1)


def _normalizations_to_mul_add(draft: Draft) -> set[int]:
    """Returns the ids of the operators made."""
    kept: list[Op] = []
    made: set[int] = set()
    for op in draft.ops:
        pair = _mul_add(draft, op) if op.type == "BatchNormalization" and not op.domain else None
        kept += pair or [op]
        made.update(map(id, pair or ()))
    draft.ops = kept
    return made


def _mul_add(draft: Draft, op: Op) -> list[Op] | None:
    data, *parameters = op.inputs[:5]
    extra = [o for o in op.outputs[1:] if o and draft.uses()[o]]
    if op.attribute("training_mode", 0) or extra:
        return None
    if not all(p in draft.constants for p in parameters):
        return None
    shape = draft.shape(data)
    if shape is None:
        return None
    scale, shift, mean, variance = (draft.constants[p].astype(np.float64) for p in parameters)
    element = draft.element_type(data) or draft.element_type(parameters[0])
    dtype = helper.tensor_dtype_to_np_dtype(element)  # half-precision data may have wide ones
    a = scale / np.sqrt(variance + op.attribute("epsilon", 1e-5))
    b = shift - mean * a
    per_channel = (1, -1) + (1,) * (len(shape) - 2) if len(shape) > 1 else (-1,)
    value = op.outputs[0]
    scaled = draft.fresh(f"{value}_scaled")
    draft.types[scaled] = draft.types.get(value, (0, None))
    factor = draft.constant(f"{value}_scale", a.reshape(per_channel).astype(dtype))
    term = draft.constant(f"{value}_shift", b.reshape(per_channel).astype(dtype))
    return [
        op.part("Mul", [data, factor], [scaled]),
        op.part("Add", [scaled, term], [value]),
    ]


def _constant_side(draft: Draft, op: Op) -> tuple[str, str] | None:
    """Returns (data, constant) of a Mul or Add by a floating-point constant; else None."""
    if op.domain or op.type not in ("Mul", "Add") or len(op.inputs) != 2:
        return None
    a, b = op.inputs
    if (a in draft.constants) == (b in draft.constants):
        return None
    data, constant = (b, a) if a in draft.constants else (a, b)
    return (data, constant) if draft.constants[constant].dtype.kind == "f" else None


def _fold_chains(draft: Draft, made: set[int]) -> None:
    """Let each Mul and Add by constants join the single operator whose value it reads.

    A user's own Add after a convolution without bias, and Mul or Add after a Gemm, stay nodes
    with their own names: they are operators of their own in Relax anyway.
    """
    uses = draft.uses()
    outputs = draft.output_names
    maker: dict[str, Op] = {}
    gone: set[int] = set()
    for op in draft.ops:
        for value in op.outputs:
            maker[value] = op
        side = _constant_side(draft, op)
        if side is None:
            continue
        data, constant = side
        before = maker.get(data)
        if before is None or uses[data] != 1 or data in outputs:
            continue
        shape = draft.shape(data)
        if shape is None or draft.shape(op.outputs[0]) not in (shape, None):
            continue
        if (id(op) not in made and before.type == "Gemm") or (
            op.type == "Add"
            and id(op) not in made
            and before.type in _CONVOLUTIONS
            and not before.input(2)
        ):
            continue
        values = draft.constants[constant]
        if not _absorb(draft, before, op, values, len(shape)):
            # (x·a + b)·c = x·(a·c) + b·c
            shifted = _constant_side(draft, before)
            scaler = maker.get(shifted[0]) if shifted else None
            if (
                op.type != "Mul"
                or before.type != "Add"
                or shifted is None
                or scaler is None
                or scaler.type != "Mul"
                or uses[shifted[0]] != 1
                or shifted[0] in outputs
                or not _absorb(draft, scaler, op, values, len(shape))
            ):
                continue
            _combine(draft, before, shifted, values, "Mul")
        before.outputs[0] = op.outputs[0]
        before.take_in(op)
        maker[op.outputs[0]] = before
        gone.add(id(op))
    draft.ops = [op for op in draft.ops if id(op) not in gone]


def _absorb(draft: Draft, before: Op, op: Op, values: np.ndarray, rank: int) -> bool:
    """Put a Mul or Add by ``values`` into the operator before it; False when it cannot."""
    if before.domain:
        return False
    if before.type in _CONVOLUTIONS:
        return _into_convolution(draft, before, op, values, rank)
    if before.type == "Gemm":
        return _into_dense(draft, before, op, values)
    side = _constant_side(draft, before)
    if side is None or before.type != op.type:
        return False
    _combine(draft, before, side, values, op.type)  # (x·a)·c = x·(a·c); (x+a)+c = x+(a+c)
    return True


def _combine(draft: Draft, op: Op, side: tuple[str, str], values: np.ndarray, how: str) -> None:
    """Replace an operator's constant by itself · values, or + values."""
    old = draft.constants[side[1]]
    a, b = old.astype(np.float64), values.astype(np.float64)
    merged = a * b if how == "Mul" else a + b
    name = draft.constant(f"{op.outputs[0]}_merged", merged.astype(old.dtype))
    op.inputs = [name if v == side[1] else v for v in op.inputs]


def _into_dense(draft: Draft, dense: Op, op: Op, values: np.ndarray) -> bool:
    """Scale or shift per column of a Gemm with constant weights and bias."""
    weights, bias = dense.inputs[1], dense.input(2)
    if weights not in draft.constants or (bias and bias not in draft.constants):
        return False
    if dense.attribute("alpha", 1.0) != 1.0 or dense.attribute("beta", 1.0) != 1.0:
        return False
    kernel = draft.constants[weights]
    transposed = dense.attribute("transB", 0)
    columns = kernel.shape[0 if transposed else 1]
    row = values.reshape(-1).astype(np.float64)
    if row.size not in (1, columns) or values.shape[-1:] not in ((), (row.size,)):
        return False
    old = draft.constants[bias].astype(np.float64) if bias else np.zeros(columns)
    hint = dense.outputs[0]
    if op.type == "Add":
        new = old + row
    else:
        wide = np.broadcast_to(row, (columns,))
        scaled = kernel * (wide[:, None] if transposed else wide)
        dense.inputs[1] = draft.constant(f"{hint}_weight", scaled.astype(kernel.dtype))
        new = old * row
    name = draft.constant(f"{hint}_bias", np.asarray(new).astype(kernel.dtype))
    dense.inputs = [*dense.inputs[:2], name]
    return True


def _into_convolution(draft: Draft, conv: Op, op: Op, values: np.ndarray, rank: int) -> bool:
    weights, bias = conv.inputs[1], conv.input(2)
    if weights not in draft.constants or (bias and bias not in draft.constants):
        return False
    vector = _channel_vector(values, rank)
    if vector is None:
        return False
    kernel = draft.constants[weights]
    if kernel.dtype.kind != "f":
        return False
    group = conv.attribute("group", 1)
    channels = kernel.shape[0] if conv.type == "Conv" else kernel.shape[1] * group
    if vector.size not in (1, channels):
        return False
    wide = np.broadcast_to(vector.astype(np.float64), (channels,))
    shift = draft.constants[bias].astype(np.float64) if bias else np.zeros(channels)
    hint = conv.outputs[0]
    if op.type == "Add":
        name = draft.constant(f"{hint}_bias", (shift + wide).astype(kernel.dtype))
        conv.inputs = [*conv.inputs[:2], name]
        return True
    ones = (1,) * (kernel.ndim - 2)
    if conv.type == "Conv":
        scaled = kernel * wide.reshape(-1, 1, *ones)
    else:
        grouped = kernel.reshape(group, -1, *kernel.shape[1:])
        factor = wide.reshape(group, 1, kernel.shape[1], *ones)
        scaled = (grouped * factor).reshape(kernel.shape)
    inputs = [conv.inputs[0], draft.constant(f"{hint}_weight", scaled.astype(kernel.dtype))]
    if bias:
        inputs.append(draft.constant(f"{hint}_bias", (shift * wide).astype(kernel.dtype)))
    conv.inputs = inputs
    return True
