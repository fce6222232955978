"""Writes the CUDA source of a kernel library: one instance of a template for each tile."""

from __future__ import annotations

from collage_engine.toolchains.cutlass.families import Family, Tile

ELEMENTS = {"float16": "cutlass::half_t", "bfloat16": "cutlass::bfloat16_t", "float32": "float"}
"""The C++ type of an element, by element type."""
ORDERS = {"rows": "cutlass::layout::RowMajor", "columns": "cutlass::layout::ColumnMajor"}
"""The C++ layout of a matrix, by its order of elements."""
FUNCTORS = {
    "none": "Identity",
    "relu": "ReLu",
    "gelu": "GELU",
    "gelu_tanh": "GELU_taylor",
    "silu": "SiLu",
}
"""The name of CUTLASS's functor, by activation."""


def source_of(family: Family) -> str:
    """Returns the translation unit of a library."""
    aliases = [
        f"using Kernel{number} = {_kernel(family, tile)};"
        for number, tile in enumerate(family.tiles)
    ]
    entries = [
        f'    collage::Entry<Kernel{number}>::Make("{tile.name}"),'
        for number, tile in enumerate(family.tiles)
    ]
    return "\n".join(
        [
            f'#include "{family.op}.h"',
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
    order = f"{ORDERS[family.order]}, " if family.op == "gemm" else ""
    warp = _shape(tile.m // tile.warps[0], tile.n // tile.warps[1], tile.k)
    instruction = _shape(16, 8, 8 if family.math == "tf32" else 16)
    return (
        f"collage::{'Gemm' if family.op == 'gemm' else 'Conv'}<Element, {order}"
        f"{_shape(tile.m, tile.n, tile.k)}, {warp}, {instruction}, {tile.stages}, {family.align}, "
        f"collage::Fused<Element, {family.align}, Activation>>"
    )


def _shape(m: int, n: int, k: int) -> str:
    return f"cutlass::gemm::GemmShape<{m}, {n}, {k}>"
