"""What a toolchain instance offers for a graph, as plain functions and data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from collage_engine.partition.spec import PartitionSpec
from collage_engine.records.toolchain import ToolchainInstance


@dataclass(frozen=True)
class Offer:
    """One toolchain instance with its rules for the graph in hand."""

    instance: ToolchainInstance
    spec: PartitionSpec | None
    """None: only single operators, regions, blocks and the whole model are offered."""
    supports: Callable[[int], str | None]
    """Node index of a call → None when the instance can run it, else the reason."""
    whole_model: bool = True
    """Whether the whole model may be one of its candidates."""
    native: bool = False
    """Compiled by TVM itself: FuseOps groups are among its candidates."""
    device: str = "cpu"
