"""Computes the rates that partitions achieve, and how far they are below the best ones seen.

A partition achieves so many operations and moves so many bytes a second. The *roof* is the best
rate of each kind that any measured candidate of the model achieved on this machine, so nothing is
measured for it. In the roofline model (Williams, Waterman and Patterson, 2009) arithmetic and
memory overlap: at the roof a partition takes the longer of the two times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from collage_engine.drawing.memory_figures import ValueBytes
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.graph import GraphRecord
from collage_engine.records.placement import Partition, Placement
from collage_engine.records.work import work_of_operators


@dataclass(frozen=True, kw_only=True)
class PartitionRoof:
    """The time of a partition beside what it would take at the roof."""

    partition: Partition
    us: float | None
    """The partition's time in µs in the last run, or else the expected one."""
    operations: float
    """Of its convolutions and matrix products."""
    moved_bytes: int
    """Bytes that it reads, weights included, and writes."""
    roof_us: float
    """What it would take at the roof, in µs; 0 where no candidate has a cost."""

    @property
    def gflops(self) -> float | None:
        """Return the achieved GFLOP/s; None where the time is not known."""
        return self.operations / self.us / 1e3 if self.us else None

    @property
    def gigabytes_per_s(self) -> float | None:
        """Return the achieved GB/s; None where the time is not known."""
        return self.moved_bytes / self.us / 1e3 if self.us else None

    @property
    def left_us(self) -> float | None:
        """Return how much of its time lies above the roof; never negative, since costs scatter."""
        return None if self.us is None else max(0.0, self.us - self.roof_us)

    @property
    def efficiency(self) -> float | None:
        """Return its time at the roof as a share of its time, 0…1."""
        return min(1.0, self.roof_us / self.us) if self.us else None


def partition_roofs(
    graph: GraphRecord, placement: Placement, candidates: Iterable[CandidateRecord]
) -> list[PartitionRoof]:
    """Return the time and the roof of each partition of a placement.

    Args:
        graph: The dataflow graph.
        placement: A placement of it.
        candidates: All candidates of the model; the roof is the best of those that have a cost.
    """
    work, values = work_of_operators(graph), ValueBytes(graph)

    def amounts(nodes: tuple[int, ...]) -> tuple[float, int]:
        return sum(work[number].operations for number in nodes), values.across_border(nodes)

    most_operations = most_bytes = 0.0
    for candidate in candidates:
        if candidate.cost.usable and candidate.cost.median_us:
            operations, moved = amounts(candidate.nodes)
            most_operations = max(most_operations, operations / candidate.cost.median_us)
            most_bytes = max(most_bytes, moved / candidate.cost.median_us)
    roofs = []
    for part in placement.partitions:
        operations, moved = amounts(part.nodes)
        roofs.append(
            PartitionRoof(
                partition=part,
                us=part.in_place_us if part.in_place_us is not None else part.estimated_us,
                operations=operations,
                moved_bytes=moved,
                roof_us=max(
                    operations / most_operations if most_operations else 0.0,
                    moved / most_bytes if most_bytes else 0.0,
                ),
            )
        )
    return roofs
