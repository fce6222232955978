"""Writes the CUDA source of a kernel library: one instance of a template for each tile."""

from __future__ import annotations

from collage_engine.toolchains.cutlass.families import TILES, Family, Tile

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
