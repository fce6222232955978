"""The stage that times whole models first, so that the run has an answer from then on."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
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
from collage_engine.records.placement import Run
from collage_engine.run.contenders import first_contenders, is_secondary
from collage_engine.run.problem_data import ProblemData
from collage_engine.run.provisional import announce
from collage_engine.run.stages.measure import WORTH_MEASURING_S
from collage_engine.run.trials_of_run import trial_runner
from collage_engine.store.keys import KeyMaker
from collage_engine.store.measurement import Measurement
from collage_engine.trials.confirmation_plan import kept_back
from collage_engine.trials.contender import Contender, ContenderResult, Sample
from collage_engine.trials.objective import trial_settings
from collage_engine.trials.whole_models import TrialTime, WholeModels, time_whole_models
from collage_engine.wording import stages as say
from collage_engine.wording.amounts import time_text

LARGEST_SHARE = 0.75
"""Share of the run's time that whole models may take once there is an answer; chosen: what wins is
mostly decided by them, and the rest of the time finds the mixes."""
SECONDARY_SHARE = 0.3
"""The same share for other configurations and greedy covers; chosen: on ResNet-50 two of them took
10 of 60 seconds, and they rarely win."""

BEGINNING_S = 1.15 * WORTH_MEASURING_S
"""Seconds that are left to measuring, where there is little time, so that it begins; chosen: some
pass before it does."""


@dataclass(frozen=True, kw_only=True)
class WholeModelInputs:
    """The toolchains, the model and the run's inputs."""

    open_model: OpenModel
    menu: Menu
    data: ProblemData
    sample: Sample
    further_samples: tuple[Sample, ...]
    tolerance: float
    budget: RunBudget
    previous: Run | None
    run_id: str
    started_at: str


@dataclass(frozen=True, kw_only=True)
class WholeModelResult:
    """What whole models took, and what is known from that."""

    data: ProblemData
    """With the costs of the partitions that were tried, where none were known."""
    whole_models: WholeModels
    budget: RunBudget
    """With the time kept back that the confirmation and the artifact will need."""


class TimeWholeModels:
    """Builds, checks and times each toolchain alone; announces each answer that is the best so far.

    A quick confirmation compares with what the run before knew; then nothing is tried here.
    """

    name = "whole-models"
    inputs = WholeModelInputs

    def run(self, inputs: WholeModelInputs, control: RunControl) -> WholeModelResult:
        """Time whole models, at least until one of them runs with right numbers.

        Returns:
            What they took, and the budget with the time kept back that the confirmation and the
            artifact will need.

        Raises:
            Cancelled: The user stopped the run.
        """
        data, budget = inputs.data, inputs.budget
        weights = inputs.open_model.model.record.weights_bytes
        if data.settings.confirmation == "quick" and inputs.previous is not None:
            none = WholeModels()
            kept = budget.keeping_back(*kept_back(none, budget.left_s, weights, BEGINNING_S))
            return WholeModelResult(data=data, whole_models=none, budget=kept)
        with control.stage("whole-models") as report:
            contenders = first_contenders(inputs.open_model, inputs.menu, data)
            whole_s = budget.left_s
            end = whole_s * (1 - LARGEST_SHARE)

            def left_s() -> float:
                return 0.0 if control.keep.is_set() else budget.left_s - end

            def is_wanted(contender: Contender) -> bool:
                share = SECONDARY_SHARE if is_secondary(contender) else LARGEST_SHARE
                return budget.left_s > whole_s * (1 - share)

            def on_answer(known: WholeModels) -> None:
                best = known.best
                assert best is not None
                report.detail = say.FASTEST_SO_FAR.format(name=best.contender.title)
                announce(inputs, known, control)

            given = TrialTime(
                left_s=left_s,
                is_wanted=is_wanted,
                on_answer=on_answer,
                on_progress=report.progress,
            )
            with trial_runner(
                self.name,
                inputs.open_model,
                [inputs.sample, *inputs.further_samples],
                inputs.tolerance,
                control,
                trial_settings(data.settings),
                keep_modules=True,
            ) as runner:
                known = time_whole_models(runner, contenders, given)
            report.detail = _detail(known)
        if known.unreached:
            control.cut("whole-models")
        found = with_trial_costs(inputs.open_model.model, inputs.menu, data, known)
        keep_costs(inputs.open_model, inputs.menu, data, found)
        return WholeModelResult(
            data=found,
            whole_models=known,
            budget=budget.keeping_back(*kept_back(known, budget.left_s, weights, BEGINNING_S)),
        )


def _detail(known: WholeModels) -> str:
    """Return the outcome in a phrase, such as ``6 placements tried, 5 of them on one …``."""
    single = sum(one.contender.kind == "whole-model" for one in known.results)
    tried = say.WHOLE_MODELS_TRIED.format(
        placements=counted(len(known.results), "placement"), single=single
    )
    best = known.best
    if best is None or best.measured_us is None:
        return say.NONE_EXPORTABLE.format(tried=tried)
    return say.FASTEST_TRIED.format(
        tried=tried, name=best.contender.title, took=time_text(best.measured_us)
    )


def with_trial_costs(
    model: ImportedModel, menu: Menu, data: ProblemData, known: WholeModels
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
        known: The trials.
    """
    makers = KeyMaker(model.graph, model.constant)
    costs: dict[str, Cost] = {}
    new: dict[str, Candidate] = {}
    in_one = [one for one in known.timed if len(one.contender.cover) == 1]
    enough = any(one.contender.eligible for one in in_one)
    for outcome in in_one if enough else known.timed:
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
                cost=msgspec.structs.replace(
                    found.costs.isolated_cost(candidate.id), fingerprint=menu.keys.fingerprint
                ),
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
    ran = [by_id[part.candidate] for part in outcome.built.parts]
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
    rounds = tuple(one * factor for one in outcome.rounds_us if not math.isnan(one))
    low, high = outcome.spread_us or (outcome.measured_us, outcome.measured_us)
    return Cost(
        state="measured",
        median_us=us,
        low_us=low * factor,
        high_us=high * factor,
        count=len(rounds),
        repeats_us=rounds,
        max_rel_error=outcome.max_rel_error,
        threads=outcome.built.threads if outcome.built is not None else None,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
