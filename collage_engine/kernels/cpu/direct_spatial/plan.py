"""Defines the parameters of a convolution with positions in the vector lanes."""

from __future__ import annotations

from dataclasses import dataclass

from collage_engine.kernels.rule import Plan, parameter
from collage_engine.kernels.target import Cpu

MOST_CHANNELS = 16
"""Output channels of a register tile that are considered. Chosen: half of the 32 registers that an
instruction set has at most."""
MOST_VECTORS = 6
"""Vectors of positions in a register tile that are considered. Chosen: with more, fewer than four
output channels fit 32 registers, and every load serves few products."""
BAND_SHARE = 1.5
"""Finished sums that are gathered before they are stored without surplus columns, as a share of the
first-level cache. Chosen: they are written and read once, in order, so that some may wait in the
second level; tuning halves and doubles it."""


@dataclass(frozen=True)
class SpatialPlan(Plan):
    """The parameters of kernels with positions in the vector lanes."""

    block: int = parameter(least=1, most=MOST_CHANNELS)
    """Output channels of a register tile, which are a block of the packed weight."""
    vectors: int | None = parameter(None, least=1, most=MOST_VECTORS)
    """Vectors of positions of a register tile; None: as estimated for each band of rows."""
    band: int | None = parameter(None, least=1 << 10)
    """Bytes of sums of one band of rows; None: ``BAND_SHARE`` of the first-level cache."""
    inside: bool | None = None
    """Whether blocks of channels are the inner loop and bands the outer one; None: where the
    weight fits half the second-level cache."""


def band_bytes(plan: SpatialPlan, cpu: Cpu) -> int:
    """Return the bytes of sums of one band of rows."""
    return plan.band or int(BAND_SHARE * cpu.l1_bytes)
