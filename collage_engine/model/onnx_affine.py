"""Folds scale and shift by constants into the convolution (or dense layer) before them.

BatchNormalization at inference is y = x·a + b per channel with a = scale/√(var+ε), b = shift −
mean·a. After a convolution, a goes into its weights and b into its bias; elsewhere it becomes Mul
and Add. The same is done for Mul and Add by constants per channel behind a convolution, which
exporters put after BatchNormalization. Computed in float64, kept in the weights' type.
"""

from __future__ import annotations

import numpy as np
from onnx import helper

from collage_engine.model.draft import Draft, Op

_CONVOLUTIONS = ("Conv", "ConvTranspose")


def fold_affine(draft: Draft) -> None:
    """Fold, in place."""
    uses, outputs = draft.uses(), draft.output_names
    maker: dict[str, Op] = {}
    kept: list[Op] = []
    for op in draft.ops:
        normalises = op.type == "BatchNormalization" and not op.domain
        affine = _normalization(draft, op) if normalises else _by_constant(draft, op, maker)
        data = next((v for v in op.inputs if v not in draft.constants), "")
        before = maker.get(data) if uses[data] == 1 and data not in outputs else None
        if affine is not None and before is not None and _absorb(draft, before, *affine):
            before.outputs[0] = op.outputs[0]
            before.take_in(op)
            maker[op.outputs[0]] = before
            continue
        kept += _mul_add(draft, op, *affine) if affine is not None and normalises else [op]
        maker |= dict.fromkeys(op.outputs, op)
    draft.ops = kept


def _normalization(draft: Draft, op: Op) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a and b of a BatchNormalization; None where they are no constants."""
    data, *parameters = op.inputs[:5]
    extra = [o for o in op.outputs[1:] if o and draft.uses()[o]]
    if op.attribute("training_mode", 0) or extra or draft.shape(data) is None:
        return None
    if not all(p in draft.constants for p in parameters):
        return None
    scale, shift, mean, variance = (draft.constants[p].astype(np.float64) for p in parameters)
    a = scale / np.sqrt(variance + op.attribute("epsilon", 1e-5))
    return a, shift - mean * a


def _by_constant(
    draft: Draft, op: Op, maker: dict[str, Op]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a and b of a Mul or Add by constants per channel behind a convolution; else None.

    An Add behind a convolution without a bias stays, since it is one.
    """
    constants = [v for v in op.inputs if v in draft.constants]
    if op.domain or op.type not in ("Mul", "Add") or len(op.inputs) != 2 or len(constants) != 1:
        return None
    data = next(v for v in op.inputs if v not in draft.constants)
    before, shape, values = maker.get(data), draft.shape(data), draft.constants[constants[0]]
    if before is None or before.type not in _CONVOLUTIONS or shape is None:
        return None
    if values.dtype.kind != "f" or draft.shape(op.outputs[0]) not in (shape, None):
        return None
    if op.type == "Add" and not before.input(2):
        return None
    padded = (1,) * (len(shape) - values.ndim) + values.shape
    if values.size not in (1, padded[1]):
        return None
    wide = np.broadcast_to(values.reshape(-1).astype(np.float64), (shape[1],))
    return (wide, np.zeros_like(wide)) if op.type == "Mul" else (np.ones_like(wide), wide)


def _mul_add(draft: Draft, op: Op, a: np.ndarray, b: np.ndarray) -> list[Op]:
    """Return what a BatchNormalization becomes that nothing before it takes in."""
    data, value = op.inputs[0], op.outputs[0]
    rank = len(draft.shape(data) or ())
    element = draft.element_type(data) or draft.element_type(op.inputs[1])
    dtype = helper.tensor_dtype_to_np_dtype(element)  # half-precision data may have wide ones
    per_channel = (1, -1) + (1,) * (rank - 2) if rank > 1 else (-1,)
    scaled = draft.fresh(f"{value}_scaled")
    draft.types[scaled] = draft.types.get(value, (0, None))
    factor = draft.constant(f"{value}_scale", a.reshape(per_channel).astype(dtype))
    term = draft.constant(f"{value}_shift", b.reshape(per_channel).astype(dtype))
    return [
        op.part("Mul", [data, factor], [scaled]),
        op.part("Add", [scaled, term], [value]),
    ]


def _absorb(draft: Draft, op: Op, a: np.ndarray, b: np.ndarray) -> bool:
    """Scale and shift each output channel of an operator by constants; False when it cannot."""
    if op.domain or op.type not in (*_CONVOLUTIONS, "Gemm"):
        return False
    weights, bias = op.inputs[1], op.input(2)
    if weights not in draft.constants or (bias and bias not in draft.constants):
        return False
    if op.type == "Gemm" and (op.attribute("alpha", 1.0), op.attribute("beta", 1.0)) != (1.0, 1.0):
        return False
    kernel = draft.constants[weights]
    if op.type == "Conv" or op.attribute("transB", 0):
        scaled = kernel * a.reshape(-1, *(1,) * (kernel.ndim - 1))
    elif op.type == "Gemm":
        scaled = kernel * a
    else:
        groups, ones = op.attribute("group", 1), (1,) * (kernel.ndim - 2)
        grouped = kernel.reshape(groups, -1, *kernel.shape[1:])
        scaled = (grouped * a.reshape(groups, 1, -1, *ones)).reshape(kernel.shape)
    shift = draft.constants[bias].astype(np.float64) if bias else np.zeros(a.size)
    hint = op.outputs[0]
    op.inputs = [op.inputs[0], draft.constant(f"{hint}_weight", scaled.astype(kernel.dtype))]
    if bias or b.any():
        shifted = np.asarray(shift * a + b).astype(kernel.dtype)
        op.inputs.append(draft.constant(f"{hint}_bias", shifted))
    return True
