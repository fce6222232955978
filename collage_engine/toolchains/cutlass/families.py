"""Families of kernels, the tiles of each, and the CUDA source of its library.

A family is an operation, an element type, an order of the right operand, an activation and an
alignment; bias and residual sum are there or not at run time, as all sizes are. Its kernels are of
a *generation*: sm80 are CUTLASS's 2.x templates (any device from Ampere on, compiled for the
architecture at hand), sm90 its 3.x collectives for Hopper (TMA and wgmma).
"""

from __future__ import annotations

from dataclasses import dataclass

ELEMENTS = {
    "float16": "cutlass::half_t", "bfloat16": "cutlass::bfloat16_t", "float32": "float",
}  # fmt: skip
ACTIVATIONS = {
    "none": "Identity", "relu": "ReLu", "gelu": "GELU", "gelu_tanh": "GELU_taylor",
    "silu": "SiLu",
}  # fmt: skip
"""Epilogue → the functor of cutlass::epilogue::thread."""
ORDERS = {"rows": "cutlass::layout::RowMajor", "columns": "cutlass::layout::ColumnMajor"}
ALIGNMENTS = {"float16": (8, 2), "bfloat16": (8, 2), "tf32": (4, 1), "float32": (1,)}
"""Mathematics → elements that operands may be read by at once, the best first."""


@dataclass(frozen=True)
class Tile:
    """Of a block, m × n × k, in warps m × n, with a pipeline of so many stages."""

    m: int
    n: int
    k: int
    warps: tuple[int, int]
    stages: int

    @property
    def name(self) -> str:
        return f"sm80_{self.m}x{self.n}x{self.k}_{self.stages}"


@dataclass(frozen=True)
class WideTile:
    """Of Hopper's: the block's tile, blocks of a cluster along m, and how warp groups share it."""

    m: int
    n: int
    k: int
    cluster: int
    pingpong: bool

    @property
    def name(self) -> str:
        kind = "pingpong" if self.pingpong else "cooperative"
        return f"sm90_{self.m}x{self.n}x{self.k}_c{self.cluster}_{kind}"


HALF_TILES = (
    Tile(256, 128, 32, (4, 2), 3),
    Tile(128, 256, 32, (2, 4), 3),
    Tile(128, 128, 32, (2, 2), 4),
    Tile(128, 64, 32, (2, 2), 4),
    Tile(64, 128, 32, (2, 2), 4),
    Tile(64, 64, 64, (2, 2), 4),
)
TF32_TILES = (
    Tile(256, 128, 16, (4, 2), 3),
    Tile(128, 256, 16, (2, 4), 3),
    Tile(128, 128, 16, (2, 2), 4),
    Tile(128, 64, 16, (2, 2), 4),
    Tile(64, 128, 16, (2, 2), 4),
    Tile(64, 64, 32, (2, 2), 3),
)
SIMT_TILES = (
    Tile(128, 256, 8, (2, 4), 4),
    Tile(128, 128, 8, (4, 2), 4),
    Tile(128, 64, 8, (2, 2), 5),
    Tile(64, 128, 8, (2, 2), 5),
    Tile(32, 128, 8, (1, 2), 5),
)
WIDE_HALF_TILES = (
    WideTile(128, 256, 64, 2, False),
    WideTile(128, 128, 64, 2, True),
    WideTile(64, 128, 64, 1, True),
)
WIDE_TF32_TILES = (
    WideTile(128, 128, 32, 2, True),
    WideTile(64, 128, 32, 1, True),
)


