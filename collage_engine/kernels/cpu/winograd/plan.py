"""Defines the parameters of a convolution by Winograd's method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from collage_engine.kernels.rule import Plan, parameter


@dataclass(frozen=True)
class WinogradPlan(Plan):
    """The parameters of kernels by Winograd's method."""

    outputs: Literal[2, 4]
    """Results along the side of a tile."""
    block: int = parameter(least=1, most=8)
    """Output channels per block, counted in vectors."""
    group: int = parameter(least=1)
    """Rows of tiles that are transformed, multiplied and brought back together."""
    rows: int | None = parameter(None, least=1)
    """Tiles that a register tile of the products takes; None: as estimated for each group."""
