"""Holds the parameters that all kernels with output channels in the vector lanes have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from msgspec.structs import replace

from collage_engine.kernels.cpu.writing.tile_choice import MOST_POSITIONS, fits, near
from collage_engine.kernels.rule import AtLeastOne, Plan, PlanError
from collage_engine.kernels.target import Cpu


class TilePlan(Plan, frozen=True):
    """A block of output channels, and a register tile of positions by one block."""

    block: AtLeastOne
    """Output channels per block, counted in vectors."""
    rows: AtLeastOne
    columns: AtLeastOne
    """Positions of a register tile: parts of one row, or several whole rows of an image."""

    def check_tile(self, channels: int, image: tuple[int, int], cpu: Cpu) -> None:
        """Checks the plan against the output channels of a group, and the image.

        Raises:
            PlanError: The block or the tile is larger than what there is, or does not fit.
        """
        rows, columns = image
        if self.block > -(-channels // cpu.lanes("float32")):
            raise PlanError(f"blocks of {self.block} vectors for {channels} channels")
        if self.rows > rows or self.columns > columns:
            raise PlanError(f"tiles of {self.rows} × {self.columns} for {rows} × {columns}")
        if self.rows > 1 and self.columns != columns:
            raise PlanError("tiles of several rows that are not whole")
        positions = self.rows * self.columns
        if positions > 1 and not fits(cpu, positions, self.block):
            raise PlanError(f"{positions} positions by {self.block} vectors do not fit")

    def other_tiles(self, image: tuple[int, int], cpu: Cpu) -> Iterator[Self]:
        """Yields plans of other numbers of positions."""
        rows, columns = image
        if columns == 1:
            for height in near(self.rows, min(rows, MOST_POSITIONS)):
                if fits(cpu, height, self.block):
                    yield replace(self, rows=height)
            return
        for width in near(self.columns, min(columns, MOST_POSITIONS)):
            if fits(cpu, width, self.block):
                yield replace(self, rows=1, columns=width)
        for height in range(1, rows + 1):
            if fits(cpu, height * columns, self.block):
                yield replace(self, rows=height, columns=columns)
