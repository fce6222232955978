"""Documents of runs: what ``collage place --json`` prints and sessions keep.

Each states what its run was asked for and what came of it, also while the run still goes on: its
placements with the times of the race, and how much memory the winner takes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from collage_engine.candidates.catalog import nan_losses, threads_of
from collage_engine.machine.run_control import RunControl
from collage_engine.planning.deployment_limits import size_warning
from collage_engine.planning.search_inputs import RUNNERS_UP, SearchInputs, pin_verdicts
from collage_engine.records.candidate import Cost
from collage_engine.records.format import CALL
from collage_engine.records.pin import LimitVerdict, PinVerdict
from collage_engine.records.placement import (
    Baseline,
    CandidateCounts,
    MachineState,
    MemorySeen,
    MemoryUse,
    Placement,
    Run,
    Unmeasured,
)
from collage_engine.records.precision import Accuracy, Rounding
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import TuneCounts
from collage_engine.run.stages.samples import tolerance_warnings
from collage_engine.run.task import RunState, RunTask
from collage_engine.search.problem import Answer
from collage_engine.support.text import counted
from collage_engine.timing.tuning import tables_of
from collage_engine.trials.contender import COLLAGE, ContenderResult, finite
from collage_engine.trials.standings import RaceResult
from collage_engine.wording.amounts import time_text
from collage_engine.wording.figures import busy_warnings

UNMEASURED = "unmeasured"
"""The ``winner`` of a run in which nothing could be timed."""


@dataclass(frozen=True, kw_only=True)
class ConfirmResult:
    """How the race ended."""

    race_result: RaceResult
    chosen: Placement
    """The winner's placement, with its end-to-end times."""
    confirmed_how: Literal["full", "quick", "trial"]
    """See ``Run.confirmation``."""


def provisional_document(state: RunState) -> Run:
    """Return the run's document as far as it is known, with the race's leader."""
    race, inputs = state.race, state.inputs
    assert race.leader is not None
    race_result = race.standings.result(race.leader)
    best = race_result.winner
    return msgspec.structs.replace(
        begun_document(state),
        placement=timed_placement(inputs, best),
        baselines=[
            baseline_of(inputs, result)
            for result in race_result.results
            if result.contender.kind != COLLAGE and result.measured_us is not None
        ],
        winner=race_result.named,
        max_abs_error=best.max_abs_error,
        max_rel_error=best.max_rel_error,
        confirmation="trial",
        provisional=True,
    )


def baseline_of(inputs: SearchInputs, outcome: ContenderResult) -> Baseline:
    """Return the record of a baseline with its measured and its estimated time."""
    contender = outcome.contender
    assert contender.kind != COLLAGE
    return Baseline(
        name=contender.name,
        kind=contender.kind,
        measured_us=outcome.measured_us,
        spread_us=outcome.spread_us,
        estimated_us=inputs.placement(contender.cover).estimated_us if contender.cover else None,
        reason=outcome.reason,
        names=outcome.names,
        partitions=max(1, len(contender.cover)),
        reduced=contender.reduced,
        max_rel_error=finite(outcome.max_rel_error),
        barred=contender.barred,
        order=tuple(dict.fromkeys(part.instance.toolchain for part in contender.cover)),
        candidates=tuple(part.id for part in contender.cover),
        layers=outcome.layers,
    )


def begun_document(state: RunState) -> Run:
    """Return the document of a run that has no placement yet and has measured no candidate.

    The user's inputs are large and are left out.
    """
    task, control, catalog = state.task, state.control, state.catalog
    candidates = state.inputs.candidates
    record, settings = task.open_model.model.record, task.settings
    distinct = len({candidate.key for candidate in candidates})
    return Run(
        id=task.run_id,
        name=settings.name,
        model={
            "path": record.path,
            "sha256": record.sha256,
            "nodes": record.nodes,
            "folded": list(record.folded),
        },
        target=settings.target,
        threads=threads_of(settings),
        toolchains=list(catalog.states),
        candidates=CandidateCounts(enumerated=len(candidates), distinct=distinct, skipped=distinct),
        placement=None,
        baselines=[],
        winner="",
        seconds=control.total_seconds(),
        started_at=task.started_at,
        settings=msgspec.to_builtins(msgspec.structs.replace(task.asked, inputs_npz=None)),
        threads_us=dict(task.threads_us),
        device=catalog.device_text,
        warnings=list(control.warnings),
        first_answer_s=control.first_answer_s,
    )


