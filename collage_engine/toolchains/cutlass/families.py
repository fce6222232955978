"""Lists families of kernels and the tiles of each; ``sources`` writes their CUDA source.

A family is an operation, an element type, an order of the right operand, an activation and an
alignment. Bias and residual sum are given or not at run time, as all sizes are. Its kernels are of
a *generation*: sm80 are CUTLASS's 2.x templates (any device from Ampere on, compiled for the
architecture that is used), sm90 its 3.x collectives for Hopper (TMA and wgmma).
"""

from __future__ import annotations

from dataclasses import dataclass

from collage_engine.toolchains.cutlass import headers

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
"""Activations that a family in floating point may end with."""
ALIGNMENTS = {
    "float16": (8, 2),
    "bfloat16": (8, 2),
    "tf32": (4, 1),
    "float32": (1,),
    "int8": (16, 4),
    "uint8": (16, 4),
}
"""Elements of operands that can be read at once, the widest first, by arithmetic. The widest for
tensor cores is 16 bytes, what one instruction loads; the other one is chosen."""
WHOLE = {"float16": 8, "bfloat16": 8, "float32": 4}
"""Number of elements in 16 bytes, by element type."""
SMALL = ("int8", "uint8")
"""8-bit element types that a product's left operand may have."""


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
        return f"sm80_{self.m}x{self.n}x{self.k}_{self.stages}"


@dataclass(frozen=True)
class WideTile:
    """A tile of Hopper's kernels.

    ``cluster`` is the number of blocks of a cluster along m. ``schedule`` tells how warp groups
    share the tile: pingpong, cooperative, or alone, where one warp group computes a block.
    """

    m: int
    n: int
    k: int
    cluster: int
    schedule: str

    @property
    def name(self) -> str:
        """Return the name of the kernel."""
        return f"sm90_{self.m}x{self.n}x{self.k}_c{self.cluster}_{self.schedule}"


@dataclass(frozen=True)
class GroupTile(Tile):
    """A tile of a convolution in groups, whose filters are of several groups or of one."""

    several: bool = False

    @property
    def name(self) -> str:
        """Return the name of the kernel."""
        return f"{super().name}_{'several' if self.several else 'one'}"


@dataclass(frozen=True)
class AttentionTile:
    """The numbers of queries and keys of a block, and the widest heads that it takes."""

    queries: int
    keys: int
    widest: int

    @property
    def name(self) -> str:
        """Return the name of the kernel."""
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
"""Tiles that are compiled for float16 and bfloat16; chosen."""
TF32_TILES = (
    Tile(256, 128, 16, (4, 2), 3),
    Tile(128, 256, 16, (2, 4), 3),
    Tile(128, 128, 16, (2, 2), 4),
    Tile(128, 64, 16, (2, 2), 4),
    Tile(64, 128, 16, (2, 2), 4),
    Tile(64, 64, 32, (2, 2), 3),
)
"""Tiles that are compiled for tf32; chosen."""
SIMT_TILES = (
    Tile(128, 256, 8, (2, 4), 4),
    Tile(128, 128, 8, (4, 2), 4),
    Tile(128, 64, 8, (2, 2), 5),
    Tile(64, 128, 8, (2, 2), 5),
    Tile(32, 128, 8, (1, 2), 5),
)
"""Tiles for float32 without tensor cores; chosen."""
SMALL_TILES = (
    Tile(256, 128, 64, (4, 2), 3),
    Tile(128, 128, 64, (2, 2), 4),
    Tile(128, 64, 64, (2, 2), 4),
    Tile(64, 64, 64, (2, 2), 4),
)
"""Tiles that are compiled for 8-bit operands; chosen."""
HALF_GROUP_TILES = (
    GroupTile(128, 64, 32, (2, 2), 3, several=True),
    GroupTile(64, 64, 32, (2, 2), 3, several=True),
    GroupTile(128, 128, 32, (2, 2), 4),
    GroupTile(128, 64, 32, (2, 2), 4),
    GroupTile(64, 64, 32, (2, 2), 4),
)
"""Tiles for convolutions in groups in float16 and bfloat16; chosen."""
TF32_GROUP_TILES = (
    GroupTile(128, 64, 16, (2, 2), 3, several=True),
    GroupTile(64, 64, 16, (2, 2), 3, several=True),
    GroupTile(128, 64, 16, (2, 2), 4),
    GroupTile(64, 64, 16, (2, 2), 4),
)
"""Tiles for convolutions in groups in tf32; chosen."""
ATTENTION_TILES = (
    AttentionTile(64, 64, 64),
    AttentionTile(64, 128, 128),
    AttentionTile(32, 128, 65536),
)
"""Tiles that are compiled for attention; chosen."""
WIDE_HALF_TILES = (
    WideTile(128, 256, 64, 2, "cooperative"),
    WideTile(128, 128, 64, 2, "pingpong"),
    WideTile(64, 128, 64, 1, "pingpong"),
)
"""Hopper's tiles for products in float16 and bfloat16; chosen."""
WIDE_TF32_TILES = (
    WideTile(128, 128, 32, 2, "pingpong"),
    WideTile(64, 128, 32, 1, "pingpong"),
)
"""Hopper's tiles for products in tf32; chosen."""
WIDE_CONV_TILES = (
    WideTile(128, 128, 64, 1, "alone"),
    WideTile(64, 128, 64, 1, "alone"),
    WideTile(64, 64, 64, 1, "alone"),
)
"""Hopper's tiles that are compiled for convolutions; chosen."""


