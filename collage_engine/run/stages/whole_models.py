"""The step that times whole models first, so that the run has an answer from then on."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from collage_engine.candidates.catalog import with_keys
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.candidate import Candidate, Cost
from collage_engine.records.event import Provisional, StageName
from collage_engine.records.format import CALL
from collage_engine.run.contenders import (
    before_precision,
    first_contenders,
    is_secondary,
    placement_under_pins,
)
from collage_engine.run.run_document import provisional_document
from collage_engine.run.task import RunState, RunTask
from collage_engine.store.store import Measurement
from collage_engine.support.errors import MeasureError
from collage_engine.support.text import counted
from collage_engine.support.time_limits import STEP_SHARE
from collage_engine.trials.contender import Contender, ContenderResult
from collage_engine.trials.objective import TrialSettings, trial_settings
from collage_engine.trials.placement_process import Module, TrialBench
from collage_engine.trials.race import Race
from collage_engine.wording.amounts import duration_text, time_text

EXPORT_S = 1.0
"""Seconds for writing an artifact beside its weights; measured: small models took less than 0.1 s
on a processor alone, and 1.9 s on an overloaded machine."""
EXPORTED_BYTES_PER_S = 150e6
"""Bytes of weights that are copied and hashed per second; measured: 100 MB of ResNet-50 took 0.1 to
0.5 s on a fast disk, and slower ones are to be kept in time, too."""


def open_race(state: RunState) -> Race:
    """Open the race, which every placement enters; each answer that is the best is announced.

    Its times are latencies. Where another objective decides in the end, it has half of the time:
    the other half is for the race in which everybody who is near is timed by that.
    """
    task, control = state.task, state.control
    ends_at = control.ends_at - task.settings.tune_budget_s - exporting_s(task)
    if task.settings.objective != "latency":
        ends_at -= STEP_SHARE * max(0.0, ends_at - time.monotonic())
    bench = control.open(bench_of(state, trial_settings(task.settings)))
    return Race(bench, ends_at, keep=control.keep, on_answer=partial(_announce, state))


def _announce(state: RunState) -> None:
    """Announce the race's leader, with what the run knows so far."""
    control = state.control
    late_s = time.monotonic() - control.ends_at
    if late_s > 0 and control.first_answer_s is None:
        control.warn(
            f"the budget was over before any placement had run: the run went on for "
            f"{duration_text(late_s)} until the first one, and ends with it; a larger --budget "
            "leaves time to try others"
        )
    control.emit(Provisional(run=provisional_document(state)))


def bench_of(
    state: RunState,
    settings: TrialSettings,
    modules: Mapping[tuple[object, ...], Module] | None = None,
) -> TrialBench:
    """Return what the trials of a run share; modules lie in the model's folder.

    Args:
        state: What the run knows by now.
        settings: How placements are built and timed.
        modules: What was built before, by the contender's key.
    """
    task, control = state.task, state.control
    folder = tempfile.mkdtemp(prefix="race-", dir=task.open_model.folder)
    return TrialBench(
        task.open_model.model,
        state.samples.all,
        state.samples.tolerance,
        Path(folder),
        settings=settings,
        cancelled=control.cancelled,
        faults=control.faults,
        left_s=control.left_s,
        modules=modules or {},
        builder=task.builder,
    )


def whole_models(
    state: RunState, *, has_precision: bool
) -> tuple[list[Contender], list[Contender]]:
    """Return the whole models that enter the race, most promising first, and those that wait.

    A quick confirmation compares with what the run before knew; then only its placement enters,
    changed as the pins ask. Where products are going to be chosen that may be rounded, only a first
    answer enters, and what that choice cannot stand in for; the others wait.

    Args:
        state: What the run knows by now.
        has_precision: Whether products are going to be chosen that may be rounded.
    """
    if state.task.is_quick and state.task.previous is not None:
        return placement_under_pins(state), []
    contenders = first_contenders(state)
    early = before_precision(contenders, state.catalog) if has_precision else contenders
    return early, [contender for contender in contenders if contender not in early]


def enter_whole_models(
    state: RunState, contenders: Sequence[Contender], stage: StageName, *, reserved_s: float = 0.0
) -> SearchInputs:
    """Have whole models enter the race, as far as there is time, and keep what they took.

    Args:
        state: What the run knows by now.
        contenders: The whole models, the most promising first.
        stage: What this is called in the progress and in documents.
        reserved_s: Seconds that the stage after this one has to itself.

    Returns:
        The inputs with the costs of the partitions that were tried, where none were known.

    Raises:
        Cancelled: The user stopped the run.
    """
    race, control = state.race, state.control
    if contenders:
        with control.stage(stage) as report:
            now, left_s = time.monotonic(), race.clock.left_s - reserved_s
            # Each toolchain alone may take all of it: what wins is mostly decided by them.
            for secondary, share in ((False, 1.0), (True, STEP_SHARE)):
                some = [
                    contender for contender in contenders if is_secondary(contender) == secondary
                ]
                race.enter(some, ends_at=now + share * left_s, on_progress=report.progress)
            results = race.standings.results()
            report.detail = _detail(results, race)
            if not all(result.reached for result in results):
                control.cut(stage)
    inputs = state.inputs
    if race.standings.call_us is not None:
        inputs = inputs.with_constants({CALL: race.standings.call_us})
    return _with_trial_costs(state, inputs)


