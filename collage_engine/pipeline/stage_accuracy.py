"""The stage that keeps a promised tolerance: covers are run for their error before they compete."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from collage_engine.measure.keys import KeyContext
from collage_engine.pipeline.accuracy import Kept
from collage_engine.pipeline.mixing import (
    LEVELS,
    burdens,
    efforts,
    mixed_records,
    products_of,
    to_mix,
)
from collage_engine.pipeline.problem import make_placement, with_conversions
from collage_engine.pipeline.promise import chosen_covers, covers_within, isolated
from collage_engine.placement.rival import Sample
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.placement import Placement
from collage_engine.search.problem import Problem
from collage_engine.toolchains.registry import get

if TYPE_CHECKING:
    from collage_engine.pipeline.measuring import Measuring
    from collage_engine.pipeline.run_state import RunState

MIXED_S = 60.0
"""For measuring candidates in two precisions, where the budget has less left."""
WORSE = 1.1
"""The error on the worst of several samples over that on one, about."""


def keep_tolerance(
    state: RunState, placements: list[Placement], sample: Sample, measuring: Measuring
) -> tuple[Kept, list[Placement]]:
    """The fastest covers that keep the tolerance end to end, in place of the fastest ones.

    Where none keeps it, the placements as they were, with a warning.
    """

    def widened() -> Sequence[CandidateRecord]:
        # Nothing was left out for being slower than what turned out to be inadmissible.
        state.records = measuring.rest(state.records, state.budget.deadline)
        return state.records

    def mixed(
        records: Sequence[CandidateRecord],
        factors: Mapping[int, float],
        errors: Mapping[tuple[str, ...], float],
    ) -> tuple[Problem, Sequence[CandidateRecord]]:
        new = _mixed(state, measuring.keys, records, factors, errors)
        if new:
            deadline = max(state.budget.deadline, time.monotonic() + MIXED_S)
            state.records = [*state.records, *measuring.add(new, deadline)]
        return state.problem(), state.records

    with state.stages.stage("accuracy") as report:
        kept = covers_within(
            state.model, state.problem(), state.records, (sample, *state.further),
            state.tolerance, state.workspace.folder, report, widened, mixed,
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
            made = make_placement(state.graph, by_id, names, tried.cost_us, percentile)
            found.append(with_conversions(made, state.problem()))
    if not found:
        state.warn(f"no cover was found that keeps the tolerance of {state.tolerance:g}")
    return kept, found or placements


def _mixed(
    state: RunState,
    keys: KeyContext,
    records: Sequence[CandidateRecord],
    factors: Mapping[int, float],
    errors: Mapping[tuple[str, ...], float],
) -> list[CandidateRecord]:
    """Candidates in two precisions that could keep the tolerance where these covers broke it."""
    model, tolerance = state.model, state.tolerance
    alone = isolated(records)
    products = products_of(model)
    burden = burdens(products, records, {str(k): e for k, e in alone.items()}, factors)
    effort = efforts(products, records)
    able = [name for name in {r.instance.toolchain for r in records} if get(name).careful]
    cover, error = max(errors.items(), key=lambda item: item[1], default=((), 0.0))
    found: dict[str, CandidateRecord] = {}
    for parts in to_mix(records, cover, len(model.graph.operators), able):
        here = errors.get(tuple(p.id for p in parts), error)
        if len(parts[0].nodes) == len(model.graph.operators) and (parts[0].id,) not in errors:
            # A cover's error is known on all samples; a whole model's, alone, on the run's inputs.
            here = WORSE * alone.get(parts[0].id, 0.0)
        if here <= tolerance or not math.isfinite(here):
            continue  # admitted as it is, nothing known of it, or wrong altogether
        shares = [level * (tolerance / here) ** 2 for level in LEVELS]
        new = mixed_records(model, records, parts, shares, burden, effort, keys.key)
        found.update({record.id: record for record in new})
    return list(found.values())
