"""The steps that measure candidates that could influence the placement, and that tune kernels.

Which ones these are is decided by ``run.measurement_planner``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from collage_engine.candidates.catalog import CandidateCatalog
from collage_engine.machine.run_control import StageReport
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.answers import RunUpdate
from collage_engine.records.candidate import Candidate, CostTable
from collage_engine.records.placement import Run
from collage_engine.records.toolchain import TuneCounts
from collage_engine.run.measurement_planner import MeasurementPlanner
from collage_engine.run.task import RunState
from collage_engine.search.api import solve
from collage_engine.support.errors import Cancelled, MeasureError
from collage_engine.timing.measurer import Measuring
from collage_engine.timing.transitions import transition_constants
from collage_engine.timing.tuning import Tuning, summary, tunable
from collage_engine.trials.mixes import groups_of
from collage_engine.trials.race import Race
from collage_engine.wording.figures import costs_text

TRANSITIONS_FROM_S = 40.0
"""Seconds for measuring from which unknown costs of transitions and conversions are measured first,
once per machine: that takes 12 s on two processors (``tests/benchmarks/RESULTS.md``)."""


def measure_candidates(state: RunState, measuring: Measuring) -> SearchInputs:
    """Measure candidates and transitions until the best cover is measured or the time is over.

    A quick confirmation measures only where the costs at hand make no cover. Where time is left
    after a search, the measuring may go on. Estimates rest on what was profiled in the race.

    Args:
        state: What the run knows.
        measuring: Measures candidates.

    Returns:
        The inputs with isolated costs, and with constants of transitions.

    Raises:
        MeasureError: Nothing can be measured, and what is known makes no cover.
        Cancelled: The user stopped the run.
    """
    task, control, race = state.task, state.control, state.race
    inputs, graph = _with_costs_of(task.previous, state.inputs), task.open_model.model.graph
    goes_on = bool(measuring.counts.distinct)
    if not goes_on:
        measuring.begin(inputs.candidates, inputs.costs)
    with control.stage("measure") as report:
        has_answer = race.leader is not None or task.is_quick
        seconds = race.clock.for_step_s if has_answer else race.clock.to_improve_s
        is_quick = task.is_quick and has_cover(inputs)
        seconds = 0.0 if is_quick else seconds
        planner = MeasurementPlanner(inputs, measuring, groups_of(graph), _profiled(race))
        is_complete = _measure(state, planner, seconds, report, goes_on)
        if is_complete and "measure" in control.cut_short:
            control.cut_short.remove("measure")  # the first time it was
        elif not is_complete and not is_quick:
            control.cut("measure")
        report.detail = costs_text(measuring.counts)
        inputs = planner.inputs
        control.emit(RunUpdate(candidates=inputs.records(), constants=dict(inputs.constants)))
    return inputs


def has_cover(inputs: SearchInputs) -> bool:
    """Return whether the costs at hand make a cover that keeps the pins and limits."""
    return solve(inputs.problem()).cost_us is not None


def _with_costs_of(previous: Run | None, inputs: SearchInputs) -> SearchInputs:
    """Return the inputs with the costs that an earlier run has found out, within the model, too."""
    if previous is None:
        return inputs
    usable = {name: cost for name, cost in previous.costs.items() if name in inputs.by_id}
    since = {n: cost for n, cost in inputs.costs.costs.items() if inputs.costs.known(n)}
    return inputs.with_costs(CostTable(usable).with_isolated(since))


def _profiled(race: Race) -> Iterator[tuple[Candidate, float]]:
    """Return what partitions took within the model, in microseconds."""
    for result in race.standings.profiled():
        for part in result.contender.cover:
            if part.id in result.partitions_us:
                yield part, result.partitions_us[part.id]


def _measure(
    state: RunState, planner: MeasurementPlanner, seconds: float, report: StageReport, goes_on: bool
) -> bool:
    """Measure transitions and candidates, also where that comes to an early end.

    Args:
        state: What the run knows.
        planner: Measures; it holds what is known of the candidates, which stands at an early end.
        seconds: The time for it.
        report: Takes progress.
        goes_on: Whether it was asked for transitions before.

    Returns:
        Whether everything that is wanted was measured.

    Raises:
        MeasureError: Nothing can be measured, and what is known makes no cover.
    """
    open_model, control = state.task.open_model, state.control.within(seconds)
    deadline = time.monotonic() + seconds
    total = len({c.key for c in planner.inputs.candidates})

    def now(text: str) -> None:
        report.progress(0, total, text)

    # Where there is little time, candidates of this model go before facts of the machine.
    is_short = seconds < TRANSITIONS_FROM_S
    try:
        if not goes_on:
            with contextlib.suppress(*([Cancelled] if is_short else [])):
                part = control.within(0.0) if is_short else control
                settings = planner.inputs.settings
                constants = transition_constants(open_model, state.catalog, settings, part, now)
                planner.inputs = planner.inputs.with_constants(constants)
        control.check()
        now("recording the model's own values")
        return planner.measure(deadline)
    except (Cancelled, MeasureError) as error:
        costs = open_model.with_stored_costs(planner.inputs.candidates, planner.inputs.costs)
        planner.inputs = planner.inputs.with_costs(costs)
        if isinstance(error, MeasureError):
            if not has_cover(planner.inputs):
                raise
            control.warn(f"measuring came to an early end: {error}")
        return False


def tune_kernels(
    state: RunState, measuring: Measuring
) -> tuple[CandidateCatalog, SearchInputs, TuneCounts | None]:
    """Tune kernels that could still change the answer, or take those that earlier runs found.

    Args:
        state: What the run knows.
        measuring: Measures candidates.

    Returns:
        The candidates, with tuned ones among them, and what was tuned; None: there was nothing.
    """
    control, race, open_model = state.control, state.race, state.task.open_model
    catalog, inputs, settings = state.catalog, state.inputs, state.inputs.settings
    instance = tunable(open_model.store, catalog, settings)
    if state.task.is_quick or instance is None:
        return catalog, inputs, None
    counts = TuneCounts()
    with control.stage("tune") as report:
        # This time is added to that of the race, which goes on so much longer.
        race.clock.ends_at += settings.tune_budget_s
        given_s = min(settings.tune_budget_s, race.clock.to_improve_s)
        part = control.within(race.clock.to_improve_s)
        tuning = Tuning(open_model, catalog, inputs, measuring, part, report, instance, given_s)
        try:
            tuning.run()
            catalog, inputs, counts = tuning.catalog, tuning.inputs, tuning.counts
        except Cancelled:
            control.cut("tune")
        race.clock.ends_at -= max(0.0, settings.tune_budget_s - counts.seconds)
        report.detail = summary(counts)
        control.emit(RunUpdate(candidates=inputs.records(), constants=dict(inputs.constants)))
    return catalog, inputs, counts
