"""Two runs side by side."""

from __future__ import annotations

from typing import Literal

import msgspec


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change says what became of one ONNX node between two runs."""

    node: int
    """The number of the node's first operator."""
    change: Literal["same", "moved", "regrouped"]
    before: str | None
    after: str | None
    delta_us: float | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs side by side; differences are those of ``b`` less those of ``a``."""

    a: str
    b: str
    measured_us: tuple[float | None, float | None]
    delta_us: float | None
    nodes: tuple[NodeChange, ...]
    partitions: tuple[tuple[int, int], ...] = ()
    """Number of partitions per toolchain is in ``by_toolchain``; here: (a, b) totals."""
    by_toolchain: dict[str, tuple[int, int]] = {}
