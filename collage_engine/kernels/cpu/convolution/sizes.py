"""Holds the sizes that convolutions of every layout and element type have."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ConvSizes:
    """Extents of an N-dimensional convolution; spatial tuples have one entry per dimension."""

    data: Any
    weight: Any
    """The weight's buffer, packed as the rule that writes the kernel wants it."""
    batch: int
    ci: int
    co: int
    """``ci`` and ``co``: input and output channels of all groups together."""
    groups: int
    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    """``before`` and ``after``: elements of padding before and behind each spatial axis."""

    @property
    def padded(self) -> tuple[int, ...]:
        """Return the spatial sizes with the padding."""
        return tuple(b + s + a for b, s, a in zip(self.before, self.size, self.after, strict=True))

    @property
    def has_padding(self) -> bool:
        """Tells whether there is any padding."""
        return any(self.before) or any(self.after)

    @property
    def pointwise(self) -> bool:
        """Tells whether every output position reads one input position, those skipped left out."""
        return self.taps == 1 and not self.has_padding

    @property
    def taps(self) -> int:
        """Returns the taps of the whole kernel."""
        return prod(self.kernel)


def of_points(data: Any, weight: Any, rows: int, depth: int, columns: int) -> dict[str, Any]:
    """Returns the fields that make a matrix product a convolution of points.

    Rows of the left operand are positions along one spatial axis, columns of the right one are
    output channels, and the kernel is a single tap.
    """
    return {
        "data": data,
        "weight": weight,
        "batch": 1,
        "ci": depth,
        "co": columns,
        "groups": 1,
        "size": (rows,),
        "out": (rows,),
        "kernel": (1,),
        "strides": (1,),
        "dilation": (1,),
        "before": (0,),
        "after": (0,),
    }
