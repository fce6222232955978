"""The step that measures isolated costs of the candidates that could influence the placement.

Which ones these are is decided by ``run.measurement_planner``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from collage_engine.candidates.menu import Menu
from collage_engine.machine.run_control import RunControl, StageReport
from collage_engine.planning.problem_data import ProblemData
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
    menu: Menu,
    data: ProblemData,
    measuring: Measuring,
    race: Race,
    control: RunControl,
) -> ProblemData:
    """Measure candidates and transitions until the best cover is measured or the time is over.

    A quick confirmation measures only where the costs at hand make no cover.

    Args:
        task: What the run was asked for.
        menu: The toolchain instances.
        data: The candidates with their costs so far.
        measuring: Measures candidates.
        race: What was profiled when mixes were tried: estimates rest on it.
        control: Takes progress and costs.

    Returns:
        The data with isolated costs, and with constants of transitions.

    Raises:
        MeasureError: Nothing can be measured, and what is known makes no cover.
        Cancelled: The user stopped the run.
    """
    data = _with_costs_of(task.previous, data)
    with control.stage("measure") as report:
        has_answer = race.leader is not None or task.is_quick
        seconds = race.clock.for_step_s if has_answer else race.clock.to_improve_s
        is_quick = task.is_quick and has_cover(data)
        seconds = 0.0 if is_quick else seconds
        work = _Measurement(task, menu, race, measuring, control.within(seconds), data)
        is_complete = work.measure_as_far_as_possible(seconds, report)
        if not is_complete and not is_quick:
            control.cut("measure")
        report.detail = costs_text(measuring.counts)
        control.emit(RunUpdate(candidates=work.data.records(), constants=dict(work.data.constants)))
    return work.data


def has_cover(data: ProblemData) -> bool:
    """Return whether the costs at hand make a cover that keeps the pins and limits."""
    answer = solve(data.problem())
    return answer.infeasible is None and answer.cost_us is not None


def _with_costs_of(previous: Run | None, data: ProblemData) -> ProblemData:
    """Return the data with the costs that an earlier run has found out, within the model, too."""
    if previous is None:
        return data
    usable = {name: cost for name, cost in previous.costs.items() if name in data.by_id}
    since = {n: cost for n, cost in data.costs.costs.items() if data.costs.known(n)}
    return data.with_costs(CostTable(usable).with_isolated(since))


@dataclass(eq=False)
class _Measurement:
    """The measuring of one run."""

    task: RunTask
    menu: Menu
    race: Race
    measuring: Measuring
    control: RunControl
    data: ProblemData
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
            costs = self.task.open_model.with_stored_costs(self.data.candidates, self.data.costs)
            self.data = self.data.with_costs(costs)
            if not self.measuring.counts.distinct:  # it ended before any candidate's turn came
                self.measuring.begin(self.data.candidates, costs)
            if isinstance(error, MeasureError):
                if not has_cover(self.data):
                    raise
                self.control.warn(f"measuring came to an early end: {error}")
            return False

    def _measure(self, seconds: float, report: StageReport) -> bool:
        """Measure transitions and candidates, in this order."""
        deadline = time.monotonic() + seconds
        total = len({c.key for c in self.data.candidates})

        def now(text: str) -> None:
            report.progress(0, total, text)

        if seconds < TRANSITIONS_FROM_S:
            # Where there is little time, candidates of this model go before facts of the machine.
            with contextlib.suppress(Cancelled):
                self._take_constants(now, self.control.within(0.0))
        else:
            self._take_constants(now, self.control)
        self.control.check()
        opened, data = self.task.open_model, self.data
        now("recording the model's own values")
        self.measuring.begin(data.candidates, data.costs)
        planner = MeasurementPlanner(
            data,
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
            self.data = planner.data

    def _take_constants(self, now: Callable[[str], None], control: RunControl) -> None:
        """Take what transitions and conversions cost from the store, or measure it."""
        constants = transition_constants(
            self.task.open_model, self.menu, self.data.settings, control, now
        )
        self.data = self.data.with_constants(constants)
