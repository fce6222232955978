"""Shapes, types and constants of Relax expressions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Expr, GenericConst

from collage_engine.toolchains.tvm.program import NOTE

ANCHOR = {"op_pattern": 4}
"""PrimFunc attribute: out-elementwise-fusable, whatever the analysis of its blocks would say."""


def static_shape(e: Expr) -> tuple[int, ...] | None:
    """The tensor's shape when all of it is known."""
    shape = getattr(e.ty, "shape", None)
    if shape is None:
        return None
    values = shape.values if hasattr(shape, "values") else shape
    try:
        return tuple(int(v) for v in values)
    except (TypeError, ValueError):
        return None


def dtype_of(e: Expr) -> str:
    dtype = e.ty.dtype
    return str(getattr(dtype, "dtype", dtype))


def constant_of(e: Expr) -> np.ndarray | None:
    """The array of a constant; None for other expressions."""
    return e.value.numpy() if isinstance(e, GenericConst) else None


def note(**values: Any) -> dict[str, str]:
    """Block annotation that tells the schedules what the block is."""
    return {NOTE: json.dumps(values, sort_keys=True)}


def const(array: np.ndarray) -> Expr:
    return relax.const(np.ascontiguousarray(array), str(array.dtype))
