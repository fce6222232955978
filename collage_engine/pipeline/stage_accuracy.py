"""The stage that keeps a promised tolerance: covers are run for their error before they compete."""

from __future__ import annotations

from collections.abc import Sequence

from collage_engine.pipeline.accuracy import Kept
from collage_engine.pipeline.measuring import Measuring
from collage_engine.pipeline.problem import make_placement
from collage_engine.pipeline.promise import chosen_covers, covers_within
from collage_engine.pipeline.run_state import RunState
from collage_engine.placement.rival import Sample
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.placement import Placement
from collage_engine.search.problem import Problem


def keep_tolerance(
    state: RunState, placements: list[Placement], sample: Sample, measuring: Measuring
) -> tuple[Kept, list[Placement]]:
    """The fastest covers that keep the tolerance end to end, in place of the fastest ones.

    Where none keeps it, the placements as they were, with a warning.
    """

    def widened() -> tuple[Problem, Sequence[CandidateRecord]]:
        # Nothing was left out for being slower than what turned out to be inadmissible.
        state.records = measuring.rest(state.records, state.budget.deadline)
        return state.problem(), state.records

    with state.stages.stage("accuracy") as report:
        kept = covers_within(
            state.model, state.problem(), state.records, (sample, *state.further),
            state.tolerance, state.workspace.folder, report, widened,
        )  # fmt: skip
    best = [{part.candidate for part in p.partitions} for p in placements]
    by_id = state.by_id()
    found = []
    for tried in chosen_covers(kept):
        names = [str(name) for name in tried.cover]
        if set(names) in best:
            found.append(placements[best.index(set(names))])
        else:
            percentile = state.settings.percentile
            found.append(make_placement(state.graph, by_id, names, tried.cost_us, percentile))
    if not found:
        state.warn(f"no cover was found that keeps the tolerance of {state.tolerance:g}")
    return kept, found or placements
