"""Does a whole run, from the imported model to the exported artifact."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from collage_engine.candidates.catalog import CandidateCatalog, threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.machine.device import machine_state
from collage_engine.machine.processes import watched_memory
from collage_engine.machine.run_control import RunControl
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.answers import RunUpdate
from collage_engine.records.placement import MachineState, Run
from collage_engine.records.protocol import Job, RunStart
from collage_engine.records.settings import RunSettings
from collage_engine.run.export import write
from collage_engine.run.run_document import run_document, with_profiled_costs
from collage_engine.run.stages.compile_only import compile_unmeasured
from collage_engine.run.stages.confirm import confirm_winner
from collage_engine.run.stages.enumerate import enumerate_candidates
from collage_engine.run.stages.measure import measure_candidates, tune_kernels
from collage_engine.run.stages.precision import choose_precision, seconds_for_precision
from collage_engine.run.stages.samples import draw_samples
from collage_engine.run.stages.search import search_covers
from collage_engine.run.stages.threads import choose_threads
from collage_engine.run.stages.whole_models import (
    enter_whole_models,
    open_race,
    whole_models,
)
from collage_engine.run.task import RunState, RunTask
from collage_engine.support.errors import ArtifactError, MeasureError
from collage_engine.support.text import counted
from collage_engine.support.time_limits import LEAST_S
from collage_engine.timing.measurer import Measuring
from collage_engine.trials.calibration import calibrate_costs
from collage_engine.trials.mixes import try_mixes
from collage_engine.trials.placement_process import ONE_LOADED_FROM_BYTES, early_builder


def run(open_model: Callable[[], OpenModel], job: Job[RunStart], control: RunControl) -> RunUpdate:
    """Do everything that ``collage place`` does.

    Args:
        open_model: Imports the model, or returns it if it is open already.
        job: What is asked for.
        control: Takes progress, candidates and costs as they become known; cancels the run, or has
            it end soon and keep the best placement that it has.

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
        request, settings = job.request, job.request.settings
        previous = next(iter(job.runs), None)
        seconds = settings.budget_s + settings.tune_budget_s - request.spent_s
        control.ends_at = time.monotonic() + seconds
        task = RunTask(
            open_model=_imported(open_model, control),
            settings=settings,
            pins=job.pins,
            out=job.out,
            run_id=request.run,
            previous=previous,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            machine_before=require_quiet_machine(machine_state(), settings),
        )
        if previous is not None and previous.threads_us and not settings.threads:
            fewer = msgspec.structs.replace(settings, threads=previous.threads)
            task = replace(task, settings=fewer, threads_us=previous.threads_us)
        record = task.open_model.model.record
        if record.weights_bytes < ONE_LOADED_FROM_BYTES:
            builder = control.open(early_builder(record, control.cancelled))
            task = replace(task, builder=builder)
        catalog, inputs = enumerate_candidates(task, control, begins=True)
        # The true outputs, which placements are compared with.
        state = RunState(task, control, catalog, inputs, draw_samples(task, control))
        if catalog.unmeasurable is None:
            _first_answer(state)
            _join(state)
            return _improved(state)
        return _update(catalog, *compile_unmeasured(state))


def _first_answer(state: RunState) -> None:
    """Race each toolchain alone; where fewer threads are clearly faster, once more on so many."""
    _race_whole_models(state)
    before, state.task = state.task, choose_threads(state)
    if threads_of(state.task.settings) != threads_of(before.settings):
        state.race.bench.close()
        state.catalog, state.inputs = enumerate_candidates(state.task, state.control)
        _race_whole_models(state)


def _join(state: RunState) -> None:
    """Have the toolchains join that were made ready beside the first answer, if there are any."""
    if state.catalog.not_ready:
        state.catalog, state.inputs = enumerate_candidates(state.task, state.control)
        early, state.waiting = whole_models(state, has_precision=bool(state.waiting))
        state.inputs = enter_whole_models(state, early, "whole-models")


