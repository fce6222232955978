"""The stage that offers tuned kernels beside the untuned ones."""

from __future__ import annotations

from contextlib import closing

import msgspec

from collage_engine.candidates.open_model import Menu
from collage_engine.records.results import RunOutcome
from collage_engine.records.tuning import TuneCounts
from collage_engine.run.context import RunState
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.tuning.choice import with_tuned_pairs
from collage_engine.tuning.tuning import Tuning, together, told, tunable, worth_tuning


def tune_candidates(state: RunState, menu: Menu, measuring: Measuring) -> Menu:
    """The menu with tuned kernels, found now or by earlier runs; the same where there are none.

    Where a run admits a lower precision, instances of several are tuned, one after the other, with
    equal shares of the budget; what one leaves is the next one's.
    """
    if not worth_tuning(state.workspace, menu, state.settings):
        return menu
    with state.control.stage("tune") as report:
        instances = [offer.instance for offer in menu.offers]
        state.constants = with_tuned_pairs(state.constants, instances)
        counts, waiting = TuneCounts(), tunable(menu)
        for number, instance in enumerate(waiting):
            left = max(0.0, state.settings.tune_budget_s - counts.seconds)
            settings = msgspec.structs.replace(
                state.settings, tune_budget_s=left / (len(waiting) - number)
            )
            tuning = Tuning(
                state.workspace,
                menu,
                settings,
                measuring,
                report,
                state.problem,
                state.control,
                instance,
            )
            with closing(tuning):
                menu, state.records = tuning.run(state.records)
            counts = together(counts, tuning.counts)
        state.tuning = counts
        report.detail = told(counts)
        state.control.emit(RunOutcome(candidates=state.records, constants=state.constants))
    return menu