def run_document(
    state: RunState,
    confirmed: ConfirmResult,
    *,
    artifact: str | None,
    machine_after: MachineState,
    answer: Answer,
    counts: CandidateCounts,
    tuning: TuneCounts | None,
    rounding: Rounding,
) -> Run:
    """Return the document of a measured run.

    Args:
        state: What the run knows.
        confirmed: How the race ended.
        artifact: The artifact's folder; None: there is none.
        machine_after: Clocks and load after the last measurement.
        answer: What the search said last.
        counts: How many candidates were measured.
        tuning: What was tuned; None: there was nothing to tune.
        rounding: What was found out of rounding single products.
    """
    task, control, inputs, samples = state.task, state.control, state.inputs, state.samples
    race_result = confirmed.race_result
    settings, winner = inputs.settings, race_result.winner
    memory = _memory_use(state, winner, artifact)
    profiled = with_profiled_costs(inputs, race_result)
    costs = {c.id: profiled.costs.cost(c.id) for c in inputs.candidates}
    unmeasured, bound_us = _unmeasured(inputs, race_result, control), answer.lower_bound_us
    return msgspec.structs.replace(
        begun_document(state),
        candidates=msgspec.structs.replace(
            counts, unreached=unmeasured.candidates if unmeasured is not None else 0
        ),
        placement=confirmed.chosen,
        baselines=[
            # What the winner alone was profiled for stands for its own estimate.
            baseline_of(
                profiled if result.contender.key == winner.contender.key else inputs, result
            )
            for result in race_result.results
            if result.contender.kind != COLLAGE
        ],
        winner=race_result.named,
        pins=pin_verdicts(inputs.pins, answer),
        max_abs_error=winner.max_abs_error,
        max_rel_error=winner.max_rel_error,
        artifact=artifact,
        lower_bound_us=None if bound_us is None else bound_us + inputs.constants.get(CALL, 0.0),
        memory=memory,
        unscheduled=winner.built.unscheduled if winner.built is not None else None,
        tolerance=samples.run_tolerance,
        samples=len(samples.all),
        not_finite=dict(samples.not_finite),
        machine=[task.machine_before, machine_after],
        warnings=[
            *tolerance_warnings(samples.run_tolerance, race_result.results),
            *control.warnings,
            *_unscheduled_warning(winner),
            *(winner.built.notes if winner.built is not None else ()),
            *size_warning(memory.artifact_bytes, settings),
            *busy_warnings([task.machine_before, machine_after]),
        ],
        limits=[*answer.limit_verdicts, *memory_verdict(settings, race_result)],
        accuracy=_accuracy(state, rounding, race_result),
        costs={name: cost for name, cost in costs.items() if cost.state != "unknown"},
        rivals=runners_up(inputs, race_result),
        tuning=tuning,
        tied=tied_with_winner(race_result),
        tables=tables_of(confirmed.chosen),
        ended="stopped" if control.keep.is_set() else "budget" if control.cut_short else "finished",
        unmeasured=unmeasured,
        confirmation=confirmed.confirmed_how,
        objective=settings.objective,
        streams=max(1, settings.streams),
    )


def _unscheduled_warning(winner: ContenderResult) -> list[str]:
    """Return a sentence on kernels of the winner that no rule could write, where there are any."""
    count = winner.built.unscheduled if winner.built is not None else 0
    if not count:
        return []
    return [
        (
            f"the exported placement runs {counted(count, 'kernel')} as TVM's plain loops, which "
            "are tens of times slower than scheduled kernels: none of our rules could write them"
        )
    ]


def _unmeasured(
    inputs: SearchInputs, race_result: RaceResult, control: RunControl
) -> Unmeasured | None:
    """Return what was left out for want of time; None where nothing was."""
    if not control.cut_short:
        return None
    distinct = {c.key for c in inputs.candidates}
    left: set[str] = set()
    if "measure" in control.cut_short:
        left = {c.key for c in inputs.candidates if not inputs.costs.known(c.id)}
    return Unmeasured(
        candidates=len(left),
        share=len(left) / max(1, len(distinct)),
        contenders=race_result.left_out,
        stages=tuple(control.cut_short),
    )