@dataclass(frozen=True, order=True)
class Family:
    """What one kernel library is compiled for."""

    op: str
    """gemm or conv"""
    math: str
    """float16, bfloat16 (both accumulated in float32), tf32, or float32 without tensor cores."""
    order: str
    """Of a product's right operand [k, n]: by rows or by columns; of filters: columns."""
    activation: str
    align: int
    """Elements; every row of every operand begins at a multiple of them."""

    @property
    def name(self) -> str:
        return f"{self.op}_{self.math}_{self.order}_{self.activation}_a{self.align}"

    @property
    def dtype(self) -> str:
        return "float32" if self.math == "tf32" else self.math

    def generations(self, architecture: str) -> tuple[str, ...]:
        """Of the kernels that it has on an architecture such as sm_90a."""
        number = int("".join(c for c in architecture if c.isdigit()) or 0)
        if number < 80:
            return ()
        hopper = architecture == "sm_90a" and self.op == "gemm"
        whole = self.align == ALIGNMENTS[self.math][0]  # TMA moves pieces of 16 bytes
        # wgmma reads float32 along k only.
        wide = self.math in ("float16", "bfloat16") or (
            self.math == "tf32" and self.order == "columns"
        )
        return ("sm80", "sm90") if hopper and whole and wide else ("sm80",)

    def shares(self, architecture: str) -> tuple[Share, ...]:
        """Its libraries on an architecture; what takes long to compile comes one by one."""
        found: list[Share] = []
        for generation in self.generations(architecture):
            tiles = self.tiles(generation)
            apart = generation == "sm90"
            found += [Share(self, (t,)) for t in tiles] if apart else [Share(self, tiles)]
        return tuple(found)

    def tiles(self, generation: str) -> tuple[Tile | WideTile, ...]:
        if generation == "sm90":
            return WIDE_TF32_TILES if self.math == "tf32" else WIDE_HALF_TILES
        if self.math == "float32":
            return SIMT_TILES
        return TF32_TILES if self.math == "tf32" else HALF_TILES


@dataclass(frozen=True)
class Share:
    """What one library holds of a family: kernels of one generation."""

    family: Family
    tiles: tuple[Tile | WideTile, ...]

    @property
    def generation(self) -> str:
        return "sm90" if isinstance(self.tiles[0], WideTile) else "sm80"

    @property
    def name(self) -> str:
        what = self.tiles[0].name if len(self.tiles) == 1 else self.generation
        return f"{self.family.name}_{what}"

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(tile.name for tile in self.tiles)


def alignment(math: str, *sizes: int) -> int | None:
    """The widest alignment that all row lengths are multiples of; None: there is none."""
    return next((a for a in ALIGNMENTS[math] if all(size % a == 0 for size in sizes)), None)


def source_of(share: Share) -> str:
    """The library's translation unit."""
    family = share.family
    aliases, entries = [], []
    for number, tile in enumerate(share.tiles):
        kind = _wide_kernel(family, tile) if isinstance(tile, WideTile) else _kernel(family, tile)
        aliases.append(f"using Kernel{number} = {kind};")
        entries.append(f'    collage::Entry<Kernel{number}>::Make("{tile.name}"),')
    header = "gemm_sm90.h" if share.generation == "sm90" else f"{family.op}_sm80.h"
    activation = ACTIVATIONS[family.activation]
    return "\n".join([
        f'#include "{header}"',
        "",
        "namespace {",
        "",
        f"using Element = {ELEMENTS[family.dtype]};",
        "template <typename T>",
        f"using Activation = cutlass::epilogue::thread::{activation}<T>;",
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
    ])  # fmt: skip


def _shape(m: int, n: int, k: int) -> str:
    return f"cutlass::gemm::GemmShape<{m}, {n}, {k}>"


def _kernel(family: Family, tile: Tile) -> str:
    simt = family.math == "float32"
    # What a store writes at once: 16 bytes, or what rows are multiples of. Without tensor cores a
    # thread holds single elements of a row.
    out = family.align
    instruction = _shape(1, 1, 1) if simt else _shape(16, 8, 8 if family.math == "tf32" else 16)
    order = f"{ORDERS[family.order]}, " if family.op == "gemm" else ""
    name = "Gemm80" if family.op == "gemm" else "Conv80"
    warp = _shape(tile.m // tile.warps[0], tile.n // tile.warps[1], tile.k)
    return (
        f"collage::{name}<Element, {order}"
        f"cutlass::arch::{'OpClassSimt' if simt else 'OpClassTensorOp'}, "
        f"{_shape(tile.m, tile.n, tile.k)}, {warp}, {instruction}, {tile.stages}, "
        f"{family.align}, {out}, Activation>"
    )


def _wide_kernel(family: Family, tile: WideTile) -> str:
    def shape(*sizes: int) -> str:
        return "cute::Shape<" + ", ".join(f"cute::Int<{size}>" for size in sizes) + ">"

    kind = "Pingpong" if tile.pingpong else "Cooperative"
    epilogue = "TmaWarpSpecialized" + ("" if tile.pingpong else "Cooperative")
    return (
        f"collage::Gemm90<Element, {ORDERS[family.order]}, {shape(tile.m, tile.n, tile.k)}, "
        f"{shape(tile.cluster, 1, 1)}, cutlass::gemm::KernelTmaWarpSpecialized{kind}, "
        f"cutlass::epilogue::{epilogue}, Activation>"
    )
