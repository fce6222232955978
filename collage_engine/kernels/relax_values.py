"""Reads shapes, types and constants of Relax expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.ir import Call, Expr, GenericConst, GlobalVar, Op, Tuple, TupleGetItem

ANCHOR = {"op_pattern": 4}
"""PrimFunc attribute: out-elementwise-fusable, whatever the analysis of its blocks would say."""


def name_of(value: Any) -> str:
    """Return the name of the operator that a value calls; empty: it calls none."""
    is_operator = isinstance(value, Call) and isinstance(value.op, Op)
    return str(value.op.name) if is_operator else ""


def static_shape(e: Expr) -> tuple[int, ...] | None:
    """Return the tensor's shape when all of it is known."""
    shape = getattr(e.ty, "shape", None)
    if shape is None:
        return None
    values = shape.values if hasattr(shape, "values") else shape
    try:
        return tuple(int(v) for v in values)
    except (TypeError, ValueError):
        return None


def dtype_of(e: Expr) -> str:
    """Return the element type of a tensor."""
    dtype = e.ty.dtype
    return str(getattr(dtype, "dtype", dtype))


def constant_of(e: Expr) -> np.ndarray | None:
    """Return the array of a constant; None for other expressions."""
    return e.value.numpy() if isinstance(e, GenericConst) else None


FLOATS = ("float32", "float16")
"""Types the schedules of products take; half precision is multiplied in single precision."""


def with_variables(e: Any, of: Callable[[Any], Any]) -> Any:
    """Return an expression with its variables, called functions and constants replaced.

    Args:
        e: The expression of a binding.
        of: What stands for a variable, a global variable or a constant.
    """
    if isinstance(e, relax.Var | GlobalVar | GenericConst):
        return of(e)
    if isinstance(e, Call):
        return Call(e.op, [with_variables(a, of) for a in e.args], e.attrs, e.ty_args)
    if isinstance(e, Tuple):
        return Tuple([with_variables(f, of) for f in e.fields])
    if isinstance(e, TupleGetItem):
        value = with_variables(e.tuple_value, of)
        return value.fields[e.index] if isinstance(value, Tuple) else TupleGetItem(value, e.index)
    return e


def float_operands(
    call: Call,
) -> tuple[tuple[int, ...], np.ndarray, tuple[int, ...]] | None:
    """Return the operands of a product in one of ``FLOATS`` with a constant weight.

    Returns:
        The shape of the data, the weight and the shape of the result; None for other products.
    """
    data, kernel = call.args
    shape, weight, out = static_shape(data), constant_of(kernel), static_shape(call)
    if shape is None or out is None or weight is None:
        return None
    dtype = dtype_of(call)
    if dtype not in FLOATS or dtype_of(data) != dtype or str(weight.dtype) != dtype:
        return None
    return shape, weight, out


def widened(tensor: Any) -> Any:
    """Return a TE tensor in single precision."""
    if str(tensor.dtype) == "float32":
        return tensor
    return te.compute(tensor.shape, lambda *i: tensor(*i).astype("float32"), name="widened")


def narrowed(tensor: Any, dtype: str) -> Any:
    """Return a TE tensor in the type that is asked for."""
    if str(tensor.dtype) == dtype:
        return tensor
    return te.compute(tensor.shape, lambda *i: tensor(*i).astype(dtype), name="narrowed")


def const(array: np.ndarray) -> Expr:
    """Return an array as a Relax constant."""
    return relax.const(np.ascontiguousarray(array), str(array.dtype))


def both_sides(padding: Sequence[int], dims: int) -> tuple[int, ...]:
    """Return the padding before every spatial axis, then behind every one, from TVM's short forms.

    Args:
        padding: One number for all, one for each axis, or all of them.
        dims: How many spatial axes there are.
    """
    if len(padding) == 1:
        return tuple(padding) * (2 * dims)
    return tuple(padding) * 2 if len(padding) == dims else tuple(padding)
