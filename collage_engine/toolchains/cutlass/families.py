"""Families of kernels and the tiles of each; their CUDA source is written by ``sources``.

A family is an operation, an element type, an order of the right operand, an activation and an
alignment; bias and residual sum are there or not at run time, as all sizes are. Its kernels are of
a *generation*: sm80 are CUTLASS's 2.x templates (any device from Ampere on, compiled for the
architecture at hand), sm90 its 3.x collectives for Hopper (TMA and wgmma).
"""

from __future__ import annotations

from dataclasses import dataclass

from collage_engine.toolchains.cutlass import headers

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
"""Epilogues of families in floating point."""
ALIGNMENTS = {
    "float16": (8, 2),
    "bfloat16": (8, 2),
    "tf32": (4, 1),
    "float32": (1,),
    "int8": (16, 4),
    "uint8": (16, 4),
}
"""Mathematics → elements that operands may be read by at once, the best first."""
WHOLE = {"float16": 8, "bfloat16": 8, "float32": 4}
"""Elements of 16 bytes, by type."""
SMALL = ("int8", "uint8")


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
    """Of Hopper's: the block's tile, blocks of a cluster along m, and how warp groups share it.

    ``schedule``: pingpong, cooperative, or alone: one warp group computes a block.
    """

    m: int
    n: int
    k: int
    cluster: int
    schedule: str

    @property
    def name(self) -> str:
        return f"sm90_{self.m}x{self.n}x{self.k}_c{self.cluster}_{self.schedule}"


@dataclass(frozen=True)
class GroupTile(Tile):
    """A tile of a convolution in groups: its filters are of several groups, or of one."""

    several: bool = False

    @property
    def name(self) -> str:
        return f"{super().name}_{'several' if self.several else 'one'}"


@dataclass(frozen=True)
class AttentionTile:
    """Queries and keys of a block, and the widest heads it takes."""

    queries: int
    keys: int
    widest: int

    @property
    def name(self) -> str:
        return f"sm80_{self.queries}x{self.keys}_h{self.widest}"


AnyTile = Tile | WideTile | AttentionTile

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
SMALL_TILES = (
    Tile(256, 128, 64, (4, 2), 3),
    Tile(128, 128, 64, (2, 2), 4),
    Tile(128, 64, 64, (2, 2), 4),
    Tile(64, 64, 64, (2, 2), 4),
)
HALF_GROUP_TILES = (
    GroupTile(128, 64, 32, (2, 2), 3, several=True),
    GroupTile(64, 64, 32, (2, 2), 3, several=True),
    GroupTile(128, 128, 32, (2, 2), 4),
    GroupTile(128, 64, 32, (2, 2), 4),
    GroupTile(64, 64, 32, (2, 2), 4),
)
TF32_GROUP_TILES = (
    GroupTile(128, 64, 16, (2, 2), 3, several=True),
    GroupTile(64, 64, 16, (2, 2), 3, several=True),
    GroupTile(128, 64, 16, (2, 2), 4),
    GroupTile(64, 64, 16, (2, 2), 4),
)
ATTENTION_TILES = (
    AttentionTile(64, 64, 64),
    AttentionTile(64, 128, 128),
    AttentionTile(32, 128, 65536),
)
WIDE_HALF_TILES = (
    WideTile(128, 256, 64, 2, "cooperative"),
    WideTile(128, 128, 64, 2, "pingpong"),
    WideTile(64, 128, 64, 1, "pingpong"),
)
WIDE_TF32_TILES = (
    WideTile(128, 128, 32, 2, "pingpong"),
    WideTile(64, 128, 32, 1, "pingpong"),
)
WIDE_CONV_TILES = (
    WideTile(128, 128, 64, 1, "alone"),
    WideTile(64, 128, 64, 1, "alone"),
    WideTile(64, 64, 64, 1, "alone"),
)


@dataclass(frozen=True, order=True)
class Family:
    """What one kernel library is compiled for."""

    op: str
    """gemm, conv, group (a convolution in groups) or attention"""
    math: str
    """float16, bfloat16 (both accumulated in float32), tf32, float32 without tensor cores, or the
    8-bit type of the left operand, whose products are accumulated in int32."""
    order: str
    """Of a product's right operand [k, n]: by rows or by columns; of filters: columns."""
    activation: str
    align: int
    """Elements; every row of every operand begins at a multiple of them."""
    out: str = ""
    """Of 8-bit operands: the result's type."""

    @property
    def name(self) -> str:
        what = f"{self.op}_{self.math}_{self.order}_{self.activation}_a{self.align}"
        return f"{what}_{self.out}" if self.out else what

    @property
    def dtype(self) -> str:
        """Of the left operand's elements."""
        return "float32" if self.math == "tf32" else self.math

    def generations(self, architecture: str) -> tuple[str, ...]:
        """Of the kernels that it has on an architecture such as sm_90a."""
        number = int("".join(c for c in architecture if c.isdigit()) or 0)
        if number < 80:
            return ()
        hopper = architecture == "sm_90a" and self.op in ("gemm", "conv")
        whole = self.align == ALIGNMENTS[self.math][0]  # TMA moves pieces of 16 bytes
        half = self.math in ("float16", "bfloat16")
        if self.op == "conv":
            wide = half and headers.utilities() is not None
        else:  # wgmma reads float32 along k only
            wide = half or (self.math == "tf32" and self.order == "columns")
        return ("sm80", "sm90") if hopper and whole and wide else ("sm80",)

    def shares(self, architecture: str) -> tuple[Share, ...]:
        """Its libraries on an architecture; what takes long to compile comes one by one."""
        found: list[Share] = []
        for generation in self.generations(architecture):
            tiles = self.tiles(generation)
            apart = generation == "sm90"
            found += [Share(self, (t,)) for t in tiles] if apart else [Share(self, tiles)]
        return tuple(found)

    def tiles(self, generation: str) -> tuple[AnyTile, ...]:
        if generation == "sm90":
            if self.op == "conv":
                return WIDE_CONV_TILES
            return WIDE_TF32_TILES if self.math == "tf32" else WIDE_HALF_TILES
        if self.op == "attention":
            return ATTENTION_TILES
        if self.op == "group":
            return TF32_GROUP_TILES if self.math == "tf32" else HALF_GROUP_TILES
        if self.math in SMALL:
            return SMALL_TILES
        if self.math == "float32":
            return SIMT_TILES
        return TF32_TILES if self.math == "tf32" else HALF_TILES


@dataclass(frozen=True)
class Share:
    """What one library holds of a family: kernels of one generation."""

    family: Family
    tiles: tuple[AnyTile, ...]

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
