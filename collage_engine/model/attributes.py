"""Reads a Relax call's attributes as JSON values: ``attrs``, and arguments that are no tensors.

Relax passes many attributes as expressions (``shape`` of reshape, ``min`` and ``max`` of clip,
``axes``, ``begin``, ``end`` and ``strides`` of strided_slice); they go by the operator's own
argument names.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from tvm import relax
from tvm.ir import Call, GenericConst, Op, StringImm
from tvm.tirx import FloatImm, IntImm

_EXTRA_ARGUMENTS = {
    "relax.strided_slice": ("x", "axes", "begin", "end", "strides"),
    "relax.full": ("shape", "fill_value"),
}


class NotStatic(Exception):
    """A size is known only when the model runs."""


def is_tensor(value: Any) -> bool:
    """Return whether a Relax expression is a tensor."""
    return isinstance(value, (relax.Var, GenericConst))


def is_tensor_tuple(value: Any) -> bool:
    """Return a tuple written in place whose fields are tensors."""
    return isinstance(value, relax.Tuple) and all(is_tensor(f) for f in value.fields)


def to_json(value: Any) -> Any:
    """Return a Relax attribute or immediate as a JSON value."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, IntImm):
        return bool(value.value) if str(value.ty) == "bool" else int(value.value)
    if isinstance(value, FloatImm):
        return float(value.value)
    if isinstance(value, StringImm):
        return str(value.value)
    if isinstance(value, relax.ShapeExpr):
        return [to_json(v) for v in value.values]
    if isinstance(value, relax.Tuple):
        return [to_json(v) for v in value.fields]
    if hasattr(value, "dtype") and not hasattr(value, "__len__") and hasattr(value, "ty"):
        raise NotStatic
    if hasattr(value, "__iter__"):
        return [to_json(v) for v in value]
    return str(value)


@cache
def _argument_names(op: str) -> tuple[str, ...]:
    if op in _EXTRA_ARGUMENTS:
        return _EXTRA_ARGUMENTS[op]
    return tuple(str(a.name) for a in Op.get(op).arguments)


def operator_name(call: Call) -> str:
    """Return a call's operator, for example ``nn.conv2d`` or ``call_tir:<name>``.

    The latter is a function that the importer lowered itself. An opaque operator's name is that of
    ``model.opaque``.

    Raises:
        NotStatic: The call is of a packed function, which computes a shape.
    """
    if not isinstance(call.op, Op):
        raise NotStatic  # a packed function that computes a shape
    name = str(call.op.name).removeprefix("relax.")
    if name.startswith("call_tir"):
        return f"call_tir:{call.args[0].name_hint}"
    if is_opaque_call(call):
        return str(call.args[0].global_symbol)
    return name


def is_opaque_call(call: Call) -> bool:
    """Tells whether a call is an opaque operator's: its name is that of an external function."""
    return str(call.op.name) == "relax.call_dps_packed"


def takes_a_tuple(call: Call) -> bool:
    """Return whether a call's tensors stand in one tuple behind the function that it calls."""
    return str(call.op.name).startswith("relax.call_tir") or is_opaque_call(call)


def tensor_arguments(call: Call) -> list[Any]:
    """Return the arguments that are tensors, or tuples of tensors, in order."""
    if takes_a_tuple(call):
        return list(call.args[1].fields)
    return [a for a in call.args if is_tensor(a) or is_tensor_tuple(a)]


def attributes_of(call: Call, functions: dict[str, Any]) -> dict[str, Any]:
    """Return all that is not a tensor, by name. ``functions``: PrimFuncs of the module by name.

    Raises ``NotStatic`` when a size is symbolic.
    """
    op = str(call.op.name)
    if op.startswith("relax.call_tir"):
        text = functions[call.args[0].name_hint].script(show_meta=True)
        return {"function": hashlib.sha256(text.encode()).hexdigest()}
    attributes: dict[str, Any] = {}
    if call.attrs is not None:
        for field in type(call.attrs).__tvm_ffi_type_info__.fields:
            attributes[field.name] = to_json(getattr(call.attrs, field.name))
    names = _argument_names(op)
    for number, argument in enumerate(call.args):
        if not is_tensor(argument) and not is_tensor_tuple(argument):
            name = names[number] if number < len(names) else f"argument{number}"
            attributes[name] = to_json(argument)
    return attributes
