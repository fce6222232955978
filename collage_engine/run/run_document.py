"""The document of a run: what ``collage place --json`` prints and sessions keep.

It also says how much memory the winner of the race takes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from collage_engine.candidates.catalog import CandidateCatalog
from collage_engine.machine.run_control import RunControl
from collage_engine.planning.deployment_limits import size_warning
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.planning.search_problem import pin_verdicts
from collage_engine.records.pin import LimitVerdict, PinVerdict
from collage_engine.records.placement import (
    CandidateCounts,
    MemorySeen,
    MemoryUse,
    Run,
    Unmeasured,
)
from collage_engine.records.precision import Accuracy, Rounding
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import TuneCounts
from collage_engine.run.chosen_placement import runners_up, with_profiled_costs
from collage_engine.run.provisional import baseline_of, begun_document
from collage_engine.run.stages.compile_only import UNMEASURED, CompileOnlyResult
from collage_engine.run.stages.confirm import ConfirmResult
from collage_engine.run.stages.export import ExportResult
from collage_engine.run.stages.samples import RunSamples, tolerance_warnings
from collage_engine.run.task import RunTask
from collage_engine.search.problem import Answer
from collage_engine.support.text import counted
from collage_engine.timing.tuning import tables_of
from collage_engine.trials.contender import COLLAGE, ContenderResult, finite
from collage_engine.trials.standings import RaceResult
from collage_engine.wording.amounts import time_text
from collage_engine.wording.figures import busy_warnings


def run_document(
    task: RunTask,
    catalog: CandidateCatalog,
    inputs: SearchInputs,
    samples: RunSamples,
    confirmed: ConfirmResult,
    exported: ExportResult,
    control: RunControl,
    *,
    answer: Answer,
    counts: CandidateCounts,
    tuning: TuneCounts | None,
    rounding: Rounding,
) -> Run:
    """Return the document of a measured run.

    Args:
        task: What the run was asked for.
        catalog: The toolchains.
        inputs: All candidates with their costs.
        samples: The true outputs.
        confirmed: How the race ended.
        exported: Where the artifact lies.
        control: Knows the seconds of the stages, the warnings, and what was cut short.
        answer: What the search said last.
        counts: How many candidates were measured.
        tuning: What was tuned; None: there was nothing to tune.
        rounding: What was found out of rounding single products.
    """
    race_result = confirmed.race_result
    settings, winner = inputs.settings, race_result.winner
    record = task.open_model.model.record
    memory = memory_use(winner, record.weights_bytes, exported.artifact, control.peak_memory())
    profiled = with_profiled_costs(inputs, race_result)
    costs = {c.id: profiled.costs.cost(c.id) for c in inputs.candidates}
    unmeasured = _unmeasured(inputs, race_result, control)
    return msgspec.structs.replace(
        begun_document(task, catalog, inputs.candidates, control),
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
        artifact=exported.artifact,
        lower_bound_us=answer.lower_bound_us,
        memory=memory,
        unscheduled=winner.built.unscheduled if winner.built is not None else None,
        tolerance=samples.run_tolerance,
        samples=1 + len(samples.further_samples),
        not_finite=dict(samples.not_finite),
        machine=[task.machine_before, exported.machine_after],
        warnings=[
            *tolerance_warnings(samples.run_tolerance, race_result.results),
            *control.warnings,
            *_unscheduled_warning(winner),
            *(winner.built.notes if winner.built is not None else ()),
            *size_warning(memory.artifact_bytes, settings),
            *busy_warnings([task.machine_before, exported.machine_after]),
        ],
        limits=[*answer.limit_verdicts, *memory_verdict(settings, race_result)],
        accuracy=accuracy_of(
            settings,
            samples.run_tolerance.value,
            1 + len(samples.further_samples),
            rounding,
            race_result,
        ),
        costs={name: cost for name, cost in costs.items() if cost.state != "unknown"},
        rivals=runners_up(inputs, race_result),
        tuning=tuning,
        tied=tied_with_winner(race_result),
        tables=tables_of(confirmed.chosen),
        ended=_ended(control),
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


def _ended(control: RunControl) -> Literal["finished", "budget", "stopped"]:
    """Return why the run ended."""
    if control.keep.is_set():
        return "stopped"
    return "budget" if control.cut_short else "finished"


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


def unmeasured_document(
    task: RunTask,
    catalog: CandidateCatalog,
    compiled: CompileOnlyResult,
    artifact: str | None,
    control: RunControl,
) -> Run:
    """Return the document of a run whose device is not here.

    Args:
        task: What the run was asked for.
        catalog: The toolchains and candidates.
        compiled: What was built.
        artifact: The artifact's folder; None: there is none.
        control: Knows the seconds of the stages, and the warnings.
    """
    return msgspec.structs.replace(
        begun_document(task, catalog, catalog.candidates, control),
        target=catalog.target_text,
        placement=compiled.chosen,
        winner=UNMEASURED,
        pins=[PinVerdict(pin=pin.written, state="honoured") for pin in task.pins],
        artifact=artifact,
        device=f"none: {catalog.unmeasurable or ''}",
        note=compiled.built.name,
    )


def tied_with_winner(race_result: RaceResult) -> list[str]:
    """Return the contenders whose times cannot be told from the winner's, by name.

    They are baselines and, where a baseline wins, covers of several toolchains, as ``collage``.
    """
    kinds = {result.contender.name: result.contender.kind for result in race_result.results}
    names = [COLLAGE if kinds.get(name) == COLLAGE else name for name in race_result.tied]
    if race_result.named == COLLAGE:
        names = [name for name in names if name != COLLAGE]
    return list(dict.fromkeys(names))


def memory_use(
    outcome: ContenderResult,
    weights_bytes: int,
    artifact: str | None,
    place_peak_bytes: int | None = None,
) -> MemoryUse:
    """Return the memory that a placement's process took, and the sizes of its files.

    Args:
        outcome: The placement, as it took part in the race.
        weights_bytes: Size of the model's own weights.
        artifact: The folder it was exported to; None: it was not.
        place_peak_bytes: The largest memory of the whole run; None: nobody watched it.
    """
    built = outcome.built
    stored: dict[str, int] = {}
    if built is not None:
        for part, size in zip(built.parts, built.part_weights, strict=False):
            name = part.instance.toolchain
            stored[name] = stored.get(name, 0) + size
    return MemoryUse(
        seen=outcome.memory or MemorySeen(),
        weights_bytes=weights_bytes,
        stored=stored,
        repeated_bytes=built.repeated_bytes if built is not None else 0,
        artifact_bytes=None if artifact is None else _folder_bytes(Path(artifact)),
        library_bytes=sum(Path(library.file).stat().st_size for library in built.libraries)
        if built is not None
        else 0,
        place_peak_bytes=place_peak_bytes,
    )


def _folder_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder and below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


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
    winner = race_result.winner
    barred = [
        result.measured_us
        for result in race_result.results
        if result.over_memory and result.measured_us is not None
    ]
    price = None
    if winner.measured_us is not None:
        price = max(0.0, winner.measured_us - min(barred, default=winner.measured_us))
    taken = winner.memory.running_bytes if winner.memory is not None else None
    text = f"at most {most / 1e6:.4g} MB of memory while running"
    reason = None
    if taken is not None:
        template = "with {megabytes} MB" if price is None else "with {megabytes} MB, price {price}"
        reason = template.format(megabytes=f"{taken / 1e6:.4g}", price=time_text(price or 0.0))
    return [
        LimitVerdict(
            constraint="max_memory",
            text=text,
            state="pending" if taken is None else "honoured",
            price_us=price,
            reason=reason,
        )
    ]


def accuracy_of(
    settings: RunSettings,
    tolerance: float,
    samples: int,
    rounding: Rounding,
    race_result: RaceResult,
) -> Accuracy | None:
    """Return the record of what the run promised on accuracy, and how it was kept.

    Args:
        settings: The run's settings.
        tolerance: The bound on ``max|y-r| / max|r|`` of the outputs.
        samples: On how many samples it was checked.
        rounding: What was found out of rounding single products.
        race_result: The times and errors of the contenders.

    Returns:
        The record; None for a run that made no promise.
    """
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
        tolerance=tolerance,
        samples=samples,
        max_rel_error=finite(race_result.winner.max_rel_error),
        float32_us=None if best is None else best.measured_us,
        float32_max_rel_error=None if best is None else finite(best.max_rel_error),
        products=rounding.products,
        ranked_for=rounding.ranked_for,
        tried=rounding.tried,
    )