def _race_whole_models(state: RunState) -> None:
    """Open the race and have each toolchain alone enter it: from here on there is an answer."""
    state.race = open_race(state)
    reserved_s = seconds_for_precision(state)
    early, state.waiting = whole_models(state, has_precision=reserved_s > 0)
    state.inputs = enter_whole_models(state, early, "whole-models", reserved_s=reserved_s)


def _improved(state: RunState) -> RunUpdate:
    """Improve a first answer until the time is over or nothing helps, and export the winner."""
    task, control, race, model = state.task, state.control, state.race, state.task.open_model.model
    # Which products may be rounded within the tolerance, where reduced precision is admitted.
    chosen = choose_precision(state)
    waiting = [
        *chosen.unreached,
        *(contender for contender in state.waiting if not chosen.skips(contender)),
    ]
    state.inputs = enter_whole_models(state, waiting, "rounded-models")
    state.inputs = chosen.admitted(model, state.inputs, race)
    # What groups of operators take inside the model, and the mixes that follow from that.
    if not task.is_quick and task.settings.objective == "latency":
        state.inputs = try_mixes(model, state.catalog, state.inputs, race, control)
    inputs, part = state.samples.sample.inputs, control.within(math.inf)
    with Measuring(task.open_model, state.catalog, task.settings, inputs, part) as measuring:
        # Isolated costs of what could influence the placement.
        state.inputs = measure_candidates(state, measuring)
        # Better kernels for those that tuning could bring into the best cover.
        state.catalog, state.inputs, tuning = tune_kernels(state, measuring)
        while True:
            # The covers with the least cost.
            searched = search_covers(state)
            calibrated, measured = state.inputs, measuring.counts.measured
            # Covers enter the race; what their partitions take there corrects the costs. On a
            # device the clock sees calls being issued; there candidates are timed as they run in
            # the model.
            on_cpu = state.catalog.target.kind == "cpu"
            if task.settings.in_place and on_cpu and not task.is_quick:
                graph = model.graph
                calibrated, searched = calibrate_costs(graph, state.inputs, searched, race, control)
            # Half of the time that is left then is for measuring more, and half for the covers that
            # follow, as long as either is worth beginning with.
            if "measure" not in control.cut_short or race.clock.to_improve_s < 2 * LEAST_S:
                break
            state.inputs = measure_candidates(state, measuring)
            if measuring.counts.measured == measured:
                break
        state.inputs = calibrated
    # These and all baselines enter the race, as far as there is time; it ends.
    confirmed = confirm_winner(state, searched.covers)
    after = require_quiet_machine(machine_state(), task.settings)
    module, artifact, not_exported = confirmed.race_result.winner.folder, None, None
    assert module is not None
    try:
        artifact = write(state, confirmed.chosen, module)
    except ArtifactError as error:
        not_exported = error
    document = run_document(
        state,
        confirmed,
        artifact=artifact,
        machine_after=after,
        answer=searched.answer,
        counts=measuring.counts,
        tuning=tuning,
        rounding=chosen.rounding,
    )
    costs = with_profiled_costs(state.inputs, confirmed.race_result)
    update = _update(state.catalog, costs, document)
    if not_exported is not None:
        control.emit(update)  # minutes of measuring are not lost for want of room on a disk
        raise not_exported
    return update


def _update(catalog: CandidateCatalog, inputs: SearchInputs, document: Run) -> RunUpdate:
    """Return the candidates with their costs, and the run's document."""
    return RunUpdate(
        candidates=inputs.records(),
        without_candidates={name: dict(why) for name, why in catalog.without_candidates.items()},
        constants=dict(inputs.constants),
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


def require_quiet_machine(state: MachineState, settings: RunSettings) -> MachineState:
    """Return the machine's state, unless others use it and the settings are strict.

    Raises:
        MeasureError: Figures that are taken now would not be exported.
    """
    if settings.strict and state.busy:
        raise MeasureError(
            f"{state.busy.partition(';')[0]}; with --strict no figures are exported that were "
            "taken beside others; nothing was written, what was measured is kept, run it again "
            "when the machine is quiet"
        )
    return state