@dataclass(frozen=True, order=True)
class Family:
    """A family of kernels: what one kernel library is compiled for."""

    op: str
    """The operation: gemm, conv, group (a convolution in groups) or attention."""
    math: str
    """The arithmetic: float16 or bfloat16 (both accumulated in float32), tf32, float32 without
    tensor cores, or the 8-bit type of the left operand, whose products are accumulated in
    int32."""
    order: str
    """The order of a product's right operand [k, n]: rows or columns; filters have columns."""
    activation: str
    align: int
    """Elements of which the beginning of every row of every operand is a multiple."""
    out: str = ""
    """The result's type where operands have 8 bits."""

    @property
    def name(self) -> str:
        """Return the name of the family, as programs and libraries have it."""
        what = f"{self.op}_{self.math}_{self.order}_{self.activation}_a{self.align}"
        return f"{what}_{self.out}" if self.out else what

    @property
    def dtype(self) -> str:
        """Return the type of the left operand's elements."""
        return "float32" if self.math == "tf32" else self.math

    def generations(self, architecture: str) -> tuple[str, ...]:
        """Returns the generations of its kernels on an architecture such as sm_90a."""
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
        """Returns its libraries on an architecture.

        Kernels that take long to compile have one each.
        """
        found: list[Share] = []
        for generation in self.generations(architecture):
            tiles = self.tiles(generation)
            apart = generation == "sm90"
            found += [Share(self, (t,)) for t in tiles] if apart else [Share(self, tiles)]
        return tuple(found)

    def tiles(self, generation: str) -> tuple[AnyTile, ...]:
        """Returns the tiles of its kernels of a generation."""
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
    """The part of a family that one library holds: kernels of one generation."""

    family: Family
    tiles: tuple[AnyTile, ...]

    @property
    def generation(self) -> str:
        """Return the generation of its kernels."""
        return "sm90" if isinstance(self.tiles[0], WideTile) else "sm80"

    @property
    def name(self) -> str:
        """Return the name of the library."""
        what = self.tiles[0].name if len(self.tiles) == 1 else self.generation
        return f"{self.family.name}_{what}"

    @property
    def kernels(self) -> tuple[str, ...]:
        """Return the names of its kernels."""
        return tuple(tile.name for tile in self.tiles)


def alignment(math: str, *sizes: int) -> int | None:
    """Returns the widest alignment of which all row lengths are multiples.

    The result is None where there is none.
    """
    return next((a for a in ALIGNMENTS[math] if all(size % a == 0 for size in sizes)), None)
