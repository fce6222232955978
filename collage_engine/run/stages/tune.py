"""The step that adds tuned kernels beside the untuned ones."""

from __future__ import annotations

from collage_engine.candidates.catalog import CandidateCatalog
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.answers import RunUpdate
from collage_engine.records.toolchain import TuneCounts
from collage_engine.run.task import RunState
from collage_engine.support.errors import Cancelled
from collage_engine.timing.measurer import Measuring
from collage_engine.timing.tuning import Tuning, summary, tunable


def tune_kernels(
    state: RunState, measuring: Measuring
) -> tuple[CandidateCatalog, SearchInputs, TuneCounts | None]:
    """Tune kernels that could still change the answer, or take those that earlier runs found.

    Args:
        state: What the run knows.
        measuring: Measures candidates.

    Returns:
        The candidates, with tuned ones among them, and what was tuned; None: there was nothing.
    """
    control, race, open_model = state.control, state.race, state.task.open_model
    catalog, inputs, settings = state.catalog, state.inputs, state.inputs.settings
    instance = tunable(open_model.store, catalog, settings)
    if state.task.is_quick or instance is None:
        return catalog, inputs, None
    counts = TuneCounts()
    with control.stage("tune") as report:
        # This time is added to that of the race, which goes on so much longer.
        race.clock.ends_at += settings.tune_budget_s
        given_s = min(settings.tune_budget_s, race.clock.to_improve_s)
        part = control.within(race.clock.to_improve_s)
        tuning = Tuning(open_model, catalog, inputs, measuring, part, report, instance, given_s)
        try:
            tuning.run()
            catalog, inputs, counts = tuning.catalog, tuning.inputs, tuning.counts
        except Cancelled:
            control.cut("tune")
        race.clock.ends_at -= max(0.0, settings.tune_budget_s - counts.seconds)
        report.detail = summary(counts)
        control.emit(RunUpdate(candidates=inputs.records(), constants=dict(inputs.constants)))
    return catalog, inputs, counts
