"""Takes arrays in and out of TVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from collage_engine.model.values import bytes_of, from_bytes, numpy_type
from collage_engine.records.format import TO_LOGICAL, TO_STORED
from collage_engine.records.graph import TensorType
from collage_engine.support.errors import ToolchainError

if TYPE_CHECKING:
    import numpy as np
    from tvm.runtime import Tensor


def empty(kind: TensorType, device: Any = None) -> Tensor:
    """Return an uninitialised tensor, 64-byte aligned; on the CPU unless a ``device`` is given."""
    import tvm

    stored = kind.stored
    return tvm.runtime.empty(stored.shape, stored.dtype, tvm.cpu() if device is None else device)


def from_numpy(array: np.ndarray, kind: TensorType, device: Any = None) -> Tensor:
    """Return a TVM tensor that holds a copy of an array.

    Args:
        array: The values.
        kind: The tensor's type, whose shape and element type the array must have.
        device: Where the tensor lies; None: in the processor's memory.

    Raises:
        ToolchainError: The array has another shape or element type.
    """
    array = np.asarray(array)
    if array.shape != tuple(kind.shape) or array.dtype != numpy_type(kind.dtype):
        raise ToolchainError(
            f"expected {kind}, got {array.dtype}[{','.join(map(str, array.shape))}]"
        )
    tensor = empty(kind, device)
    if kind.dtype == "string":
        array = bytes_of(array)
    tensor.copyfrom(np.ascontiguousarray(array).reshape(kind.stored.shape))
    return tensor


def to_numpy(tensor: Any, kind: TensorType) -> np.ndarray:
    """Return a NumPy copy of a tensor.

    Args:
        tensor: The tensor; one on a device is waited for.
        kind: The logical type, which tells texts and bfloat16.
    """
    array: np.ndarray = tensor.numpy()
    if kind.dtype == "string":
        return from_bytes(array)
    if kind.dtype == "bfloat16" and array.dtype != numpy_type("bfloat16"):
        array = array.view(numpy_type("bfloat16"))
    return array


def as_stored(array: np.ndarray, name: str) -> np.ndarray:
    """Return a logical value seen as the tensor that holds it in a format (a view)."""
    axes = TO_STORED.get(name)
    return array if axes is None else array.transpose(axes)


def as_logical(array: np.ndarray, name: str) -> np.ndarray:
    """Return a tensor that holds a value in a format seen in its logical order of axes (a view)."""
    axes = TO_LOGICAL.get(name)
    return array if axes is None else array.transpose(axes)
