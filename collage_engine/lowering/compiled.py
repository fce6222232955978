"""What a compiled candidate can do, whatever it was compiled for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from collage_engine.lowering.tensors import from_numpy, to_numpy
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function, Toolchain

if TYPE_CHECKING:
    import numpy as np

Timer = Callable[[int], float]
"""Makes this many calls in a row; returns their total seconds."""


class Compiled(ABC):
    """A compiled candidate; close it to give its weights and threads back."""

    def __init__(self, function: Function, toolchain: Toolchain) -> None:
        self.function = function
        self.toolchain = toolchain

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

    def _arrays(self, outputs: Sequence[Any]) -> list[np.ndarray]:
        """Return copies of the outputs as arrays."""
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

    @abstractmethod
    def inside(self) -> dict[str, Any]:
        """Return what the toolchain says of the compiled module."""

    @abstractmethod
    def close(self) -> None:
        """Drop the module; nothing may be called afterwards."""

    def __enter__(self) -> Compiled:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
