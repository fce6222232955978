"""The whole run: import, enumerate, measure, search, look inside, build and confirm, export."""

from __future__ import annotations

from collections.abc import Callable

from collage_engine.candidates.inputs import representative_inputs
from collage_engine.candidates.open_model import Workspace
from collage_engine.control.run_control import RunControl
from collage_engine.lowering.reference import original_outputs
from collage_engine.machine.device import busy
from collage_engine.records.counted import counted
from collage_engine.records.pin import Pin
from collage_engine.records.results import RunOutcome
from collage_engine.records.settings import RunSettings
from collage_engine.run.context import RunState
from collage_engine.run.run_document import Findings
from collage_engine.run.stages.accuracy import keep_tolerance
from collage_engine.run.stages.calibrate import settle_in_place
from collage_engine.run.stages.compile_only import compile_only
from collage_engine.run.stages.confirm import confirm_placements, export_winner
from collage_engine.run.stages.enumerate import enumerate_candidates
from collage_engine.run.stages.measure import measure_candidates
from collage_engine.run.stages.refine import refine_placements
from collage_engine.run.stages.search import search_covers
from collage_engine.run.stages.tune import tune_candidates
from collage_engine.search.sittings import BUSY_DRIFT
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.trials.contender import Sample
from collage_engine.trials.tolerance import accuracy_of, further_samples, is_promised


def run(
    open_workspace: Callable[[], Workspace],
    *,
    control: RunControl,
    settings: RunSettings,
    pins: tuple[Pin, ...],
    out: str | None,
    run_id: str,
) -> RunOutcome:
    """Do everything ``collage place`` does and return what was found out.

    Raises InfeasibleError when no placement satisfies the pins, Cancelled, or the CollageError
    that stopped it. Candidates and costs are handed to ``control.emit`` as they become known.
    """
    with control.stage("import") as report:
        workspace = open_workspace()
        report.detail = counted(workspace.model.record.nodes, "operator")
    # Opened before the run or in it: what reading the model took is told either way.
    control.seconds["import"] = workspace.import_s
    return _go_through(RunState(workspace, control, settings, pins, out, run_id))


def _go_through(state: RunState) -> RunOutcome:
    """The stages after the import, in their order."""
    menu = enumerate_candidates(state)
    if menu.unmeasurable is not None:
        return compile_only(
            state.workspace,
            menu,
            state.control,
            state.settings,
            state.pins,
            out=state.out,
            run_id=state.run_id,
            started_at=state.started_at,
        )
    noisy = busy()
    if noisy:
        state.drift = BUSY_DRIFT
        state.control.warn(noisy)
    model, settings = state.model, state.settings
    inputs = representative_inputs(model, settings)
    kept = None
    with Measuring(state.workspace, menu, settings, inputs, state.control) as measuring:
        measure_candidates(state, menu, measuring)
        menu = tune_candidates(state, menu, measuring)
        answer, placements = search_covers(state, menu)
        sample = Sample(inputs, original_outputs(model, inputs))
        if settings.in_place:
            answer, placements = settle_in_place(state, menu, (answer, placements), sample)
        state.further = further_samples(model, settings)
        if is_promised(settings):
            kept, placements = keep_tolerance(state, placements, sample, measuring)
    if settings.refine_budget_s > 0:
        placements = refine_placements(state, placements, sample)
    confirmation = confirm_placements(state, menu, placements, sample)
    findings = Findings(
        run_id=state.run_id,
        started_at=state.started_at,
        workspace=state.workspace,
        menu=menu,
        settings=settings,
        pins=state.pins,
        records=state.records,
        constants=state.constants,
        counts=measuring.counts,
        answer=answer,
        placements=placements,
        confirmation=confirmation,
        warnings=state.control.warnings,
        tuning=state.tuning,
        accuracy=accuracy_of(
            settings,
            state.tolerance,
            1 + len(state.further),
            kept,
            confirmation,
            {record.id: record.instance for record in state.records},
        ),
    )
    chosen = findings.exported()
    artifact = export_winner(state, menu, confirmation, chosen, sample)
    return RunOutcome(
        candidates=state.records,
        not_offered=menu.not_offered,
        constants=state.constants,
        run=findings.document(chosen, state.control.total_seconds(), artifact),
    )
