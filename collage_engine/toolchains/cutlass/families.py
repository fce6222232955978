"""Lists families of kernels and the tiles of each; ``sources`` writes their CUDA source.

A family is an operation, an element type, an order of the right operand, an activation and an
alignment; one library holds its kernels. Bias and residual sum are given or not at run time, as
all sizes are. Kernels are CUTLASS's 2.x templates, for tensor cores from Ampere on. (Its 3.x
collectives for Hopper need files that TVM's wheel leaves out.)
"""

from __future__ import annotations

from dataclasses import dataclass

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
"""Activations that a family may end with."""
ALIGNMENTS = {"float16": (8, 2), "bfloat16": (8, 2), "tf32": (4, 1)}
"""Elements of operands that can be read at once, the widest first, by arithmetic. The widest for
tensor cores is 16 bytes, what one instruction loads; the other one is chosen."""


@dataclass(frozen=True)
class Tile:
    """A block's m × n × k, computed by m × n warps in a pipeline of so many stages."""

    m: int
    n: int
    k: int
    warps: tuple[int, int]
    stages: int

    @property
    def name(self) -> str:
        """Return the name of the kernel."""
        return f"{self.m}x{self.n}x{self.k}_{self.stages}"


HALF_TILES = (
    Tile(128, 256, 32, (2, 4), 3),
    Tile(128, 128, 32, (2, 2), 4),
    Tile(128, 64, 32, (2, 2), 4),
    Tile(64, 64, 64, (2, 2), 4),
)
"""Tiles that are compiled for float16 and bfloat16; chosen."""
TF32_TILES = (
    Tile(128, 128, 16, (2, 2), 4),
    Tile(128, 64, 16, (2, 2), 4),
    Tile(64, 64, 32, (2, 2), 3),
)
"""Tiles that are compiled for tf32; chosen."""


@dataclass(frozen=True, order=True)
class Family:
    """A family of kernels: what one kernel library is compiled for."""

    op: str
    """The operation: gemm or conv."""
    math: str
    """The arithmetic: float16 or bfloat16 (both accumulated in float32), or tf32."""
    order: str
    """The order of the product's right operand [k, n]: rows or columns; filters have columns."""
    activation: str
    align: int
    """Elements of which the beginning of every row of every operand is a multiple."""

    @property
    def name(self) -> str:
        """Return the name of the family, as programs and libraries have it."""
        return f"{self.op}_{self.math}_{self.order}_{self.activation}_a{self.align}"

    @property
    def dtype(self) -> str:
        """Return the type of the operands' elements."""
        return "float32" if self.math == "tf32" else self.math

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """Returns the tiles of its kernels."""
        return TF32_TILES if self.math == "tf32" else HALF_TILES


def alignment(math: str, *sizes: int) -> int | None:
    """Returns the widest alignment of which all row lengths are multiples.

    The result is None where there is none.
    """
    return next((a for a in ALIGNMENTS[math] if all(size % a == 0 for size in sizes)), None)
