"""The stage that measures candidates: those that could matter, and a few in a second process."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from collage_engine.bounds.certified import raise_peaks
from collage_engine.candidates.coalesce import merged_candidates
from collage_engine.candidates.menu import Menu, threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.budget import Budget, RunBudget
from collage_engine.control.progress import StageReport
from collage_engine.control.run_control import RunControl
from collage_engine.drawing.figures import costs_text
from collage_engine.machine.device import busy
from collage_engine.partition.call_graph import call_graph
from collage_engine.planning.search_problem import DRIFT_CONSTANT, RUNNERS_UP
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import Cost
from collage_engine.records.cost_table import in_model_of
from collage_engine.records.errors import Cancelled, MeasureError
from collage_engine.records.placement import CandidateCounts, Run
from collage_engine.records.precision import is_reduced
from collage_engine.records.results import RunUpdate
from collage_engine.run.problem_data import ProblemData
from collage_engine.run.stages.calibrate import WORTH_CALIBRATING_S, calibration_share
from collage_engine.run.stages.needed import Needed
from collage_engine.search.api import k_best, solve
from collage_engine.search.run_to_run_drift import BUSY_DRIFT, DEFAULT_DRIFT
from collage_engine.store.drift import drift, enough, learn, recall
from collage_engine.store.store import Store
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.timing.exchange import Exchange
from collage_engine.timing.measurer import CandidateGroup, group_candidates
from collage_engine.timing.precompile import make_ready
from collage_engine.timing.timing_costs import repeats_apart
from collage_engine.transitions.transitions import transition_constants
from collage_engine.trials.baselines import baselines
from collage_engine.wording import stages as say

MEASURING_SHARE = 0.65
"""Share of the time for improving the answer that isolated measuring may take; chosen: the rest is
for what covers take whole."""
WORTH_MEASURING_S = 12.0
"""Seconds for measuring below which nothing is measured: the model's own values are recorded and
the child is started first; chosen."""
TRANSITIONS_FROM_S = 40.0
"""Seconds for measuring from which unknown costs of hand-overs and conversions are measured first,
once per machine; chosen: that takes 12 s on two processors."""
SECOND_PROCESS_S = 20.0
"""Seconds at most for measuring candidates again in a second process; chosen."""
SECOND_PROCESS_FROM_S = 20.0
"""Seconds of measuring after which a run starts a second measuring process, whose costs tell the
run-to-run drift; chosen: a new process costs a few seconds."""
DRIFT_SAMPLE = 16
"""Candidates that the second process measures; chosen: three runs then know enough of a machine
(``store.drift``)."""
MERGE_ROUNDS = 2
"""Searches and merges in turn; chosen: later ones find next to nothing."""


@dataclass(frozen=True, kw_only=True)
class MeasureInputs:
    """What is measured, and for which run."""

    open_model: OpenModel
    menu: Menu
    data: ProblemData
    model_inputs: Mapping[str, np.ndarray]
    budget: RunBudget
    previous: Run | None
    exchange: Exchange | None
    """Through which other machines of a farm measure some of the groups; None: none do."""


@dataclass(frozen=True, kw_only=True)
class MeasureResult:
    """The measured candidates."""

    data: ProblemData
    """With isolated costs, and with constants of hand-overs and drift."""
    measuring: Measuring
    """Measures further candidates; it is closed when the run ends."""
    counts: CandidateCounts


class Remeasures(Protocol):
    """Measures known candidates once more."""

    counts: CandidateCounts

    def again(
        self, groups: Sequence[CandidateGroup], deadline: float, renew: bool = False
    ) -> Mapping[str, Cost]:
        """Measure known candidates once more, and merge old and new repeats.

        Args:
            groups: The candidates.
            deadline: When to end, on the monotonic clock.
            renew: Whether to measure in another process.

        Returns:
            Isolated costs by measurement key.
        """
        ...


class Measure:
    """Measures isolated costs, hand-overs and the run-to-run drift."""

    name = "measure"
    inputs = MeasureInputs

    def run(self, inputs: MeasureInputs, control: RunControl) -> MeasureResult:
        """Measure candidates until the best cover is certain or the time is over.

        A quick confirmation measures only where the costs at hand make no cover.

        Raises:
            MeasureError: Nothing can be measured, and what is known makes no cover.
            Cancelled: The user stopped the run.
        """
        data, settings = inputs.data, inputs.data.settings
        noisy = busy()
        if noisy:
            control.warn(noisy)
        measuring = control.open(
            Measuring(
                inputs.open_model,
                inputs.menu,
                settings,
                inputs.model_inputs,
                control.within(math.inf),
                inputs.exchange,
            )
        )
        with control.stage("measure") as report:
            data = _with_costs_of(inputs.previous, data)
            seconds = measuring_s(inputs.budget.to_improve_s, calibration_share(settings))
            drift_here = BUSY_DRIFT if noisy else DEFAULT_DRIFT
            part = control.within(seconds)
            work = _Measurement(inputs, measuring, part, drift_here, data)
            quick = settings.confirmation == "quick" and has_cover(data)
            if quick or not settings.parts.isolated_costs:
                work.take_stored(_stored_constants(inputs, control))
            elif seconds < WORTH_MEASURING_S:
                work.take_stored(_stored_constants(inputs, control))
                work.judge_stored()
            else:
                work.run_as_far_as_possible(Budget(seconds), report)
            if work.is_cut:
                control.cut("measure")
            data = work.data
            counts = measuring.counts
            report.detail = costs_text(counts)
            control.emit(RunUpdate(candidates=data.records(), constants=dict(data.constants)))
        return MeasureResult(data=data, measuring=measuring, counts=counts)


def measuring_s(to_improve_s: float, calibration_share: float = 1.0) -> float:
    """Return the seconds for measuring.

    They are ``MEASURING_SHARE`` of the time for improving the answer. Where the rest would be too
    short for calibration, measuring leaves what calibration needs at least; where it would be too
    short itself then, it has all of the time. Costs that are not calibrated favour covers of many
    pieces, wrongly.

    Args:
        to_improve_s: Seconds that stages may take to improve the answer.
        calibration_share: Which share of what is left calibration may take.
    """
    share_s = MEASURING_SHARE * to_improve_s
    beside_s = to_improve_s - WORTH_CALIBRATING_S / calibration_share
    if share_s <= beside_s:
        return share_s
    return beside_s if beside_s >= WORTH_MEASURING_S else to_improve_s


def has_cover(data: ProblemData) -> bool:
    """Return whether the costs at hand make a cover that keeps the pins and limits."""
    answer = solve(data.problem(), with_bounds=False)
    return answer.infeasible is None and answer.cost_us is not None


def _with_costs_of(previous: Run | None, data: ProblemData) -> ProblemData:
    """Return the data with the costs that an earlier run has found out, within the model, too."""
    if previous is None:
        return data
    known = {name: cost for name, cost in previous.costs.items() if name in data.by_id}
    isolated = {n: cost.isolated() for n, cost in known.items() if not data.costs.known(n)}
    return data.with_costs(data.costs.with_isolated(isolated).with_in_model(in_model_of(known)))


def _stored_constants(inputs: MeasureInputs, control: RunControl) -> dict[str, float]:
    """Return the constants of hand-overs and drift that the store knows; nothing is measured."""
    known = recall(inputs.open_model.store, threads_of(inputs.data.settings))
    constants = {DRIFT_CONSTANT: drift(known, DEFAULT_DRIFT)}
    with contextlib.suppress(Cancelled):
        constants |= transition_constants(
            inputs.open_model,
            inputs.menu,
            inputs.data.settings,
            control.within(0.0),
            lambda now: None,
        )
    return constants


def _measure_all(
    data: ProblemData, measuring: Measuring, budget: Budget, report: StageReport
) -> ProblemData:
    """Measure all candidates, until the budget is spent."""
    if any(not data.costs.known(c.id) for c in data.candidates):
        total = len({c.key for c in data.candidates})
        report.progress(0, total, say.RECORDING_VALUES)
    return data.with_costs(measuring.add(data.candidates, data.costs, budget.deadline))


class _Measurement:
    """The measuring of one run.

    Attributes:
        data: what is known of the candidates so far; it stands when the measuring is interrupted.
        is_cut: whether the time ended before everything that could matter was measured.
    """

    def __init__(
        self,
        inputs: MeasureInputs,
        measuring: Measuring,
        control: RunControl,
        drift_here: float,
        data: ProblemData,
    ) -> None:
        self.open_model = inputs.open_model
        self.menu = inputs.menu
        self.settings = inputs.data.settings
        self.is_local = inputs.exchange is None
        """Whether all candidates are measured on this machine."""
        self.measuring = measuring
        self.control = control
        self.drift_here = drift_here
        """Run-to-run drift as a share, until the store knows better."""
        self.data = data
        self.is_cut = False

    def run(self, budget: Budget, report: StageReport) -> None:
        """Measure until the best cover is certain or the budget is spent.

        Raises:
            Cancelled: The time was over, or the user stopped it; ``data`` holds what is known.
            MeasureError: The model cannot be opened for measuring; the same holds.
        """
        try:
            self.measure(budget, report)
        except (Cancelled, MeasureError):
            costs = self.open_model.with_stored_costs(self.data.candidates, self.data.costs)
            self.data = self.data.with_costs(costs)
            if not self.measuring.counts.distinct:  # it ended before any candidate's turn came
                self.measuring.begin(self.data.candidates, costs)
            raise

    def run_as_far_as_possible(self, budget: Budget, report: StageReport) -> None:
        """Measure, also where that comes to an early end; ``is_cut`` says so then.

        Raises:
            MeasureError: Nothing can be measured, and what is known makes no cover.
        """
        try:
            self.run(budget, report)
        except Cancelled:
            self.is_cut = True
        except MeasureError as error:
            if not has_cover(self.data):
                raise
            self.is_cut = True
            self.control.warn(say.MEASURING_ENDED_EARLY.format(error=error))

    def take_stored(self, constants: Mapping[str, float]) -> None:
        """Measure nothing: the costs of the store are what there is."""
        self.data = self.data.with_constants(constants)
        self.measuring.begin(self.data.candidates, self.data.costs)

    def judge_stored(self) -> None:
        """Find out whether the costs of the store are all that could matter."""
        if self.control.cancelled.is_set():
            self.is_cut = True
        else:
            self.data, _ = self.measure_needed(self.data, Budget(0.0), audit=False)

    def measure(self, budget: Budget, report: StageReport) -> None:
        """Measure hand-overs, candidates, the run-to-run drift and merged ones, in this order."""
        left_out = None
        self.data = self.with_constants(self.data, report, budget.seconds)
        if self.settings.measure == "all":
            self.data = _measure_all(self.data, self.measuring, budget, report)
            self.is_cut = budget.spent
        else:
            self.data, left_out = self.measure_needed_by_precision(self.data, budget)
        # In this order: which merged candidates there are follows from the stored costs, so that
        # a run from the store proposes the same ones and finds them there.
        changed = False
        if self.settings.parts.repeats:
            store = self.open_model.store
            self.data, changed = learn_drift(
                self.data, self.measuring, store, budget, self.drift_here
            )
        if changed and self.settings.measure != "all":
            self.data, left_out = self.measure_needed(self.data, budget, audit=False)
        self.data = self.coalesce(self.data, budget)
        if left_out:
            self.control.log(left_out)

    def with_constants(self, data: ProblemData, report: StageReport, seconds: float) -> ProblemData:
        """Measure hand-overs, and have toolchains compile what their candidates share.

        Args:
            data: The candidates.
            report: Takes progress.
            seconds: The time for measuring; where it is short, only stored constants are taken.

        Returns:
            The data with the constants.
        """
        total = len({c.key for c in data.candidates})

        def now(text: str) -> None:
            report.progress(0, total, text)

        known = recall(self.open_model.store, threads_of(self.settings))
        # Where there is little time, candidates of this model go before facts of the machine.
        short = seconds < TRANSITIONS_FROM_S
        control = self.control.within(0.0) if short else self.control
        transitions: Mapping[str, float] = {}
        with contextlib.suppress(*((Cancelled,) if short else ())):
            transitions = transition_constants(
                self.open_model, self.menu, self.settings, control, now
            )
        make_ready(self.open_model, self.menu, data.candidates, data.costs, now, self.control)
        return data.with_constants({DRIFT_CONSTANT: drift(known, self.drift_here), **transitions})

    def measure_needed_by_precision(
        self, data: ProblemData, budget: Budget
    ) -> tuple[ProblemData, str | None]:
        """Measure what a better cover could contain, in full precision first.

        What is needed without reduced precision is measured as well, for half of the budget:
        candidates in reduced precision may turn out to break the tolerance.
        """
        self.measuring.begin(data.candidates, data.costs)
        full = [c for c in data.candidates if not is_reduced(c.instance)]
        if len(full) < len(data.candidates):
            half = Budget(budget.seconds / 2)
            narrowed, _ = self.measure_needed(data.with_candidates(full, data.costs), half)
            reduced = [c for c in data.candidates if is_reduced(c.instance)]
            data = data.with_candidates([*full, *reduced], narrowed.costs)
        return self.measure_needed(data, budget)

    def measure_needed(
        self, data: ProblemData, budget: Budget, audit: bool = True
    ) -> tuple[ProblemData, str | None]:
        """Measure what a better cover could contain, and what the baselines consist of.

        Args:
            data: The candidates.
            budget: The time for it.
            audit: Whether to check the assumption behind heuristic bounds on a few candidates
                that they leave out. An earlier measurement has done so already.

        Returns:
            The data with costs, and a sentence about what was left out, if anything was.
        """
        calls = call_graph(self.open_model.model.graph)
        contenders = baselines(calls, self.menu, self.settings, 0)
        needed = Needed(
            self.open_model.model.graph,
            data,
            self.measuring,
            budget.deadline,
            keep=[candidate for contender in contenders for candidate in contender.cover],
        )
        operators = len(self.open_model.model.graph.operators)
        # Whole models were timed in any case, before anything was measured in isolation.
        first = not any(
            data.costs.cost(c.id).usable for c in data.candidates if len(c.nodes) < operators
        )
        data = data.with_costs(needed.measure(audit=audit and first))
        if needed.refuted < 1.0:
            share = f"{100 * (1 - needed.refuted):.0f}"
            self.control.log(say.BOUNDS_LOWERED.format(share=share))
            if self.menu.target.kind == "cpu" and self.is_local:
                raise_peaks(self.open_model.store, needed.refuted)
        self.measuring.counts = msgspec.structs.replace(
            self.measuring.counts, proven=len(needed.proven), assumed=len(needed.assumed)
        )
        self.is_cut = budget.spent and not needed.certified
        return data, needed.words()

    def coalesce(self, data: ProblemData, budget: Budget) -> ProblemData:
        """Merge touching partitions of the best covers into candidates, and measure these.

        Returns:
            The data with the merged candidates.
        """
        for _ in range(MERGE_ROUNDS):
            if budget.spent:
                break
            problem = data.problem()
            covers = [ranked.cover for ranked in k_best(problem, RUNNERS_UP + 1)]
            merged = merged_candidates(self.open_model.model, self.menu, problem, covers)
            if not merged:
                break
            costs = self.open_model.with_stored_costs(merged, data.costs)
            data = data.with_candidates([*data.candidates, *merged], costs)
            self.control.emit(RunUpdate(candidates=data.records()))
            data = data.with_costs(self.measuring.add(merged, costs, budget.deadline))
        return data


def learn_drift(
    data: ProblemData, measuring: Remeasures, store: Store, budget: Budget, drift_here: float
) -> tuple[ProblemData, bool]:
    """Measure some candidates once more in a second process: how far do medians drift between two?

    A run that has measured for long does it, until enough is known of this machine. Nothing is
    measured again for the sake of the choice: that changed no placement in the ablation of
    ``tests/benchmarks/RESULTS.md``.

    Args:
        data: The measured candidates.
        measuring: Measures candidates again.
        store: Where the run-to-run drift is kept.
        budget: The time for measuring.
        drift_here: Run-to-run drift as a share, until the store knows better.

    Returns:
        The data, and whether any candidate was measured again.
    """
    threads = threads_of(data.settings)
    short = budget.seconds - budget.left < SECOND_PROCESS_FROM_S
    if short or budget.spent or not measuring.counts.measured or enough(recall(store, threads)):
        return data, False
    groups = group_candidates(_drawn(data))
    deadline = min(budget.deadline, time.monotonic() + SECOND_PROCESS_S)
    before = {c.key: data.costs.isolated_cost(c.id) for group in groups for c in group.candidates}
    costs = measuring.again(groups, deadline, renew=True)
    pairs = [two for key, old in before.items() if (two := repeats_apart(old, costs.get(key, old)))]
    learnt = drift(learn(store, threads, pairs), drift_here)
    data = data.with_constants({DRIFT_CONSTANT: learnt})
    return data.with_costs(data.costs.with_measured(data.candidates, costs)), True


def _drawn(data: ProblemData) -> list[Candidate]:
    """Draw ``DRIFT_SAMPLE`` measured candidates at random, the same ones in an equal run."""
    usable = sorted(
        (c for c in data.candidates if data.costs.cost(c.id).usable), key=lambda c: c.id
    )
    random.Random(len(usable)).shuffle(usable)
    return usable[:DRIFT_SAMPLE]
