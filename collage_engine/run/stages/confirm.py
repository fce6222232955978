"""The stages that time the best covers and all baselines end to end, and choose the winner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from collage_engine.build.built import MODULE_FILE
from collage_engine.candidates.menu import Menu
from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.budget import RunBudget
from collage_engine.control.run_control import RunControl
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.call_graph import call_graph
from collage_engine.records.candidate import Candidate
from collage_engine.records.counted import counted
from collage_engine.records.placement import Placement, Run
from collage_engine.run.best_cover import remember, remembered_cover
from collage_engine.run.candidates_of_run import candidates_of_run
from collage_engine.run.chosen_placement import baseline_placement, chosen_placement
from collage_engine.run.contenders import with_eligibility
from collage_engine.run.problem_data import ProblemData
from collage_engine.run.trials_of_run import trial_runner
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.trials.baselines import COLLAGE, baselines
from collage_engine.trials.confirmation import Confirmation, confirm
from collage_engine.trials.confirmation_plan import (
    TimeLeft,
    confirmation_of_trials,
    plan_confirmation,
    with_left_out,
)
from collage_engine.trials.contender import Contender, Sample
from collage_engine.trials.objective import confirming_settings
from collage_engine.trials.runner import NOT_AMONG_FEW, NOT_REACHED, Module
from collage_engine.trials.whole_models import WholeModels


@dataclass(frozen=True, kw_only=True)
class ContenderInputs:
    """The best covers and what baselines there are."""

    open_model: OpenModel
    menu: Menu
    data: ProblemData
    measuring: Measuring
    placements: tuple[Placement, ...]
    whole_models: WholeModels
    previous: Run | None


@dataclass(frozen=True, kw_only=True)
class ContenderList:
    """Everything that is timed end to end: the best covers, then the baselines."""

    contenders: tuple[Contender, ...]
    placements: tuple[Placement, ...]
    """The covers among them, in their order."""


class ListContenders:
    """Lists what takes part in the confirmation."""

    name = "build"
    inputs = ContenderInputs

    def run(self, inputs: ContenderInputs, control: RunControl) -> ContenderList:
        """List the best covers, that of earlier runs, the mixes tried, and all baselines."""
        # From here on whole models are timed: no other child may hold memory or processors.
        inputs.measuring.close()
        data, placements = inputs.data, inputs.placements
        with control.stage("build") as report:
            found = [(placement, data.cover_of(placement)) for placement in placements]
            if data.settings.confirmation == "quick":
                graph = inputs.open_model.model.graph
                found = [*found[:1], *_placement_before(inputs.previous, graph, inputs.menu)]
            else:
                # Second, so that it is timed also where there is time for two covers only.
                found[1:1] = _best_before(inputs.open_model, data, [cover for _, cover in found])
            found += _mixes_tried(inputs, [cover for _, cover in found])
            covers = [
                with_eligibility(
                    data,
                    Contender(
                        name=COLLAGE if place == 0 else f"{COLLAGE} {place + 1}",
                        kind="collage",
                        cover=cover,
                        order=place,
                    ),
                )
                for place, (_, cover) in enumerate(found)
            ]
            calls = call_graph(inputs.open_model.model.graph)
            others = [
                with_eligibility(data, contender)
                for contender in baselines(calls, inputs.menu, data.settings, len(covers))
            ]
            report.detail = (
                f"{counted(len(covers), 'placement')}, {counted(len(others), 'baseline')}"
            )
        return ContenderList(
            contenders=(*covers, *others), placements=tuple(placement for placement, _ in found)
        )


def _mixes_tried(
    inputs: ContenderInputs, covers: Sequence[tuple[Candidate, ...]]
) -> list[tuple[Placement, tuple[Candidate, ...]]]:
    """Return the mixes whose trials ran, as placements, without those that the search has found."""
    known = {frozenset(candidate.id for candidate in cover) for cover in covers}
    return [
        (baseline_placement(inputs.data, one), one.contender.cover)
        for one in inputs.whole_models.timed
        if one.contender.kind == "collage"
        and frozenset(candidate.id for candidate in one.contender.cover) not in known
    ]


def _best_before(
    open_model: OpenModel, data: ProblemData, covers: Sequence[tuple[Candidate, ...]]
) -> list[tuple[Placement, tuple[Candidate, ...]]]:
    """Return the best cover of earlier runs as a list of one; empty where ``covers`` has it."""
    cover = remembered_cover(open_model, data)
    ids = [candidate.id for candidate in cover]
    if not cover or any({c.id for c in known} == set(ids) for known in covers):
        return []
    return [(data.placement(ids, data.problem()), cover)]


def _placement_before(
    previous: Run | None, graph: DataflowGraph, menu: Menu
) -> list[tuple[Placement, tuple[Candidate, ...]]]:
    """Return the placement of the run before, without its times, as a list of one.

    The list is empty where there is none, or where a toolchain of it is no longer there.
    """
    if previous is None or previous.placement is None:
        return []
    cover = candidates_of_run(graph, previous)
    if not all(candidate.instance.id in menu.instances for candidate in cover):
        return []
    parts = tuple(
        msgspec.structs.replace(part, in_place_us=None, right=None)
        for part in previous.placement.partitions
    )
    return [(Placement(partitions=parts, estimated_us=previous.placement.estimated_us), cover)]


STOPPED_S = 10.0
"""Seconds for the confirmation of what a user keeps who stops the run; chosen."""
QUICK_S = 12.0
"""Seconds that a quick confirmation may take, whatever the budget; chosen."""


@dataclass(frozen=True, kw_only=True)
class ConfirmInputs:
    """What is timed, on which inputs."""

    open_model: OpenModel
    data: ProblemData
    contenders: Sequence[Contender]
    placements: tuple[Placement, ...]
    sample: Sample
    further_samples: tuple[Sample, ...]
    tolerance: float
    whole_models: WholeModels
    budget: RunBudget
    previous: Run | None


@dataclass(frozen=True, kw_only=True)
class ConfirmResult:
    """The confirmation's measurements, and what it chose."""

    confirmation: Confirmation
    chosen: Placement
    """The winner's placement, with its end-to-end times."""
    confirmed_how: Literal["full", "quick", "trial"]
    """``trial``: there was no time for more than the trials of whole models."""
    contenders_left_out: int
    """Contenders that were not timed end to end for want of time."""


