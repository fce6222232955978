"""Covers that were measured whole, end to end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from collage_engine.search.check import check_cover
from collage_engine.search.problem import CandidateId
from collage_engine.search.run_to_run_drift import DEVIATION_OF_MAD, MEDIAN_ERROR

if TYPE_CHECKING:
    from collage_engine.search.problem import Problem

Cover = tuple[CandidateId, ...]


class MeasuredCover(msgspec.Struct, frozen=True, kw_only=True):
    """A cover that was measured whole."""

    cover: Cover
    us: float | None
    """Measured latency in microseconds; None when it could not run."""
    estimate_us: float
    """The sum of its candidates' costs and transitions."""
    reason: str | None = None
    """Why it could not run."""
    error_us: float | None = None
    """Standard error of ``us``, from the scatter of its repeats."""
    inside: dict[CandidateId, float] = {}
    """What its partitions took in microseconds, where the run was profiled."""


def estimated_cost(problem: Problem, cover: Sequence[CandidateId]) -> float:
    """Return a cover's cost in microseconds by its candidates' costs.

    Raises:
        ValueError: It is not a cover of the problem.
    """
    cost = check_cover(problem, cover)
    if isinstance(cost, str):
        raise ValueError(f"not a cover: {cost}")
    return cost


def cover_key(cover: Cover) -> frozenset[str]:
    """Return a key that is the same for the same candidates in any order."""
    return frozenset(map(str, cover))


def median_standard_error(repeats: Sequence[float]) -> float | None:
    """Return the standard error of the median; None when there are too few repeats to tell."""
    if len(repeats) < 3:
        return None
    centre = median(repeats)
    deviation = DEVIATION_OF_MAD * median(abs(x - centre) for x in repeats)
    return MEDIAN_ERROR * deviation / math.sqrt(len(repeats))
