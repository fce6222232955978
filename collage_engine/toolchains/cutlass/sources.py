"""Writes the CUDA source of a kernel library: one instance of a template for each tile."""

from __future__ import annotations

from collage_engine.toolchains.cutlass.families import (
    SMALL,
    AnyTile,
    AttentionTile,
    Family,
    GroupTile,
    Share,
    Tile,
    WideTile,
)

ELEMENTS = {
    "float16": "cutlass::half_t",
    "bfloat16": "cutlass::bfloat16_t",
    "float32": "float",
    "int8": "int8_t",
    "uint8": "uint8_t",
}
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
MOST_STORED = {"int8": 8, "uint8": 8, "float32": 4}
"""Elements of a result of 8-bit operands that one store writes, by the result's type; chosen."""


def source_of(share: Share) -> str:
    """Returns the translation unit of a library."""
    family = share.family
    aliases, entries = [], []
    for number, tile in enumerate(share.tiles):
        aliases.append(f"using Kernel{number} = {_kernel(family, tile)};")
        entries.append(f'    collage::Entry<Kernel{number}>::Make("{tile.name}"),')
    return "\n".join(
        [
            f'#include "{family.op}_{share.generation}.h"',
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


def _kernel(family: Family, tile: AnyTile) -> str:
    if isinstance(tile, AttentionTile):
        return f"collage::Attention80<Element, {tile.queries}, {tile.keys}, {tile.widest}>"
    if isinstance(tile, WideTile):
        return _wide_conv(tile) if family.op == "conv" else _wide_gemm(family, tile)
    if isinstance(tile, GroupTile):
        return (
            f"collage::Group80<Element, {'true' if tile.several else 'false'}, "
            f"{_tile(tile)}, {_instruction(family)}, {tile.stages}, {family.align}, "
            f"collage::FusedSource<Element, {family.align}, Activation>>"
        )
    return _gemm_or_conv(family, tile)


def _gemm_or_conv(family: Family, tile: Tile) -> str:
    simt, small = family.math == "float32", family.math in SMALL
    order = f"{ORDERS[family.order]}, " if family.op == "gemm" else ""
    # What a store writes at once: 16 bytes, or what rows are multiples of. Without tensor cores a
    # thread holds single elements of a row.
    epilogue = f"collage::Fused<Element, {family.align}, Activation>"
    if small:
        stored = min(family.align, MOST_STORED[family.out])
        epilogue = f"collage::Requantized<{ELEMENTS[family.out]}, {stored}>"
    return (
        f"collage::{'Gemm80' if family.op == 'gemm' else 'Conv80'}<"
        f"Element, {'int8_t' if small else 'Element'}, {order}"
        f"cutlass::arch::{'OpClassSimt' if simt else 'OpClassTensorOp'}, "
        f"cutlass::arch::{'OpMultiplyAddSaturate' if small else 'OpMultiplyAdd'}, "
        f"{_tile(tile)}, {_instruction(family)}, {tile.stages}, {family.align}, {epilogue}>"
    )


def _instruction(family: Family) -> str:
    """Returns the shape of one multiplication."""
    if family.math == "float32":
        return _shape(1, 1, 1)
    depth = {"tf32": 8, "int8": 32, "uint8": 32}.get(family.math, 16)
    return _shape(16, 8, depth)


def _tile(tile: Tile) -> str:
    """Returns the shapes of a block's tile and of a warp's."""
    warp = _shape(tile.m // tile.warps[0], tile.n // tile.warps[1], tile.k)
    return f"{_shape(tile.m, tile.n, tile.k)}, {warp}"


def _shape(m: int, n: int, k: int) -> str:
    return f"cutlass::gemm::GemmShape<{m}, {n}, {k}>"


def _cute(*sizes: int | str) -> str:
    return (
        "cute::Shape<"
        + ", ".join(size if isinstance(size, str) else f"cute::Int<{size}>" for size in sizes)
        + ">"
    )


def _wide_gemm(family: Family, tile: WideTile) -> str:
    epilogue = "TmaWarpSpecialized" + ("Cooperative" if tile.schedule == "cooperative" else "")
    return (
        f"collage::Gemm90<Element, {ORDERS[family.order]}, {_cute(tile.m, tile.n, tile.k)}, "
        f"{_cute(tile.cluster, 1, 1)}, "
        f"cutlass::gemm::KernelTmaWarpSpecialized{tile.schedule.capitalize()}, "
        f"cutlass::epilogue::{epilogue}, Activation>"
    )


def _wide_conv(tile: WideTile) -> str:
    """Returns the kernel's type; the last part of a convolution's tile is a shape of its own."""
    return (
        f"collage::Conv90<Element, {_cute(tile.m, tile.n, _cute(tile.k))}, "
        f"{_cute(tile.cluster, 1, 1)}, Activation>"
    )
