"""Covers that were measured whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from collage_engine.search.check import check_cover
from collage_engine.search.problem import CandidateId

if TYPE_CHECKING:
    from collage_engine.search.problem import Problem

Cover = tuple[CandidateId, ...]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A cover that was measured whole; ``us`` is None when it could not run."""

    cover: Cover
    us: float | None
    estimate_us: float
    reason: str | None = None
    error_us: float | None = None
    """Standard error of ``us``, by the scatter of its repeats."""
    inside: dict[CandidateId, float] = {}
    """What its partitions took, where one looked inside."""


def estimate(problem: Problem, cover: Sequence[CandidateId]) -> float:
    """A cover's cost by its candidates' own; ValueError when it is none."""
    cost = check_cover(problem, cover)
    if isinstance(cost, str):
        raise ValueError(f"not a cover: {cost}")
    return cost


def key_of(cover: Cover) -> frozenset[str]:
    """The same for the same candidates in any order."""
    return frozenset(map(str, cover))


def error_of(repeats: Sequence[float]) -> float | None:
    """Standard error of the median of these; None when there are too few to tell."""
    if len(repeats) < 3:
        return None
    centre = median(repeats)
    return 1.2533 * 1.4826 * median(abs(x - centre) for x in repeats) / math.sqrt(len(repeats))
