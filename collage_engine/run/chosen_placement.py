"""Placements with the times of their confirmation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from collage_engine.planning.search_problem import make_placement
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import Cost
from collage_engine.records.placement import Placement
from collage_engine.run.problem_data import ProblemData
from collage_engine.search.api import check
from collage_engine.trials.confirmation import Confirmation
from collage_engine.trials.contender import ContenderResult


def chosen_placement(
    data: ProblemData,
    placements: Sequence[Placement],
    confirmation: Confirmation,
) -> Placement:
    """Return the winner of a confirmation as a placement with its end-to-end times.

    A baseline, or a mix that was tried first, may win with a partition whose candidate was left
    unmeasured. What it took in the winner's own profile stands for its cost then, so that a
    placement whose partitions were all measured always has an estimate.

    Args:
        data: All candidates with their costs.
        placements: The covers that were confirmed.
        confirmation: What came of it.
    """
    winner = confirmation.winner
    placement = _searched(placements, winner)
    if placement is None or placement.estimated_us is None:
        placement = baseline_placement(with_profiled_costs(data, confirmation), winner)
    in_model_us = dict(enumerate(confirmation.in_place_us))
    parts = placement.partitions
    if winner.built is not None:
        # The builder may run partitions in another order than the search listed them.
        by_candidate = {part.candidate: part for part in parts}
        parts = tuple(
            msgspec.structs.replace(
                by_candidate[built.candidate], id=f"p{k}", in_place_us=in_model_us.get(k)
            )
            for k, built in enumerate(winner.built.parts)
        )
    return msgspec.structs.replace(
        with_times(placement, winner, confirmation.pace),
        partitions=parts,
        spin=bool(winner.built and winner.built.spin),
    )


def with_profiled_costs(data: ProblemData, confirmation: Confirmation) -> ProblemData:
    """Return the data with costs of the winner's partitions that have none, from its profile.

    A cost is the profile's share of the measured time, since profiling takes time of its own. It
    stands for the winner's own partition alone: what a partition takes in one placement says little
    of what it takes in another one.

    Args:
        data: All candidates with their costs.
        confirmation: The winner, with the times of its partitions.
    """
    built, measured_us = confirmation.winner.built, confirmation.winner.measured_us
    if built is None:
        return data
    total_us = sum(confirmation.in_place_us)
    share = min(1.0, measured_us / total_us) if measured_us and total_us > 0 else 1.0
    seen = {
        part.candidate: Cost(state="measured", median_us=us * share)
        for part, us in zip(built.parts, confirmation.in_place_us, strict=False)
        if not data.costs.cost(part.candidate).usable
    }
    return data.with_costs(data.costs.with_isolated(seen)) if seen else data


def runners_up(placements: Sequence[Placement], confirmation: Confirmation) -> list[Placement]:
    """Return the covers of several toolchains that did not win, with their end-to-end times.

    The search's best one comes first, unless another took less time.
    """
    found = [
        with_times(placement, outcome, confirmation.pace)
        for outcome in confirmation.results
        if outcome.contender.kind == "collage"
        and outcome.contender.key != confirmation.winner.contender.key
        and (placement := _searched(placements, outcome)) is not None
    ]
    fastest = min(found, key=lambda one: one.measured_us or math.inf, default=None)
    return sorted(found, key=lambda one: one is not fastest)


def _searched(placements: Sequence[Placement], outcome: ContenderResult) -> Placement | None:
    """Return the placement that has a contender's cover; None: it is a baseline's."""
    if outcome.contender.kind != "collage":
        return None
    cover = {candidate.id for candidate in outcome.contender.cover}
    covers = (one for one in placements if {part.candidate for part in one.partitions} == cover)
    return next(covers, None)


def with_times(
    placement: Placement, outcome: ContenderResult, pace: float | None = None
) -> Placement:
    """Return a placement with its end-to-end time, and with the additive error of its estimate.

    Args:
        placement: The placement.
        outcome: What it took.
        pace: See ``Confirmation.pace``; None also where the time is that of a trial.
    """
    additive_error_us = None
    if outcome.measured_us is not None and placement.estimated_us is not None:
        additive_error_us = outcome.measured_us - placement.estimated_us
    return msgspec.structs.replace(
        placement,
        measured_us=outcome.measured_us,
        spread_us=outcome.spread_us,
        additive_error_us=additive_error_us,
        pace=None if outcome.from_trial else pace,
        from_trial=outcome.from_trial,
    )


def baseline_placement(data: ProblemData, outcome: ContenderResult) -> Placement:
    """Return a baseline's cover as a placement.

    It has an estimate where all of its candidates were measured.
    """
    candidates = [data.by_id.get(c.id, c) for c in outcome.contender.cover]
    return make_placement(
        data.graph,
        {c.id: c for c in candidates},
        data.costs,
        [c.id for c in candidates],
        _estimate(data, candidates),
        data.settings.percentile,
    )


def _estimate(data: ProblemData, cover: Sequence[Candidate]) -> float | None:
    """Return what a cover costs in microseconds, whatever the pins and limits.

    It is None where a partition was not measured.
    """
    if not all(data.costs.cost(candidate.id).usable for candidate in cover):
        return None
    problem = msgspec.structs.replace(data.problem_of(cover, data.costs), pins=(), limits=None)
    cost = check(problem, [candidate.id for candidate in cover])
    return cost if isinstance(cost, float) else None
