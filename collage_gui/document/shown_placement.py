"""Holds the placement that the window shows, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from PySide6.QtCore import QObject, Signal

from collage_engine.records.placement import Partition, Placement
from collage_engine.service.protocol import ShownCover


@dataclass(frozen=True)
class Shown:
    """A placement with the run, search or baseline from which it comes."""

    placement: Placement
    title: str
    run: str | None = None
    """Id of the run that exports it; None for any other placement."""
    estimated: bool = True
    """Whether its latency is an estimate that no run has confirmed."""
    pins: tuple[str, ...] = ()
    """The pins under which it was made, as written: with other pins it is out of date."""
    found_by: str | None = None
    """Id of the run whose search found it while the run exports another one."""
    provisional: bool = False
    """Whether a run that was under way had found it."""

    @cached_property
    def partitions(self) -> dict[int, Partition]:
        """Return the partition of each operator."""
        return {n: p for p in self.placement.partitions for n in p.nodes}


class ShownPlacement(QObject):
    """The placement that the graph and every table show."""

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.shown: Shown | None = None

    @property
    def partitions(self) -> dict[int, Partition]:
        """Return the partition of each operator; none without a placement."""
        return self.shown.partitions if self.shown is not None else {}

    @property
    def named(self) -> ShownCover:
        """Returns the shown placement as the engine knows it: by its run, else by candidates."""
        if self.shown is None:
            return ShownCover()
        if self.shown.run is not None:
            return ShownCover(run=self.shown.run)
        return ShownCover(candidates=tuple(p.candidate for p in self.shown.placement.partitions))

    def show(self, shown: Shown) -> None:
        """Show another placement."""
        self.shown = shown
        self.changed.emit()

    def clear(self) -> None:
        """Show no placement: another graph takes the place of the one that had it."""
        self.shown = None
        self.changed.emit()

    def partition_of(self, operator: int | None) -> Partition | None:
        """Returns the partition that holds an operator."""
        return self.partitions.get(operator) if operator is not None else None


def same_placement(one: Placement, other: Placement) -> bool:
    """Tells whether two placements run the same operators alike: toolchains and formats."""

    def parts(placement: Placement) -> set[tuple[object, ...]]:
        return {
            (p.instance, p.nodes, tuple(sorted(p.takes.items())), tuple(sorted(p.gives.items())))
            for p in placement.partitions
        }

    return parts(one) == parts(other)
