"""Covers that were measured whole."""

from __future__ import annotations

from collections.abc import Sequence
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


def estimate(problem: Problem, cover: Sequence[CandidateId]) -> float:
    """A cover's cost by its candidates' own; ValueError when it is none."""
    cost = check_cover(problem, cover)
    if isinstance(cost, str):
        raise ValueError(f"not a cover: {cost}")
    return cost


def key_of(cover: Cover) -> frozenset[str]:
    """The same for the same candidates in any order."""
    return frozenset(map(str, cover))
