"""Computes how much of each partition's time lies above its certified lower bound.

A certified bound rests on the bytes and operations of a partition and on the measured peaks of
the machine (the roofline model; Williams, Waterman and Patterson, 2009): nothing that computes the
same can be faster on it. A heuristic bound is not used here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from collage_engine.drawing.formatting import counted, time_text
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.placement import Partition, Placement
from collage_engine.wording import runs as words


@dataclass(frozen=True, kw_only=True)
class PartitionRoof:
    """The time of a partition beside its certified lower bound."""

    partition: Partition
    us: float | None
    """The partition's time in µs in the last run, or else the expected one."""
    bound_us: float | None
    """The certified lower bound in µs; None where nothing is certified."""

    @property
    def left_us(self) -> float | None:
        """Return how much time is above the bound; never negative, since costs scatter."""
        if self.us is None or self.bound_us is None:
            return None
        return max(0.0, self.us - self.bound_us)

    @property
    def efficiency(self) -> float | None:
        """Return the bound as a share of the time, 0…1."""
        if not self.us or self.bound_us is None:
            return None
        return min(1.0, self.bound_us / self.us)


def partition_roofs(
    placement: Placement, candidates: Iterable[CandidateRecord]
) -> list[PartitionRoof]:
    """Return the time and the bound of each partition of a placement.

    Args:
        placement: The placement.
        candidates: All candidates of the model. The bound of a partition is the least one of all
            candidates on its operators, since some toolchains may compute them with less work
            than others. Where one of them has no certified bound there is none: it may be faster.
    """
    bounds: dict[tuple[int, ...], float | None] = {}
    for candidate in candidates:
        nodes, bound = tuple(candidate.nodes), candidate.lower_bound_us
        known = bounds.get(nodes, bound)
        bounds[nodes] = None if bound is None or known is None else min(known, bound)
    return [
        PartitionRoof(
            partition=part,
            us=part.in_place_us if part.in_place_us is not None else part.estimated_us,
            bound_us=bounds.get(tuple(part.nodes)),
        )
        for part in placement.partitions
    ]


def roofline_sentence(roofs: Iterable[PartitionRoof]) -> str:
    """Return how much is left to win in all, and in how many partitions most of it lies.

    Args:
        roofs: The partitions of one placement.
    """
    roofs = list(roofs)
    left = sorted((roof.left_us for roof in roofs if roof.left_us is not None), reverse=True)
    if not left:
        return words.NO_ROOFLINE
    total = sum(left)
    taken = sum(roof.us or 0.0 for roof in roofs if roof.left_us is not None)
    text = words.ABOVE_BOUNDS.format(left=time_text(total), taken=time_text(taken))
    needed, part = 0.0, 0
    while part < len(left) and needed < total / 2:
        needed, part = needed + left[part], part + 1
    if total and len(left) > 1:
        text += words.HALF_IN.format(partitions=counted(part, "partition"))
    missing = len(roofs) - len(left)
    if missing:
        text += f". {counted(missing, 'partition')} {'has' if missing == 1 else 'have'} no bound"
    return f"{text}."
