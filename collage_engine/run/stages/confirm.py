"""The step in which the best covers and all baselines enter the race, and the race ends."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Literal

from collage_engine.planning.search_inputs import Cover
from collage_engine.records.placement import Run
from collage_engine.run.contenders import cover_before
from collage_engine.run.run_document import ConfirmResult, chosen_placement, with_nan_losses
from collage_engine.run.stages.whole_models import bench_of, exporting_s, timed
from collage_engine.run.task import RunState
from collage_engine.support.text import counted
from collage_engine.trials.baselines import baselines
from collage_engine.trials.contender import Contender, with_eligibility
from collage_engine.trials.objective import confirming_settings
from collage_engine.trials.race import Race
from collage_engine.trials.race_clock import SETTLE_S

QUICK_S = 2 * SETTLE_S
"""Seconds for the last rounds of a quick confirmation, whatever the budget: twice what contenders
have when they enter."""


def confirm_winner(state: RunState, covers: Sequence[Cover]) -> ConfirmResult:
    """Have the best covers and all baselines enter the race, and end it.

    A quick confirmation races the best cover, the placement of the run before and the baseline that
    was the fastest then.

    Raises:
        CollageError: None of the contenders can be built and run.
        Cancelled: The user stopped the run.
    """
    task, control, inputs, quick = state.task, state.control, state.inputs, state.task.is_quick
    with control.stage("confirm") as report:
        race = _race_of_objective(state)
        others = _baselines(state, race)
        if quick:
            covers = [*covers[:1], *filter(None, [cover_before(state)])]
            others = _fastest_before(others, task.previous) or others[:1]
        ours = [with_eligibility(inputs, Contender(cover=cover)) for cover in covers]
        race.enter(ours, on_progress=report.progress)
        # What the end of the race needs goes before baselines: they are shown, and hardly ever win.
        ends_at = race.clock.ends_at - race.clock.kept_s
        race.enter(others, ends_at=ends_at, on_progress=report.progress)
        if quick:
            race.clock.ends_at = min(race.clock.ends_at, time.monotonic() + QUICK_S)
        result = race.finish(report.progress, others=not quick)
        winner, said = result.winner.contender, result.winner.contender.title
        if winner.kind == "collage":
            said = f"Collage's placement in {counted(len(winner.cover), 'partition')}"
        report.detail = f"{said} wins"
    if result.left_out and not quick:
        control.cut("confirm")
    how: Literal["full", "quick", "trial"] = "quick" if quick or result.left_out else "full"
    return ConfirmResult(
        race_result=result,
        chosen=with_nan_losses(task, chosen_placement(inputs, result)),
        confirmed_how=how if result.fresh else "trial",
    )


def _race_of_objective(state: RunState) -> Race:
    """Return the race that decides: the run's, or one of several instances or of slow calls.

    Until here placements were timed by their latency, whatever the objective, since costs are
    latencies. For another objective they enter another race, those first that were the fastest.
    """
    task, control, race, settings = state.task, state.control, state.race, state.task.settings
    if settings.objective == "latency":
        return race
    contenders = [
        result.contender for result in timed(race.standings.results()) if result.contender.eligible
    ]
    race.bench.close()
    bench = control.open(bench_of(state, confirming_settings(settings), race.standings.modules))
    ends_at = control.ends_at - exporting_s(task)
    other = Race(bench, ends_at, keep=control.keep)
    other.enter(contenders)
    return other


def _baselines(state: RunState, race: Race) -> list[Contender]:
    """Return all baselines, the users' own ones first, then those that were the fastest so far."""
    graph, settings = state.task.open_model.model.graph, state.inputs.settings
    contenders = [
        with_eligibility(state.inputs, baseline)
        for baseline in baselines(graph, state.catalog, settings)
    ]
    us = {
        result.contender.key: result.measured_us or math.inf
        for result in timed(race.standings.results())
    }
    return sorted(
        contenders,
        key=lambda one: (one.kind != "user", not one.eligible, us.get(one.key, math.inf)),
    )


def _fastest_before(others: Sequence[Contender], previous: Run | None) -> list[Contender]:
    """Return the baseline that was the fastest in the run before, as a list of one.

    It may be one that breaks a pin: what a pin costs is seen against what there would be without.
    """
    us = {} if previous is None else {b.name: b.measured_us for b in previous.baselines}
    timed_contenders = [other for other in others if us.get(other.name) is not None]
    return sorted(timed_contenders, key=lambda one: us[one.name] or math.inf)[:1]
