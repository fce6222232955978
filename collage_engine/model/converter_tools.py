"""Reads shapes, types and constants of Relax expressions, for all our converters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm.ir import GenericConst

Converter = Callable[[Any, Any, dict[str, Any], int], Any]
"""A function from a block builder, the inputs, attributes and opset of a node to its expression, or
to None, which leaves the node to TVM's converter."""


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a Relax value, all of whose sizes are known."""
    return tuple(int(d) for d in value.ty.shape.values)


def dtype_of(value: Any) -> str:
    """Return the element type of a Relax value."""
    return str(value.ty.dtype.dtype)


def values_of(value: Any) -> np.ndarray | None:
    """Return a constant's values; None when the value is no constant, or absent."""
    return value.value.numpy() if isinstance(value, GenericConst) else None


def text_of(attributes: dict[str, Any], name: str, default: str) -> str:
    """Return a text attribute of an ONNX node, or the default when it is absent."""
    value = attributes.get(name, default)
    return value.decode() if isinstance(value, bytes) else value
