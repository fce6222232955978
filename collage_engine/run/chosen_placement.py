"""Placements with the times of the race."""

from __future__ import annotations

import msgspec

from collage_engine.candidates.catalog import nan_losses
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.planning.search_problem import RUNNERS_UP
from collage_engine.records.candidate import Cost
from collage_engine.records.placement import Placement
from collage_engine.run.task import RunTask
from collage_engine.trials.contender import COLLAGE, ContenderResult
from collage_engine.trials.standings import RaceResult


def chosen_placement(inputs: SearchInputs, race_result: RaceResult) -> Placement:
    """Return the winner of the race as a placement with its end-to-end times.

    A baseline, or a mix that was tried first, may win with a partition whose candidate was left
    unmeasured. What it took in the winner's own profile stands for its cost then, so that a
    placement whose partitions were all measured always has an estimate.

    Args:
        inputs: All candidates with their costs.
        race_result: How the race ended.
    """
    winner = race_result.winner
    placement = timed_placement(with_profiled_costs(inputs, race_result), winner)
    if winner.built is None:
        return placement
    in_model_us = race_result.in_model_us
    # The builder may run partitions in another order than the search listed them.
    by_candidate = {part.candidate: part for part in placement.partitions}
    parts = tuple(
        msgspec.structs.replace(by_candidate[built.id], id=f"p{k}", in_place_us=in_model_us.get(k))
        for k, built in enumerate(winner.built.parts)
    )
    return msgspec.structs.replace(placement, partitions=parts, layers=winner.layers)


def with_nan_losses(task: RunTask, placement: Placement) -> Placement:
    """Return a placement with what of it does not hand on NaN."""
    losses = nan_losses(task.open_model.model.graph, placement)
    return msgspec.structs.replace(placement, nan_losses=losses)


def with_profiled_costs(inputs: SearchInputs, race_result: RaceResult) -> SearchInputs:
    """Return the inputs with costs of the winner's partitions that have none, from its profile.

    A cost stands for the winner's own partition alone: what a partition takes in one placement says
    little of what it takes in another one.

    Args:
        inputs: All candidates with their costs.
        race_result: The winner, with the times of its partitions.
    """
    built = race_result.winner.built
    if built is None:
        return inputs
    seen = {
        built.parts[k].id: Cost(state="measured", in_model_us=us, in_model="seen")
        for k, us in race_result.in_model_us.items()
        if not inputs.costs.cost(built.parts[k].id).usable
    }
    return inputs.with_costs(inputs.costs.with_isolated(seen)) if seen else inputs


def runners_up(inputs: SearchInputs, race_result: RaceResult) -> list[Placement]:
    """Return the fastest covers of several toolchains that ran and did not win, best first."""
    winner = race_result.winner.contender.key
    ran = [
        (result.measured_us, result)
        for result in race_result.results
        if result.contender.kind == COLLAGE
        and result.contender.key != winner
        and result.measured_us
    ]
    ran.sort(key=lambda one: one[0])
    return [timed_placement(inputs, one) for _, one in ran[: RUNNERS_UP + 1]]


def timed_placement(inputs: SearchInputs, outcome: ContenderResult) -> Placement:
    """Return a contender's cover as a placement, with its time and the error of its estimate."""
    placement, measured_us = inputs.placement(outcome.contender.cover), outcome.measured_us
    additive_error_us = None
    if measured_us is not None and placement.estimated_us is not None:
        additive_error_us = measured_us - placement.estimated_us
    return msgspec.structs.replace(
        placement,
        measured_us=measured_us,
        spread_us=outcome.spread_us,
        additive_error_us=additive_error_us,
        spin=bool(outcome.built is not None and outcome.built.spin),
    )
