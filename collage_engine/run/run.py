"""The run: a list of stages from the imported model to the exported artifact."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.budget import RunBudget
from collage_engine.control.run_control import RunControl
from collage_engine.machine.clocks import machine_state
from collage_engine.machine.processes import watched_memory
from collage_engine.records.counted import counted
from collage_engine.records.errors import ArtifactError
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Run
from collage_engine.records.results import RunUpdate
from collage_engine.records.settings import RunSettings
from collage_engine.run.run_document import (
    DocumentInputs,
    UnmeasuredInputs,
    run_document,
    unmeasured_document,
)
from collage_engine.run.stage import Facts, run_stages, take
from collage_engine.run.stages.accuracy import KeepTolerance
from collage_engine.run.stages.calibrate import Calibrate
from collage_engine.run.stages.compile_only import CompileOnly, ExportUnmeasured
from collage_engine.run.stages.confirm import Confirm
from collage_engine.run.stages.enumerate import Enumerate
from collage_engine.run.stages.export import Export, quiet_enough
from collage_engine.run.stages.measure import Measure
from collage_engine.run.stages.mixes import TryMixes
from collage_engine.run.stages.samples import DrawSamples
from collage_engine.run.stages.search import SearchCovers
from collage_engine.run.stages.tune import Tune
from collage_engine.run.stages.whole_models import TimeWholeModels

STAGES = (
    DrawSamples(),  # the reference's outputs, which placements are compared with
    TimeWholeModels(),  # each toolchain alone enters the race: from here on there is an answer
    TryMixes(),  # what groups of operators take inside the model, and the mixes that follow
    Measure(),  # isolated costs of the candidates that could matter
    Tune(),  # better kernels for those that tuning could bring into the best cover
    SearchCovers(),  # the covers with the least cost
    Calibrate(),  # costs within the model, and the best covers on these
    KeepTolerance(),  # the fastest covers within a promised tolerance
    Confirm(),  # these and all baselines enter the race, as far as there is time; it ends
    Export(),  # the winner as a folder that runs by itself
)
"""What follows the enumeration in a run on a device that is here.

Stages between the whole models and the list of contenders only improve the answer: each asks the
run's budget how long it may work, and ends early when its time is over or the user stops the run.
"""

UNMEASURED_STAGES = (CompileOnly(), ExportUnmeasured())
"""What follows the enumeration in a run on a device that is not here."""


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
        facts: Facts = {
            "budget": budget,
            "previous": previous,
            "open_model": _imported(open_model, control),
            "settings": settings,
            "pins": pins,
            "out": out,
            "run_id": run_id,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine_before": quiet_enough(machine_state(settings.target), settings),
        }
        facts = run_stages([Enumerate()], facts, control)
        if facts["menu"].unmeasurable is None:
            facts = run_stages(STAGES, facts, control)
            document = run_document(take(DocumentInputs, facts), control)
        else:
            facts = run_stages(UNMEASURED_STAGES, facts, control)
            document = unmeasured_document(take(UnmeasuredInputs, facts), control)
        update = RunUpdate(
            candidates=facts["data"].records(),
            without_candidates=facts["menu"].without_candidates,
            constants=dict(facts["data"].constants),
            run=document,
        )
        not_exported: ArtifactError | None = facts.get("not_exported")
        if not_exported is not None:
            control.emit(update)  # minutes of measuring are not lost for want of room on a disk
            raise not_exported
        return update


def _imported(open_model: Callable[[], OpenModel], control: RunControl) -> OpenModel:
    """Return the model, whose import counts among the run's stages whenever it was done."""
    with control.stage("import") as report:
        opened = open_model()
        report.detail = counted(opened.model.record.nodes, "operator")
    notice = opened.store.check()
    if notice:
        control.warn(notice)
    control.seconds["import"] = opened.import_s
    return opened