def exporting_s(task: RunTask) -> float:
    """Return the seconds for writing the artifact."""
    return EXPORT_S + task.open_model.model.record.weights_bytes / EXPORTED_BYTES_PER_S


def timed(results: Sequence[ContenderResult]) -> list[ContenderResult]:
    """Return the results of those that ran with right numbers, the fastest first."""
    finished = [result for result in results if result.reason is None and result.measured_us]
    return sorted(finished, key=lambda one: one.measured_us or math.inf)


def _detail(results: Sequence[ContenderResult], race: Race) -> str:
    """Return the outcome in a phrase, such as ``6 placements tried, 5 of them on one …``."""
    reached = [result for result in results if result.reached]
    single = sum(result.contender.kind == "whole-model" for result in reached)
    tried = f"{counted(len(reached), 'placement')} tried, {single} of them on one toolchain"
    us = None if race.leader is None else race.standings.time_us(race.leader)
    if race.leader is None or us is None:
        return f"{tried}; none can be exported"
    return f"{tried}; the fastest is {race.leader.contender.title} with {time_text(us)}"


def _with_trial_costs(state: RunState, inputs: SearchInputs) -> SearchInputs:
    """Return the inputs with costs of partitions that were tried in whole models.

    A whole model takes in a search what it took in its trial, so that there is a cover with a cost
    from the first trial on; the store keeps it. Where the store knows a cost of it, the lower one
    is taken: what else the machine does only adds time (Chen and Revels, "Robust benchmarking in
    noisy environments", 2016), and a cost from a busy moment would otherwise stay for good. What
    several partitions took in one trial is taken only where no whole model in one partition may be
    exported, since these are no isolated costs.

    Args:
        state: What the run knows.
        inputs: The candidates with their costs so far.
    """
    model, catalog = state.task.open_model.model, state.catalog
    ran = timed(state.race.standings.results())
    in_one = [result for result in ran if len(result.contender.cover) == 1]
    costs: dict[str, Cost] = {}
    tried: dict[str, Candidate] = {}
    for outcome in in_one if any(one.contender.eligible for one in in_one) else ran:
        for part in outcome.contender.cover:
            us = outcome.partitions_us.get(part.id, 0.0)
            isolated, is_whole = inputs.costs.cost(part.id), outcome in in_one
            if us > 0 and part.id not in costs and replaces(us, isolated, is_whole):
                costs[part.id] = _cost(outcome, us, is_whole)
                tried[part.id] = inputs.by_id.get(part.id, part)
    new = with_keys(model, catalog.keys, (c for c in tried.values() if not c.key))
    merged = {**tried, **{c.id: c for c in new}}
    whole = {one.contender.cover[0].id for one in in_one}
    _keep(state, [c for c in merged.values() if c.id in whole], costs)
    added = [c for c in merged.values() if c.id not in inputs.by_id]
    return inputs.with_candidates([*inputs.candidates, *added], inputs.costs.with_isolated(costs))


def replaces(us: float, known: Cost, is_whole: bool) -> bool:
    """Return whether a trial's time in µs replaces what is known of the cost.

    Args:
        us: What the partition took in the trial.
        known: The cost so far.
        is_whole: Whether the partition was the whole model, so that both are times of the same
            work.
    """
    known_us = known.median_us
    return known.state == "unknown" or (is_whole and known_us is not None and us < known_us)


def _cost(outcome: ContenderResult, us: float, is_whole: bool) -> Cost:
    """Return the cost of a partition that took some microseconds in a trial."""
    low, high = (outcome.spread_us if is_whole else None) or (None, None)
    return Cost(
        state="measured",
        median_us=us,
        low_us=low,
        high_us=high,
        count=len(outcome.rounds_us),
        max_rel_error=outcome.max_rel_error,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _keep(state: RunState, whole: Sequence[Candidate], costs: dict[str, Cost]) -> None:
    """Store what whole models took, so that a later run rests on the same costs."""
    open_model, catalog = state.task.open_model, state.catalog
    # Measuring reports a store that cannot be written; the answer stands.
    with contextlib.suppress(MeasureError):
        open_model.store.put_many(
            Measurement(
                key=c.key,
                cost=costs[c.id],
                label=c.label,
                instance=c.instance,
                device=catalog.device_text,
                versions={c.instance.toolchain: catalog.versions.get(c.instance.toolchain, "")},
                model=open_model.model.record.sha256,
            )
            for c in whole
        )