class Confirm:
    """Builds the contenders and times them in turn, on the run's inputs.

    Where time is short, the most promising ones only; whole models then keep the times of their
    trials. Where there is no time at all, the fastest whole model is what the run has found.
    """

    name = "confirm"
    inputs = ConfirmInputs

    def run(self, inputs: ConfirmInputs, control: RunControl) -> ConfirmResult:
        """Time the contenders end to end and choose the fastest.

        Raises:
            CollageError: None of the contenders can be built and run.
            Cancelled: The user stopped the run.
        """
        known, budget = inputs.whole_models, inputs.budget
        quick = inputs.data.settings.confirmation == "quick"
        seconds = budget.to_confirm_s
        if control.keep.is_set():
            seconds = min(seconds, STOPPED_S)
        plan = plan_confirmation(
            inputs.contenders,
            known,
            max(seconds, QUICK_S) if quick else seconds,
            weights_bytes=inputs.open_model.model.record.weights_bytes,
            quick=quick or control.keep.is_set(),
            earlier_us=_baseline_times(inputs.previous),
        )
        modules = {**inputs.open_model.modules, **known.modules}
        with control.stage("confirm") as report:
            if plan.contenders:
                reserve = TimeLeft(plan, budget.clock() + seconds, budget.clock)
                with trial_runner(
                    self.name,
                    inputs.open_model,
                    [inputs.sample, *inputs.further_samples],
                    inputs.tolerance,
                    control,
                    confirming_settings(inputs.data.settings),
                    modules=modules,
                    keep_modules=True,
                ) as runner:
                    confirmation = confirm(
                        runner,
                        plan.contenders,
                        settings=plan.settings,
                        on_progress=report.progress,
                        hurry=lambda: control.keep.is_set() or reserve.is_over,
                        trials_us=_trial_times(inputs),
                        reserve=reserve,
                    )
            else:
                confirmation = confirmation_of_trials(known)
            reason = NOT_AMONG_FEW if quick else NOT_REACHED
            confirmation = with_left_out(confirmation, inputs.contenders, known, reason)
            if plan.contenders and inputs.data.settings.objective != "latency":
                confirmation = without_trial_times(confirmation)
            report.detail = f"{confirmation.named} wins"
        latency = inputs.data.settings.objective == "latency"
        # Those for another objective may be built otherwise, which their keys do not say.
        inputs.open_model.keep_modules(_worth_keeping(confirmation, modules) if latency else {})
        left_out = sum(one.reason == NOT_REACHED or one.from_trial for one in confirmation.results)
        if left_out and not quick:
            control.cut("confirm")
        if plan.contenders and not quick:
            remember(inputs.open_model, inputs.data, confirmation)
        how: Literal["full", "quick", "trial"] = "quick" if left_out or quick else "full"
        return ConfirmResult(
            confirmation=confirmation,
            chosen=chosen_placement(inputs.data, inputs.placements, confirmation),
            confirmed_how=how if plan.contenders else "trial",
            contenders_left_out=left_out,
        )


def _trial_times(inputs: ConfirmInputs) -> dict[tuple[object, ...], float]:
    """Return what whole models took in their trials, in microseconds, by their keys.

    It is empty where the objective is not latency.
    """
    if inputs.data.settings.objective != "latency":
        return {}
    return {
        one.contender.key: one.measured_us
        for one in inputs.whole_models.timed
        if one.measured_us is not None
    }


def without_trial_times(confirmation: Confirmation) -> Confirmation:
    """Return a confirmation without times of trials.

    These are latencies, which are no answer where another objective counts.
    """
    results = tuple(
        replace(one, rounds_us=(), from_trial=False, reason=one.reason or NOT_REACHED)
        if one.from_trial
        else one
        for one in confirmation.results
    )
    return replace(confirmation, results=results)


def _worth_keeping(
    confirmation: Confirmation, built: Mapping[tuple[object, ...], Module]
) -> dict[tuple[object, ...], Module]:
    """Return the modules of the winner and of the fastest baseline, for a later quick confirmation.

    Tuned kernels may change under the same names, so modules with such are not kept.
    """
    winner = confirmation.winner
    if winner.folder is not None and winner.built is not None:
        built = {**built, winner.contender.key: (winner.folder, winner.built)}
    timed = [
        one
        for one in confirmation.results
        if one.contender.kind != "collage" and one.measured_us is not None
    ]
    fastest = min(timed, key=lambda one: one.measured_us or math.inf, default=winner)
    keys = {
        replace(one.contender, python_session=False).key
        for one in (winner, fastest)
        if not any(candidate.instance.tuning for candidate in one.contender.cover)
    }
    return {
        key: built[key] for key in keys if key in built and (built[key][0] / MODULE_FILE).is_file()
    }


def _baseline_times(previous: Run | None) -> dict[str, float]:
    """Return times of the baselines of the run before, by name."""
    if previous is None:
        return {}
    return {base.name: base.measured_us for base in previous.baselines if base.measured_us}
