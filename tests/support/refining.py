"""Drives a refinement by functions that measure covers, in place of trials of placements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from collage_engine.records.cost import Cost
from collage_engine.search.measured_covers import Cover
from collage_engine.search.problem import CandidateId, Problem
from collage_engine.search.refine import CoverMeasurement, Refinement
from collage_engine.search.refine import refine as refinement

Measure = Callable[[Cover], Cost]
Inside = Callable[[Cover], Mapping[CandidateId, float]]


def refine(
    problem: Problem,
    start: Sequence[Sequence[CandidateId]],
    measure: Measure,
    *,
    inside: Inside = lambda cover: {},
    **options: Any,
) -> Refinement:
    """Refine with what these functions say of a cover: its cost, and what its partitions took."""
    measuring = refinement(problem, start, **options)
    measurement: CoverMeasurement | None = None
    while True:
        try:
            cover = next(measuring) if measurement is None else measuring.send(measurement)
        except StopIteration as finished:
            found: Refinement = finished.value
            return found
        measurement = CoverMeasurement(cost=measure(cover), inside=dict(inside(cover)))
