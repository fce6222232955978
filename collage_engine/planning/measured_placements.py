"""The placements of a document that were measured whole, as covers beside those of the search.

A search adds up the costs of partitions; a run has timed whole placements. What was timed counts
more: the best placement is the measured one where the search expects no better one, and what a
choice costs is a difference of two placements' latencies, measured where they are known.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable
from dataclasses import dataclass

import msgspec

from collage_engine.planning.search_problem import broken_pins
from collage_engine.records.placement import Placement, Run, baseline_placement
from collage_engine.records.settings import RunSettings
from collage_engine.search.check import broken_limits, check_cover
from collage_engine.search.problem import Problem, ProblemCandidate
from collage_engine.store.document import Document
from collage_engine.support.typed import convert

SAME_US = 1e-6
"""Microseconds by which two sums of the same costs may differ: they are added in another order."""


@dataclass(frozen=True, kw_only=True)
class MeasuredPlacement:
    """A placement that a run has timed end to end."""

    placement: Placement
    """With the time of the run that says most of it."""
    us: float
    """Its latency in microseconds, as it were in the run that all are compared in."""
    broken_pins: frozenset[int]
    """The places of the document's pins that it does not keep."""
    keeps_limits: bool
    expected_us: float | None
    """What the search says that it costs, in microseconds; None where it knows too little."""


def measured_placements(
    document: Document, settings: RunSettings, problem: Problem, base: Run | None = None
) -> dict[Hashable, MeasuredPlacement]:
    """Return all placements that runs like the one that is asked for have timed, by identity.

    Latencies are as they were in one run, since the machine has another speed in another one. What
    that run timed has its time; those of other runs, the newest first, are multiplied by what the
    placements that both have timed take there, in the median. A run that timed none of them says
    nothing of how they compare, and is left out.

    Args:
        document: The document with its runs.
        settings: The settings that are asked for: times for another device, number of threads,
            precision or objective say nothing here.
        problem: The search problem of the document under its pins and these settings.
        base: The run in which all are compared; None: the newest.
    """
    placements: dict[Hashable, MeasuredPlacement] = {}
    earlier_us: dict[Hashable, float] = {}
    by_id = {c.id: c for c in document.candidates}
    operators, allowed = len(document.graph.nodes), settings.toolchains
    runs = sorted(reversed(document.runs), key=lambda run: run is not base)
    for run in runs:
        if run.of_profile or not is_like(run, settings):
            continue
        # What the run exports comes last: its time stands for a baseline's of the same partitions.
        of_baselines = (baseline_placement(each, by_id, operators) for each in run.baselines)
        timed = {
            one.identity: one
            for one in (*of_baselines, *run.rivals, run.placement)
            if one is not None and one.measured_us is not None
        }
        us = {name: one.measured_us for name, one in timed.items() if one.measured_us}
        slower = [earlier_us[name] / us[name] for name in us if name in earlier_us]
        if earlier_us and not slower:
            continue
        factor = statistics.median(slower) if slower else 1.0
        for name in [name for name in us if name not in earlier_us]:
            earlier_us[name] = us[name] * factor
            if not allowed or all(p.toolchain in allowed for p in timed[name].partitions):
                parts = problem_parts(timed[name])
                placements[name] = MeasuredPlacement(
                    placement=timed[name],
                    us=earlier_us[name],
                    broken_pins=broken_pins(problem.pins, parts),
                    keeps_limits=not broken_limits(problem, parts),
                    expected_us=expected_us(timed[name], problem),
                )
    return placements


def problem_parts(placement: Placement) -> tuple[ProblemCandidate, ...]:
    """Return the partitions of a placement as the search knows candidates.

    One whose cost is not known is unknown to the search, too.
    """
    return tuple(
        ProblemCandidate(
            id=part.candidate or part.id,
            nodes=part.nodes,
            toolchain=part.instance,
            cost_us=part.estimated_us,
            state="unknown" if part.estimated_us is None else "measured",
            device=part.device,
            takes=part.takes,
            gives=part.gives,
        )
        for part in placement.partitions
    )


def expected_us(placement: Placement, problem: Problem) -> float | None:
    """Return what the search says that a placement costs in microseconds, whatever the pins.

    It is None where the search does not know the cost of one of its partitions.
    """
    free = msgspec.structs.replace(problem, pins=(), limits=None)
    cost = check_cover(free, [part.candidate for part in placement.partitions])
    return cost if isinstance(cost, float) else None


def is_like(run: Run, settings: RunSettings) -> bool:
    """Tell whether a run's times are of what other settings ask for."""
    made_with = convert(run.settings, RunSettings)
    return (made_with.target, made_with.threads, made_with.precision, made_with.objective) == (
        settings.target,
        settings.threads,
        settings.precision,
        settings.objective,
    )
