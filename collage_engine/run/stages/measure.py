"""The step that measures isolated costs of the candidates that could influence the placement.

Which ones these are is decided by ``run.measurement_planner``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from collage_engine.candidates.catalog import CandidateCatalog
from collage_engine.machine.run_control import RunControl, StageReport
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.answers import RunUpdate
from collage_engine.records.candidate import CostTable
from collage_engine.records.placement import Run
from collage_engine.run.measurement_planner import MeasurementPlanner, Timed
from collage_engine.run.task import RunTask
from collage_engine.search.api import solve
from collage_engine.support.errors import Cancelled, MeasureError
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.timing.transitions import transition_constants
from collage_engine.trials.mixes import groups_of
from collage_engine.trials.race import Race
from collage_engine.wording.figures import costs_text

TRANSITIONS_FROM_S = 40.0
"""Seconds for measuring from which unknown costs of transitions and conversions are measured first,
once per machine: that takes 12 s on two processors (``tests/benchmarks/RESULTS.md``)."""


def measure_candidates(
    task: RunTask,
    catalog: CandidateCatalog,
    inputs: SearchInputs,
    measuring: Measuring,
    race: Race,
    control: RunControl,
) -> SearchInputs:
    """Measure candidates and transitions until the best cover is measured or the time is over.

    A quick confirmation measures only where the costs at hand make no cover. Where time is left
    after a search, the measuring may go on.

    Args:
        task: What the run was asked for.
        catalog: The toolchain instances.
        inputs: The candidates with their costs so far.
        measuring: Measures candidates.
        race: What was profiled when mixes were tried: estimates rest on it.
        control: Takes progress and costs.

    Returns:
        The inputs with isolated costs, and with constants of transitions.

    Raises:
        MeasureError: Nothing can be measured, and what is known makes no cover.
        Cancelled: The user stopped the run.
    """
    inputs = _with_costs_of(task.previous, inputs)
    if not measuring.counts.distinct:
        measuring.begin(inputs.candidates, inputs.costs)
    with control.stage("measure") as report:
        has_answer = race.leader is not None or task.is_quick
        seconds = race.clock.for_step_s if has_answer else race.clock.to_improve_s
        is_quick = task.is_quick and has_cover(inputs)
        seconds = 0.0 if is_quick else seconds
        work = _Measurement(task, catalog, race, measuring, control.within(seconds), inputs)
        is_complete = work.measure_as_far_as_possible(seconds, report)
        if is_complete and "measure" in control.cut_short:
            control.cut_short.remove("measure")  # the first time it was
        elif not is_complete and not is_quick:
            control.cut("measure")
        report.detail = costs_text(measuring.counts)
        control.emit(
            RunUpdate(candidates=work.inputs.records(), constants=dict(work.inputs.constants))
        )
    return work.inputs


def has_cover(inputs: SearchInputs) -> bool:
    """Return whether the costs at hand make a cover that keeps the pins and limits."""
    answer = solve(inputs.problem())
    return answer.infeasible is None and answer.cost_us is not None


def _with_costs_of(previous: Run | None, inputs: SearchInputs) -> SearchInputs:
    """Return the inputs with the costs that an earlier run has found out, within the model, too."""
    if previous is None:
        return inputs
    usable = {name: cost for name, cost in previous.costs.items() if name in inputs.by_id}
    since = {n: cost for n, cost in inputs.costs.costs.items() if inputs.costs.known(n)}
    return inputs.with_costs(CostTable(usable).with_isolated(since))


@dataclass(eq=False)
class _Measurement:
    """The measuring of one run."""

    task: RunTask
    catalog: CandidateCatalog
    race: Race
    measuring: Measuring
    control: RunControl
    inputs: SearchInputs
    """What is known of the candidates so far; it stands when the measuring is interrupted."""

    def measure_as_far_as_possible(self, seconds: float, report: StageReport) -> bool:
        """Measure, also where that comes to an early end.

        Args:
            seconds: The time for it.
            report: Takes progress.

        Returns:
            Whether everything that is wanted was measured.

        Raises:
            MeasureError: Nothing can be measured, and what is known makes no cover.
        """
        try:
            return self._measure(seconds, report)
        except (Cancelled, MeasureError) as error:
            costs = self.task.open_model.with_stored_costs(
                self.inputs.candidates, self.inputs.costs
            )
            self.inputs = self.inputs.with_costs(costs)
            if isinstance(error, MeasureError):
                if not has_cover(self.inputs):
                    raise
                self.control.warn(f"measuring came to an early end: {error}")
            return False

    def _measure(self, seconds: float, report: StageReport) -> bool:
        """Measure transitions and candidates, in this order."""
        deadline = time.monotonic() + seconds
        total = len({c.key for c in self.inputs.candidates})

        def now(text: str) -> None:
            report.progress(0, total, text)

        if seconds < TRANSITIONS_FROM_S:
            # Where there is little time, candidates of this model go before facts of the machine.
            with contextlib.suppress(Cancelled):
                self._take_constants(now, self.control.within(0.0))
        else:
            self._take_constants(now, self.control)
        self.control.check()
        opened, inputs = self.task.open_model, self.inputs
        now("recording the model's own values")
        planner = MeasurementPlanner(
            inputs,
            self.measuring,
            groups_of(opened.model.graph),
            (
                Timed(part.instance.id, part.nodes, result.partitions_us[part.id])
                for result in self.race.standings.profiled()
                for part in result.contender.cover
                if part.id in result.partitions_us
            ),
        )
        try:
            return planner.measure(deadline)
        finally:
            self.inputs = planner.inputs

    def _take_constants(self, now: Callable[[str], None], control: RunControl) -> None:
        """Take what transitions and conversions cost from the store, or measure it."""
        constants = transition_constants(
            self.task.open_model, self.catalog, self.inputs.settings, control, now
        )
        self.inputs = self.inputs.with_constants(constants)
