"""The step that adds tuned kernels beside the untuned ones."""

from __future__ import annotations

from contextlib import closing

from collage_engine.records.answers import RunUpdate
from collage_engine.records.toolchain import TuneCounts
from collage_engine.run.task import RunState
from collage_engine.support.errors import Cancelled
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.timing.tuning import Tuning, sum_of, summary, tunable, worth_tuning
from collage_engine.timing.tuning_choice import with_tuned_pairs


def tune_kernels(state: RunState, measuring: Measuring) -> TuneCounts | None:
    """Tune kernels that could still change the answer, or take those that earlier runs found.

    Toolchains are tuned one after the other, with equal shares of the budget; what one leaves is
    the next one's.

    Args:
        state: What the run knows; it gets tuned candidates.
        measuring: Measures candidates.

    Returns:
        What was tuned; None: there was nothing.
    """
    control, race, settings = state.control, state.race, state.inputs.settings
    catalog, open_model = state.catalog, state.task.open_model
    if state.task.is_quick or not worth_tuning(open_model.store, catalog, settings):
        return None
    with control.stage("tune") as report:
        instances = [source.instance for source in catalog.sources]
        constants = with_tuned_pairs(state.inputs.constants, instances)
        state.inputs = state.inputs.with_constants(constants)
        counts, waiting = TuneCounts(), tunable(catalog)
        # This time is added to that of the race, which goes on so much longer.
        race.clock.ends_at += settings.tune_budget_s
        given_s = min(settings.tune_budget_s, race.clock.to_improve_s)
        part = control.within(race.clock.to_improve_s)
        for number, instance in enumerate(waiting):
            left = max(0.0, given_s - counts.seconds)
            share = left / (len(waiting) - number)
            tuning = Tuning(
                open_model, state.catalog, state.inputs, measuring, part, report, instance, share
            )
            try:
                with closing(tuning):
                    tuning.run()
            except Cancelled:
                control.cut("tune")
                break
            state.catalog, state.inputs = tuning.catalog, tuning.inputs
            counts = sum_of(counts, tuning.counts)
        race.clock.ends_at -= max(0.0, settings.tune_budget_s - counts.seconds)
        report.detail = summary(counts)
        update = RunUpdate(
            candidates=state.inputs.records(), constants=dict(state.inputs.constants)
        )
        control.emit(update)
    return counts
