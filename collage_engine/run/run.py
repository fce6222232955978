"""The run, from the imported model to the exported artifact, as one function."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from collage_engine.candidates.menu import Menu, threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.budget import RunBudget
from collage_engine.control.run_control import RunControl
from collage_engine.machine.clocks import machine_state
from collage_engine.machine.processes import watched_memory
from collage_engine.records.answers import RunUpdate
from collage_engine.records.counted import counted
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.run.chosen_placement import with_profiled_costs
from collage_engine.run.problem_data import ProblemData
from collage_engine.run.run_document import DocumentInputs, run_document, unmeasured_document
from collage_engine.run.stages.calibrate import calibrate_costs
from collage_engine.run.stages.compile_only import compile_unmeasured, export_unmeasured
from collage_engine.run.stages.confirm import confirm_winner
from collage_engine.run.stages.enumerate import enumerate_candidates
from collage_engine.run.stages.export import export_winner, quiet_enough
from collage_engine.run.stages.measure import measure_candidates
from collage_engine.run.stages.mixes import try_mixes
from collage_engine.run.stages.precision import choose_precision, seconds_for_precision
from collage_engine.run.stages.samples import RunSamples, draw_samples
from collage_engine.run.stages.search import search_covers
from collage_engine.run.stages.threads import choose_threads
from collage_engine.run.stages.tune import tune_kernels
from collage_engine.run.stages.whole_models import enter_whole_models, race_whole_models
from collage_engine.run.task import RunTask
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.toolchains.runtime.builder import compiler_command


def run(
    open_model: Callable[[], OpenModel],
    *,
    control: RunControl,
    settings: RunSettings,
    pins: tuple[Pin, ...],
    out: str | None,
    run_id: str,
    previous: Run | None = None,
    spent_s: float = 0.0,
) -> RunUpdate:
    """Do everything that ``collage place`` does.

    Args:
        open_model: Imports the model, or returns it if it is open already.
        control: Takes progress, candidates and costs as they become known; cancels the run, or has
            it end soon and keep the best placement that it has.
        settings: The options of the run.
        pins: What the user demands of the placement.
        out: Folder of the artifact; None: nothing is exported.
        run_id: The run's name in its session.
        previous: The run before, which a quick confirmation compares with.
        spent_s: Seconds of the budget that were spent before, such as on opening the model.

    Returns:
        The candidates with their costs, and the run's document.

    Raises:
        InfeasibleError: No placement satisfies the pins and limits.
        Cancelled: The user stopped the run; what was measured is kept.
        MeasureError: The machine is busy, and the settings are strict.
        ArtifactError: The artifact cannot be written; the complete run was emitted before.
        CollageError: Whatever else stopped it.
    """
    with watched_memory() as control.peak_memory:
        budget = RunBudget.of(settings, spent_s)
        control.ends_at = budget.ends_at
        task = RunTask(
            open_model=_imported(open_model, control),
            settings=settings,
            pins=pins,
            out=out,
            run_id=run_id,
            previous=previous,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            machine_before=quiet_enough(machine_state(compiler_command()), settings),
        )
        if previous is not None and previous.threads_us and not settings.threads:
            fewer = msgspec.structs.replace(settings, threads=previous.threads)
            task = replace(task, settings=fewer, threads_us=previous.threads_us)
        menu, data = enumerate_candidates(task, budget, control)
        if menu.unmeasurable is None:
            # The true outputs, which placements are compared with.
            samples = draw_samples(task, control)
            return _measured(task, menu, data, samples, budget, control)
        compiled = compile_unmeasured(task, menu, data, control)
        artifact = export_unmeasured(task, menu, compiled, control)
        document = unmeasured_document(task, menu, compiled, artifact, control)
        return _update(menu, compiled.data, document)


def _measured(
    task: RunTask,
    menu: Menu,
    data: ProblemData,
    samples: RunSamples,
    budget: RunBudget,
    control: RunControl,
) -> RunUpdate:
    """Race the whole models, improve the answer until the time is over, and export the winner.

    Args:
        task: What the run was asked for.
        menu: The toolchains and candidates.
        data: The candidates with the costs that the store holds.
        samples: The true outputs.
        budget: The run's time.
        control: Takes progress, candidates and costs as they become known.
    """
    # Each toolchain alone enters the race: from here on there is an answer.
    reserved_s = seconds_for_precision(task, menu)
    raced = race_whole_models(task, menu, data, samples, budget, control, reserved_s=reserved_s)
    race, most = raced.race, threads_of(task.settings)
    task = choose_threads(task, menu, samples, race, raced.budget, control)
    if threads_of(task.settings) < most:  # the model is faster on fewer threads: all over again
        race.close()
        menu, data = enumerate_candidates(task, budget, control)
        return _measured(task, menu, data, samples, budget, control)
    # Which products may be rounded within the tolerance, where reduced precision is admitted.
    chosen = choose_precision(task, menu, raced, samples, control)
    waiting = [*chosen.unreached, *(one for one in raced.waiting if not chosen.skips(one))]
    raced = enter_whole_models(task, menu, raced, waiting, control, "rounded-models")
    race.end_builders()  # which built all whole models
    data = chosen.admitted(task.open_model.model, raced)
    # What groups of operators take inside the model, and the mixes that follow from that.
    mixed = try_mixes(task, menu, data, samples.tolerance, race, raced.budget, control)
    data, budget = mixed.data, mixed.budget
    with Measuring(
        task.open_model, menu, task.settings, samples.model_inputs, control.within(math.inf)
    ) as measuring:
        # Isolated costs of what could influence the placement.
        data = measure_candidates(
            task, menu, data, measuring, mixed.profiled_covers, budget, control
        )
        # Better kernels for those that tuning could bring into the best cover.
        tuned = tune_kernels(task, menu, data, measuring, budget, control)
        menu, data = tuned.menu, tuned.data
        searched = search_covers(menu, data, race, control)  # the covers with the least cost
        # Covers enter the race; what their partitions take there corrects the costs.
        data, searched = calibrate_costs(
            task, menu, data, searched, samples.tolerance, race, budget, control
        )
    # These and all baselines enter the race, as far as there is time; it ends.
    placements = searched.placements
    confirmed = confirm_winner(task, menu, data, placements, samples, race, control)
    exported = export_winner(task, menu, samples, confirmed, control)
    document = run_document(
        DocumentInputs(
            task=task,
            menu=menu,
            data=data,
            counts=measuring.counts,
            tuning=tuned.tuning,
            answer=searched.answer,
            placements=placements,
            samples=samples,
            rounding=chosen.rounding,
            confirmed=confirmed,
            exported=exported,
        ),
        control,
    )
    update = _update(menu, with_profiled_costs(data, confirmed.race_result), document)
    if exported.not_exported is not None:
        control.emit(update)  # minutes of measuring are not lost for want of room on a disk
        raise exported.not_exported
    return update


def _update(menu: Menu, data: ProblemData, document: Run) -> RunUpdate:
    """Return the candidates with their costs, and the run's document."""
    return RunUpdate(
        candidates=data.records(),
        without_candidates={name: dict(why) for name, why in menu.without_candidates.items()},
        constants=dict(data.constants),
        run=document,
    )


def _imported(open_model: Callable[[], OpenModel], control: RunControl) -> OpenModel:
    """Return the model, whose import counts among the run's stages whenever it was done."""
    with control.stage("import") as report:
        opened = open_model()
        report.detail = counted(opened.model.record.nodes, "node")
    notice = opened.store.check()
    if notice:
        control.warn(notice)
    control.seconds["import"] = opened.import_s
    return opened
