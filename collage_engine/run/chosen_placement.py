"""Placements with the times of the race."""

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
from collage_engine.trials.contender import ContenderResult
from collage_engine.trials.race import RaceResult


def chosen_placement(
    data: ProblemData,
    placements: Sequence[Placement],
    race_result: RaceResult,
) -> Placement:
    """Return the winner of the race as a placement with its end-to-end times.

    A baseline, or a mix that was tried first, may win with a partition whose candidate was left
    unmeasured. What it took in the winner's own profile stands for its cost then, so that a
    placement whose partitions were all measured always has an estimate.

    Args:
        data: All candidates with their costs.
        placements: The covers of the search.
        race_result: How the race ended.
    """
    winner = race_result.winner
    placement = _searched(placements, winner)
    if placement is None or placement.estimated_us is None:
        placement = baseline_placement(with_profiled_costs(data, race_result), winner)
    in_model_us = dict(enumerate(race_result.in_model_us))
    parts = placement.partitions
    if winner.built is not None:
        # The builder may run partitions in another order than the search listed them.
        by_candidate = {part.candidate: part for part in parts}
        parts = tuple(
            msgspec.structs.replace(
                by_candidate[built.id], id=f"p{k}", in_place_us=in_model_us.get(k)
            )
            for k, built in enumerate(winner.built.parts)
        )
    return msgspec.structs.replace(
        with_times(placement, winner),
        partitions=parts,
        spin=bool(winner.built and winner.built.spin),
    )


def with_profiled_costs(data: ProblemData, race_result: RaceResult) -> ProblemData:
    """Return the data with costs of the winner's partitions that have none, from its profile.

    A cost is the profile's share of the measured time, since profiling takes time of its own. It
    stands for the winner's own partition alone: what a partition takes in one placement says little
    of what it takes in another one.

    Args:
        data: All candidates with their costs.
        race_result: The winner, with the times of its partitions.
    """
    built, measured_us = race_result.winner.built, race_result.winner.measured_us
    if built is None:
        return data
    total_us = sum(race_result.in_model_us)
    share = min(1.0, measured_us / total_us) if measured_us and total_us > 0 else 1.0
    seen = {
        part.id: Cost(state="measured", median_us=us * share, in_place="seen")
        for part, us in zip(built.parts, race_result.in_model_us, strict=False)
        if not data.costs.cost(part.id).usable
    }
    return data.with_costs(data.costs.with_isolated(seen)) if seen else data


def runners_up(
    data: ProblemData, placements: Sequence[Placement], race_result: RaceResult
) -> list[Placement]:
    """Return the covers of several toolchains that ran and did not win, the fastest first.

    They are those of the search, and the fastest one of all others.
    """
    found, others = [], []
    for outcome in race_result.results:
        ours = outcome.contender.kind == "collage" and outcome.measured_us is not None
        if not ours or outcome.contender.module == race_result.winner.contender.module:
            continue
        placement = _searched(placements, outcome)
        if placement is not None:
            found.append(with_times(placement, outcome))
        elif outcome.contender.eligible:
            others.append(with_times(baseline_placement(data, outcome), outcome))
    found += sorted(others, key=_measured_us)[:1]
    return sorted(found, key=_measured_us)


def _measured_us(placement: Placement) -> float:
    """Return the measured time of a placement in microseconds; infinite where there is none."""
    return math.inf if placement.measured_us is None else placement.measured_us


def _searched(placements: Sequence[Placement], outcome: ContenderResult) -> Placement | None:
    """Return the placement that has a contender's cover; None: it is a baseline's."""
    if outcome.contender.kind != "collage":
        return None
    cover = {candidate.id for candidate in outcome.contender.cover}
    covers = (one for one in placements if {part.candidate for part in one.partitions} == cover)
    return next(covers, None)


def with_times(placement: Placement, outcome: ContenderResult) -> Placement:
    """Return a placement with its end-to-end time, and with the additive error of its estimate."""
    additive_error_us = None
    if outcome.measured_us is not None and placement.estimated_us is not None:
        additive_error_us = outcome.measured_us - placement.estimated_us
    return msgspec.structs.replace(
        placement,
        measured_us=outcome.measured_us,
        spread_us=outcome.spread_us,
        additive_error_us=additive_error_us,
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
