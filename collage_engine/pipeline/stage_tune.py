"""The stage that offers tuned kernels beside the untuned ones."""

from __future__ import annotations

from contextlib import closing

from collage_engine.pipeline.measuring import Measuring
from collage_engine.pipeline.results import RunOutcome
from collage_engine.pipeline.run_state import RunState
from collage_engine.pipeline.tuning import Tuning, told, worth_tuning
from collage_engine.pipeline.tuning_choice import with_tuned_pairs
from collage_engine.pipeline.workspace import Menu


def tune_candidates(state: RunState, menu: Menu, measuring: Measuring) -> Menu:
    """The menu with tuned kernels, found now or by earlier runs; the same where there are none."""
    if not worth_tuning(state.workspace, menu, state.settings):
        return menu
    with state.stages.stage("tune") as report:
        instances = [offer.instance for offer in menu.offers]
        state.constants = with_tuned_pairs(state.constants, instances)
        tuning = Tuning(
            state.workspace, menu, state.settings, measuring, report, state.problem, state.warn
        )
        with closing(tuning):
            menu, state.records = tuning.run(state.records)
        state.tuning = tuning.counts
        report.detail = told(tuning.counts)
        state.stages.emit(RunOutcome(candidates=state.records, constants=state.constants))
    return menu
