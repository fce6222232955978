"""Lists families of kernels and the tiles of each, and writes their CUDA source.

A family is an element type, an activation and an alignment; one library holds its kernels. Bias
and residual sum are given or not at run time, as all sizes are. Kernels are convolutions by
CUTLASS's 2.x templates, for tensor cores from Ampere on. (Its 3.x collectives for Hopper need files
that TVM's wheel leaves out. Its products, and float32 rounded to tf32, were the fastest nowhere:
``tests/gpu/RESULTS.md``.)

The source of a library is one instance of a template for each tile.
"""

from __future__ import annotations

from dataclasses import dataclass

ALIGNMENTS = (8, 2)
"""Elements of operands that can be read at once, the widest first: the most and the least that one
asynchronous copy moves, 16 and 4 bytes (PTX ISA, ``cp.async``)."""


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


TILES = (
    Tile(128, 256, 32, (2, 4), 3),
    Tile(128, 128, 32, (2, 2), 4),
    Tile(128, 64, 32, (2, 2), 4),
    Tile(64, 64, 64, (2, 2), 4),
)
"""Tiles that are compiled; chosen."""


@dataclass(frozen=True, order=True)
class Family:
    """A family of kernels: what one kernel library is compiled for."""

    dtype: str
    """The type of the operands' elements, float16 or bfloat16; both are summed in float32."""
    activation: str
    align: int
    """Elements of which the beginning of every row of every operand is a multiple."""

    @property
    def name(self) -> str:
        """Return the name of the family, as programs and libraries have it."""
        return f"conv_{self.dtype}_{self.activation}_a{self.align}"


def alignment(*sizes: int) -> int | None:
    """Returns the widest alignment of which all row lengths are multiples.

    The result is None where there is none.
    """
    return next((a for a in ALIGNMENTS if all(size % a == 0 for size in sizes)), None)


ELEMENTS = {"float16": "cutlass::half_t", "bfloat16": "cutlass::bfloat16_t"}
"""The C++ type of an element, by element type."""
FUNCTORS = {"none": "Identity", "relu": "ReLu", "silu": "SiLu"}
"""The name of CUTLASS's functor, by activation."""


def source_of(family: Family) -> str:
    """Returns the translation unit of a library."""
    aliases = [f"using Kernel{n} = {_kernel(family, tile)};" for n, tile in enumerate(TILES)]
    entries = [
        f'    collage::Entry<Kernel{n}>::Make("{tile.name}"),' for n, tile in enumerate(TILES)
    ]
    return "\n".join(
        [
            '#include "conv.h"',
            "",
            "namespace {",
            "",
            f"using Element = {ELEMENTS[family.dtype]};",
            "template <typename T>",
            f"using Activation = cutlass::epilogue::thread::{FUNCTORS[family.activation]}<T>;",
            *aliases,
            "",
            "const CollageKernel kKernels[] = {",
            *entries,
            "};",
            "",
            "}  // namespace",
            "",
            f'COLLAGE_LIBRARY("{family.name}", kKernels)',
            "",
        ]
    )


def _kernel(family: Family, tile: Tile) -> str:
    warp = _shape(tile.m // tile.warps[0], tile.n // tile.warps[1], tile.k)
    return (
        f"collage::Conv<Element, {_shape(tile.m, tile.n, tile.k)}, {warp}, {tile.stages}, "
        f"{family.align}, collage::Fused<Element, {family.align}, Activation>>"
    )


def _shape(m: int, n: int, k: int) -> str:
    return f"cutlass::gemm::GemmShape<{m}, {n}, {k}>"
