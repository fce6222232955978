"""The step that times whole models first, so that the run has an answer from then on."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

from collage_engine.candidates.menu import Menu
from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.budget import RunBudget
from collage_engine.control.run_control import RunControl
from collage_engine.model.importer import ImportedModel
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import Cost
from collage_engine.records.counted import counted
from collage_engine.records.errors import MeasureError
from collage_engine.records.event import StageName
from collage_engine.run.contenders import (
    before_precision,
    first_contenders,
    is_secondary,
    placement_under_pins,
)
from collage_engine.run.problem_data import ProblemData
from collage_engine.run.provisional import announce
from collage_engine.run.stages.samples import RunSamples
from collage_engine.run.task import RunTask
from collage_engine.run.trials_of_run import open_race
from collage_engine.store.keys import KeyMaker
from collage_engine.store.measurement import Measurement
from collage_engine.trials.contender import Contender, ContenderResult
from collage_engine.trials.race import Race
from collage_engine.trials.runner import trial_settings
from collage_engine.wording.amounts import time_text

SECONDARY_SHARE = 0.3
"""Share of the time that is left within which other configurations and greedy covers may enter;
chosen: on ResNet-50 two of them took 10 of 60 seconds, and they rarely win."""
OTHER_RACE_SHARE = 0.5
"""Share of the time that is left that is kept, where throughput or a tail of latencies is the
objective, for the race in which everybody who is near is timed by it; chosen."""
EXPORT_S = 1.0
"""Seconds for writing an artifact beside its weights; chosen, from small models."""
EXPORTED_BYTES_PER_S = 150e6
"""Bytes of weights that are copied and hashed per second; chosen: 100 MB of ResNet-50 took 0.1 to
0.5 s on a fast disk."""


@dataclass(frozen=True, kw_only=True)
class WholeModelResult:
    """What whole models took, and what is known from that."""

    data: ProblemData
    """With the costs of the partitions that were tried, where none were known."""
    race: Race
    """Which every later placement enters; it ends with the run."""
    budget: RunBudget
    """With the time kept back that the end of the race and the artifact will need."""
    waiting: tuple[Contender, ...] = ()
    """Whole models that have not entered yet."""


def race_whole_models(
    task: RunTask,
    menu: Menu,
    data: ProblemData,
    samples: RunSamples,
    budget: RunBudget,
    control: RunControl,
    *,
    reserved_s: float = 0.0,
) -> WholeModelResult:
    """Open the race, and have each toolchain alone enter it.

    Each answer that is the best so far is announced. A quick confirmation compares with what the
    run before knew; then only its placement enters, changed as the pins ask. Where products are
    going to be chosen that may be rounded, only a first answer enters, and what that choice cannot
    stand in for; the others wait.

    Args:
        task: What the run was asked for.
        menu: The toolchains and candidates.
        data: The candidates with the costs that the store holds.
        samples: The true outputs.
        budget: The run's time.
        control: Takes progress and answers.
        reserved_s: Seconds that the choice of products has to itself; 0: there is none.

    Raises:
        Cancelled: The user stopped the run.
    """
    race = open_race(
        task.open_model,
        samples.all,
        samples.tolerance,
        control,
        trial_settings(data.settings),
        ends_at=budget.ends_at - _exporting_s(task),
        modules=task.open_model.modules,
        on_answer=lambda race: announce(task, menu, data, race, control),
    )
    if task.is_quick and task.previous is not None:
        contenders = placement_under_pins(task.open_model, menu, data, task.previous)
    else:
        contenders = first_contenders(task.open_model, menu, data)
    early = before_precision(contenders, menu) if reserved_s else contenders
    later = tuple(one for one in contenders if one not in early)
    opened = WholeModelResult(data=data, race=race, budget=budget, waiting=later)
    return enter_whole_models(
        task, menu, opened, early, control, "whole-models", reserved_s=reserved_s
    )


def enter_whole_models(
    task: RunTask,
    menu: Menu,
    raced: WholeModelResult,
    contenders: Sequence[Contender],
    control: RunControl,
    stage: StageName,
    *,
    reserved_s: float = 0.0,
) -> WholeModelResult:
    """Have whole models enter the race, as far as there is time, and keep what they took.

    Args:
        task: What the run was asked for.
        menu: The toolchains and candidates.
        raced: The race, with what is known so far.
        contenders: The whole models, the most promising first.
        control: Takes progress and answers.
        stage: What this is called in the progress and in documents.
        reserved_s: Seconds that the stage after this one has to itself.

    Raises:
        Cancelled: The user stopped the run.
    """
    race, budget = raced.race, raced.budget
    is_latency = raced.data.settings.objective == "latency"
    if contenders:
        with control.stage(stage) as report:
            first = [one for one in contenders if not is_secondary(one)]
            second = [one for one in contenders if is_secondary(one)]
            now = budget.clock()
            left_s = max(0.0, budget.left_s - budget.added_s - reserved_s)
            # Each toolchain alone may take all of it: what wins is mostly decided by them.
            alone_s = left_s if is_latency else (1 - OTHER_RACE_SHARE) * left_s
            for some, seconds in ((first, alone_s), (second, SECONDARY_SHARE * left_s)):
                race.enter(some, ends_at=now + seconds, on_progress=report.progress)
            results = race.results()
            report.detail = _detail(results, race)
            if not all(one.reached for one in results):
                control.cut(stage)
    data = with_trial_costs(task.open_model.model, menu, raced.data, race.results())
    keep_costs(task.open_model, menu, raced.data, data)
    answered = race.leader is not None or task.is_quick
    confirming_s = race.seconds_to_finish if is_latency else OTHER_RACE_SHARE * race.time_left
    kept = budget.keeping_back(confirming_s, _exporting_s(task), has_answer=answered)
    return replace(raced, data=data, budget=kept)


def _exporting_s(task: RunTask) -> float:
    """Return the seconds for writing the artifact."""
    weights_bytes = task.open_model.model.record.weights_bytes
    return EXPORT_S + weights_bytes / EXPORTED_BYTES_PER_S


def timed(results: Sequence[ContenderResult]) -> list[ContenderResult]:
    """Return the results of those that ran with right numbers, the fastest first."""
    found = [one for one in results if one.reason is None and one.measured_us]
    return sorted(found, key=lambda one: one.measured_us or math.inf)


def _detail(results: Sequence[ContenderResult], race: Race) -> str:
    """Return the outcome in a phrase, such as ``6 placements tried, 5 of them on one …``."""
    reached = [one for one in results if one.reached]
    single = sum(one.contender.kind == "whole-model" for one in reached)
    tried = f"{counted(len(reached), 'placement')} tried, {single} of them on one toolchain"
    us = None if race.leader is None else race.time_us(race.leader)
    if race.leader is None or us is None:
        return f"{tried}; none can be exported"
    return f"{tried}; the fastest is {race.leader.contender.title} with {time_text(us)}"


def with_trial_costs(
    model: ImportedModel, menu: Menu, data: ProblemData, results: Sequence[ContenderResult]
) -> ProblemData:
    """Return the data with costs of partitions that were tried in whole models.

    A whole model takes in a search what it took in its trial, so that there is a cover with a cost
    from the first trial on. Where the store knows a cost of it, the lower one is taken: what else
    the machine does only adds time (Chen and Revels, "Robust benchmarking in noisy environments",
    2016), and a cost from a busy moment would otherwise stay for good. What several partitions took
    in one trial is taken only where no whole model in one partition may be exported, since these
    are no isolated costs.

    Args:
        model: The model.
        menu: The toolchain instances, and what measurement keys are made with.
        data: The candidates with their costs so far.
        results: The trials.
    """
    makers = KeyMaker(model.graph, model.constant)
    costs: dict[str, Cost] = {}
    new: dict[str, Candidate] = {}
    in_one = [one for one in timed(results) if len(one.contender.cover) == 1]
    enough = any(one.contender.eligible for one in in_one)
    for outcome in in_one if enough else timed(results):
        for candidate, us in _partition_times(outcome):
            alone = len(outcome.contender.cover) == 1
            if candidate.id in costs or us <= 0:
                continue
            if not replaces(us, data.costs.isolated_cost(candidate.id), alone):
                continue
            costs[candidate.id] = _cost(outcome, us)
            if candidate.id not in data.by_id:
                key = menu.keys.key(makers.form_of(candidate), candidate.instance)
                new[candidate.id] = msgspec.structs.replace(candidate, key=key)
    return data.with_candidates([*data.candidates, *new.values()], data.costs.with_isolated(costs))


def replaces(us: float, known: Cost, alone: bool) -> bool:
    """Return whether a trial's time in µs replaces what is known of the cost.

    Args:
        us: What the partition took in the trial.
        known: The cost so far.
        alone: Whether the partition was the whole model, so that both are times of the same work.
    """
    if known.state == "unknown":
        return True
    return alone and known.usable and known.median_us is not None and us < known.median_us


def keep_costs(open_model: OpenModel, menu: Menu, before: ProblemData, found: ProblemData) -> None:
    """Store what whole models in one partition took, so that a later run rests on the same costs.

    Args:
        open_model: The model, with the store.
        menu: The toolchains with their versions.
        before: The data before the trials.
        found: The data with their costs.
    """
    operators = len(open_model.model.graph.operators)
    new = [
        candidate
        for candidate in found.candidates
        if len(candidate.nodes) == operators
        and candidate.key
        and before.costs.isolated_cost(candidate.id) != found.costs.isolated_cost(candidate.id)
    ]
    # Measuring reports a store that cannot be written; the answer stands.
    with contextlib.suppress(MeasureError):
        open_model.store.put_many(
            Measurement(
                key=candidate.key,
                cost=found.costs.isolated_cost(candidate.id),
                label=candidate.label,
                instance=candidate.instance,
                device=menu.device_text,
                versions={
                    name: version
                    for name, version in menu.versions.items()
                    if name == candidate.instance.toolchain
                },
                model=open_model.model.record.sha256,
            )
            for candidate in new
        )


def _partition_times(outcome: ContenderResult) -> list[tuple[Candidate, float]]:
    """Return the candidates of a trial in the order they run, with what each took in it, in µs."""
    assert outcome.built is not None and outcome.measured_us is not None
    by_id = {candidate.id: candidate for candidate in outcome.contender.cover}
    if len(by_id) == 1:
        return [(candidate, outcome.measured_us) for candidate in by_id.values()]
    ran = [by_id[part.id] for part in outcome.built.parts]
    total = sum(outcome.parts_us)
    if total <= 0:
        return []
    # The profile's shares of the time: profiling takes time of its own.
    factor = min(1.0, outcome.measured_us / total)
    return [(one, us * factor) for one, us in zip(ran, outcome.parts_us, strict=True)]


def _cost(outcome: ContenderResult, us: float) -> Cost:
    """Return the cost of a partition that took some time in a trial, with the trial's spread.

    Args:
        outcome: The trial.
        us: The microseconds of the partition in it.
    """
    assert outcome.measured_us is not None
    factor = us / outcome.measured_us
    low, high = outcome.spread_us or (outcome.measured_us, outcome.measured_us)
    return Cost(
        state="measured",
        median_us=us,
        low_us=low * factor,
        high_us=high * factor,
        count=sum(not math.isnan(one) for one in outcome.rounds_us),
        max_rel_error=outcome.max_rel_error,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
