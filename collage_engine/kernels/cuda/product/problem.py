"""States a product of matrices as a problem for kernel rules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from collage_engine.kernels.cuda.gpu import Gpu
from collage_engine.kernels.cuda.product.plan import ProductSizes
from collage_engine.kernels.rule import Record


@dataclass(frozen=True)
class ProductProblem:
    """The problem ``C[s, m, n] = Σ_k A[s, m, k] B[s, k, n]`` in one kind of arithmetic."""

    family: ClassVar[str] = "product"
    sizes: ProductSizes
    math: str
    """``plain``, or the tensor cores' element type: f16, bf16, tf32, s8."""

    def to_record(self) -> Record:
        """Returns the sizes and the arithmetic as JSON values."""
        size = self.sizes
        return {
            "family": self.family,
            "sizes": [size.s, size.m, size.n, size.k],
            "math": self.math,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ProductProblem:
        """Returns the problem whose ``to_record`` this is."""
        return cls(ProductSizes(*record["sizes"]), str(record["math"]))

    def workload(self, machine: Gpu) -> str:
        """Returns a line of text that equal products on equal architectures share."""
        size = self.sizes
        return f"product {size.s}x{size.m}x{size.n}x{size.k} {self.math} {machine.architecture}"

    @property
    def multiply_adds(self) -> float:
        """Returns how many products of two numbers are added up."""
        size = self.sizes
        return float(math.prod((size.s, size.m, size.n, size.k)))