def unmeasured_document(state: RunState, chosen: Placement, note: str, artifact: str | None) -> Run:
    """Return the document of a run whose device is not here.

    Args:
        state: What the run knows.
        chosen: What was built.
        note: What it is called.
        artifact: The artifact's folder; None: there is none.
    """
    task, catalog = state.task, state.catalog
    return msgspec.structs.replace(
        begun_document(state),
        target=catalog.target_text,
        placement=chosen,
        winner=UNMEASURED,
        pins=[PinVerdict(pin=pin.written, state="honoured") for pin in task.pins],
        artifact=artifact,
        device=f"none: {catalog.unmeasurable or ''}",
        note=note,
    )


def tied_with_winner(race_result: RaceResult) -> list[str]:
    """Return the contenders whose times cannot be told from the winner's, by name.

    They are baselines and, where a baseline wins, covers of several toolchains, as ``collage``.
    """
    ours = {COLLAGE} if race_result.named == COLLAGE else set()
    return [name for name in dict.fromkeys(race_result.tied) if name not in ours]


def _memory_use(state: RunState, outcome: ContenderResult, artifact: str | None) -> MemoryUse:
    """Return the memory that a placement's process and the run took, and the sizes of its files.

    Args:
        state: What the run knows.
        outcome: The placement, as it took part in the race.
        artifact: The folder it was exported to; None: it was not.
    """
    use = MemoryUse(
        seen=outcome.memory or MemorySeen(),
        weights_bytes=state.task.open_model.model.record.weights_bytes,
        artifact_bytes=None
        if artifact is None
        else sum(path.stat().st_size for path in Path(artifact).rglob("*") if path.is_file()),
        place_peak_bytes=state.control.peak_memory(),
    )
    built = outcome.built
    if built is None:
        return use
    stored: Counter[str] = Counter()
    for part, size in zip(built.parts, built.part_weights, strict=False):
        stored[part.instance.toolchain] += size
    return msgspec.structs.replace(
        use,
        stored=dict(stored),
        repeated_bytes=built.repeated_bytes,
        library_bytes=sum(Path(library.file).stat().st_size for library in built.libraries),
    )


def memory_verdict(settings: RunSettings, race_result: RaceResult) -> list[LimitVerdict]:
    """Return the verdict on the limit on memory; an empty list where none was asked for.

    Its price is the winner's measured time less that of the fastest contender which only this limit
    keeps from winning, in microseconds.

    Args:
        settings: The run's settings, with the limit.
        race_result: The times and the memory of the contenders.
    """
    most = settings.max_memory_bytes
    if not most:
        return []
    winner, price = race_result.winner, None
    if winner.measured_us is not None:
        barred = (one.measured_us for one in race_result.results if one.over_memory)
        price = winner.measured_us - min([winner.measured_us, *filter(None, barred)])
    taken = winner.memory.running_bytes if winner.memory is not None else None
    with_price = "" if price is None else f", price {time_text(price)}"
    return [
        LimitVerdict(
            constraint="max_memory",
            text=f"at most {most / 1e6:.4g} MB of memory while running",
            state="pending" if taken is None else "honoured",
            price_us=price,
            reason=None if taken is None else f"with {taken / 1e6:.4g} MB{with_price}",
        )
    ]


def _accuracy(state: RunState, rounding: Rounding, race_result: RaceResult) -> Accuracy | None:
    """Return the record of what the run promised on accuracy, and how it was kept.

    Args:
        state: What the run knows.
        rounding: What was found out of rounding single products.
        race_result: The times and errors of the contenders.

    Returns:
        The record; None for a run that made no promise.
    """
    settings, samples = state.inputs.settings, state.samples
    if not settings.promises_accuracy:
        return None
    full = [
        result
        for result in race_result.results
        if not result.contender.reduced and result.measured_us is not None and result.reason is None
    ]
    best = min(full, key=lambda one: one.measured_us or 0.0, default=None)
    return Accuracy(
        precision=settings.precision,
        tolerance=samples.tolerance,
        samples=len(samples.all),
        max_rel_error=finite(race_result.winner.max_rel_error),
        float32_us=None if best is None else best.measured_us,
        float32_max_rel_error=None if best is None else finite(best.max_rel_error),
        **msgspec.structs.asdict(rounding),
    )


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
