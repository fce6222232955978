"""The stage that corrects costs by what partitions take within a model, and searches again."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.errors import InfeasibleError
from collage_engine.run.stages.search import find_covers
from collage_engine.trials.calibration import (
    CalibrationInput,
    CalibrationSettings,
    CandidateIds,
    Found,
    calibrate,
    is_worthwhile,
)
from collage_engine.trials.contender import Sample
from collage_engine.trials.placement_process import TrialModel
from collage_engine.trials.proposals import Trial, run_proposals
from collage_engine.trials.runner import TrialRunner

if TYPE_CHECKING:
    from collage_engine.candidates.open_model import Menu
    from collage_engine.run.context import RunState


def calibrate_costs(state: RunState, menu: Menu, found: Found, sample: Sample) -> Found:
    """The search's answer and covers on costs as they are within the model.

    ``state.records`` hold such costs afterwards. Where no cover could be run, all stays as it is.
    """
    if not is_worthwhile(found, state.records):
        return found
    if menu.target.kind != "cpu":
        # The VM's clock sees calls being issued, and one graph for all of them. On a device
        # candidates are timed as they run in the model: in a graph, their weights from memory.
        return found
    settings = CalibrationSettings()
    by_id = state.by_id()
    folder = Path(tempfile.mkdtemp(prefix="in-place-", dir=state.workspace.folder))
    runner = TrialRunner(
        TrialModel.of(state.model),
        [sample],
        state.tolerance,
        folder,
        cancelled=state.control.cancelled,
    )

    def run(cover: CandidateIds) -> Trial:
        state.control.check()
        parts = [by_id[name] for name in cover]
        return runner.run(settings.proposal(parts, state.tolerance))

    def search(records: list[CandidateRecord]) -> Found | None:
        before, state.records = state.records, records
        try:
            return find_covers(state, menu)
        except InfeasibleError as error:
            state.records = before
            state.control.log(f"no search on the costs within the model: {error}")
            return None

    try:
        with state.control.stage("in-place") as report, runner:
            given = CalibrationInput(
                graph=state.model.graph,
                records=state.records,
                found=found,
                search=search,
                problem=state.problem,
                percentile=state.settings.percentile,
                seconds=settings.seconds(state.settings.budget_s),
                on_cover=report.progress,
                log=state.control.log,
            )
            calibrated = run_proposals(calibrate(given, settings), run)
            report.detail = calibrated.detail
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    state.records = calibrated.records
    return calibrated.answer, calibrated.placements
