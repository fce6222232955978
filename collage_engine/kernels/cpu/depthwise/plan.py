"""Defines the parameters of depthwise convolutions."""

from __future__ import annotations

from dataclasses import dataclass

from collage_engine.kernels.rule import Plan, parameter

MOST_VECTORS = 4
"""Vectors of a register tile. Chosen: with two rows or columns, eight sums in flight hide the
latency of a multiply-add (4 or 5 cycles, two a cycle) on every processor with vectors."""


@dataclass(frozen=True)
class DepthwiseFirstPlan(Plan):
    """The parameters of depthwise kernels over channels-first data, positions in the lanes."""

    vectors: int = parameter(least=1, most=MOST_VECTORS)
    """Vectors of positions of a register tile."""
    rows: int = parameter(least=1)
    """Rows of the image that a register tile covers."""
    planes: int | None = parameter(None, least=1)
    """Channels whose padded planes are made together; None: as many as fit a third of the
    first-level cache."""


@dataclass(frozen=True)
class DepthwiseLastPlan(Plan):
    """The parameters of depthwise kernels over channels-last data, channels in the lanes."""

    vectors: int = parameter(least=1, most=MOST_VECTORS)
    """Vectors of channels of a register tile."""
    columns: int = parameter(least=1)
    """Positions of a row in a register tile."""
    band: int | None = parameter(None, least=1)
    """Rows that are padded together; None: as many as fit a quarter of the second-level cache."""
