"""States products of two values of run time."""

from __future__ import annotations

from math import prod

import msgspec
import numpy as np


class RuntimeMatmul(msgspec.Struct, frozen=True, tag_field="family", tag="runtime"):
    """A batched product of two values; leading axes broadcast as NumPy's do."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Returns the rows of one matrix of the left operand."""
        return self.left[-2]

    @property
    def depth(self) -> int:
        """Returns how many products are added up to one result."""
        return self.left[-1]

    @property
    def columns(self) -> int:
        """Return the columns of one matrix of the right operand."""
        return self.right[-1]

    @property
    def multiply_adds(self) -> float:
        """Returns how many products are added up."""
        return float(prod(self.out) * self.depth)

    def operands(self, random: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Returns random matrices; results are about as large as the left one's elements."""
        left, right = (
            random.standard_normal(shape, dtype=np.float32) for shape in (self.left, self.right)
        )
        return left, right * np.float32(self.depth**-0.5)
