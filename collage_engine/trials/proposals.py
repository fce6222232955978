"""Proposers: what decides which placements are tried, and learns from their trials.

A proposer is a generator. It yields covers, is sent the trial of each, and returns what it found
once it is done. ``run_proposals`` has each of them enter the race, or whatever else can try a cover
(in tests, a table). The profiling of groups, calibration and accuracy are proposers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from collage_engine.records.candidate import Candidate

Cover = TypeVar("Cover")
Result = TypeVar("Result")


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
    """

    partitions_us: Mapping[str, float] = field(default_factory=dict)
    between_us: float = 0.0
    max_rel_error: float | None = None
    refused: bool = False
    failures: tuple[str, ...] = ()

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


Proposer: TypeAlias = Generator[Cover, Trial, Result]
"""Yields covers to try, is sent their trials, and returns its result."""


def run_proposals(proposer: Proposer[Cover, Result], run: Callable[[Cover], Trial]) -> Result:
    """Try whatever the proposer proposes until it is done.

    Args:
        proposer: the generator, not started yet.
        run: tries one cover, as ``Race.try_cover`` does.

    Returns:
        What the proposer returned.
    """
    try:
        cover = next(proposer)
        while True:
            cover = proposer.send(run(cover))
    except StopIteration as done:
        result: Result = done.value
        return result
    finally:
        proposer.close()
