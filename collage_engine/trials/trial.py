"""What the trial of a placement showed: the times within it, or why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from collage_engine.records.candidate import Candidate


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a placement that took part in the race showed.

    Times are those that it would have taken had the machine been as fast as it usually was.

    Attributes:
        partitions_us: microseconds of every partition by its candidate's id, where it was profiled.
        between_us: microseconds of the conversions and copies between partitions.
        max_rel_error: largest relative error of its outputs on all samples; None: not known.
        refused: whether an output is farther from the true one than that output may be.
        failures: why something wanted is missing, as sentences.
        reached: whether there was time for it before the end that it was given.
    """

    partitions_us: Mapping[str, float] = field(default_factory=dict)
    between_us: float = 0.0
    max_rel_error: float | None = None
    refused: bool = False
    failures: tuple[str, ...] = ()
    reached: bool = True

    @property
    def failure(self) -> str:
        """Return all failures in one text."""
        return "; ".join(self.failures)


@dataclass(frozen=True)
class ProfiledCover:
    """A cover that was run and profiled.

    Attributes:
        cover: its candidates.
        trial: what it showed, without failures.
    """

    cover: tuple[Candidate, ...]
    trial: Trial
