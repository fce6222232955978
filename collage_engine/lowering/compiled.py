"""What a compiled candidate can do, whatever it was compiled for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

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
