"""Takes arrays in and out of TVM, and what a compiled candidate can do with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from collage_engine.model.values import bytes_of, from_bytes, numpy_type
from collage_engine.records.format import TO_LOGICAL, TO_STORED
from collage_engine.records.graph import TensorType
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function, Toolchain

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


def to_numpy(tensor: Any, kind: TensorType | None = None) -> np.ndarray:
    """Return a NumPy copy of a tensor.

    Args:
        tensor: The tensor; one on a device is waited for.
        kind: The logical type, which tells texts and bfloat16; None: as the tensor says.
    """
    array: np.ndarray = tensor.numpy()
    if kind is not None and kind.dtype == "string":
        return from_bytes(array)
    if kind is not None and kind.dtype == "bfloat16" and array.dtype != numpy_type("bfloat16"):
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


Timer = Callable[[int], float]
"""Makes this many calls in a row; returns their total seconds."""


class Compiled(ABC):
    """A compiled candidate; close it to give its weights and threads back."""

    def __init__(self, function: Function, toolchain: Toolchain) -> None:
        self.function = function
        self.toolchain = toolchain
        self.module: Any = None
        """What the toolchain made of the function, a runtime module or TIR, while it is known."""

    def _bind(self, inputs: Sequence[np.ndarray], device: Any = None) -> list[Any]:
        """Return TVM tensors of the inputs, on a device or in the processor's memory.

        Raises:
            ToolchainError: Their number, shapes or element types are not the function's.
        """
        wanted = self.function.inputs
        if len(inputs) != len(wanted):
            raise ToolchainError(
                f"{self.function.symbol} takes {len(wanted)} inputs, {len(inputs)} were given"
            )
        kinds = map(self.function.input_type, wanted)
        return [from_numpy(*each, device) for each in zip(inputs, kinds, strict=True)]

    def _arrays(self, result: Any) -> list[np.ndarray]:
        """Return copies of the outputs, one tensor or several, as arrays."""
        is_single = len(self.function.outputs) == 1 and not isinstance(result, list)
        outputs = [result] if is_single else list(result)
        kinds = map(self.function.output_type, self.function.outputs)
        return [to_numpy(*each) for each in zip(outputs, kinds, strict=True)]

    @abstractmethod
    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run the function once.

        Args:
            inputs: Its inputs in order, as they are stored in their formats.

        Returns:
            Its outputs in order, as they are stored in their formats.
        """

    @abstractmethod
    def timer(self, inputs: Sequence[np.ndarray]) -> Timer:
        """Bind inputs; return what makes ``n`` calls in a row and returns their total seconds."""

    def inside(self) -> dict[str, Any]:
        """Return what the toolchain says of what it made."""
        return dict(self.toolchain.inside(self.module))

    @abstractmethod
    def close(self) -> None:
        """Drop the module; nothing may be called afterwards."""

    def __enter__(self) -> Compiled:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
