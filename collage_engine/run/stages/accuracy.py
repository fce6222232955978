"""The stage that keeps a promised tolerance: covers are run for their error before they compete."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from collage_engine.planning.problem import make_placement, with_conversions
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.placement import Placement
from collage_engine.search.problem import Problem
from collage_engine.store.keys import KeyContext
from collage_engine.toolchains.registry import get
from collage_engine.trials.accuracy import Kept
from collage_engine.trials.contender import Sample
from collage_engine.trials.mixed_precision import (
    LEVELS,
    burdens,
    efforts,
    mixed_records,
    products_of,
    to_mix,
)
from collage_engine.trials.tolerance import chosen_covers, covers_within, isolated

if TYPE_CHECKING:
    from collage_engine.run.context import RunState
    from collage_engine.timing.candidate_timing import Measuring

MIXED_S = 90.0
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
        deadline = max(state.budget.deadline, time.monotonic() + MIXED_S)
        for levels in _mixed(state, measuring.keys, records, factors, errors):
            for new in levels:
                if not new or time.monotonic() > deadline:
                    continue
                added = measuring.add(new, deadline)
                state.records = [*state.records, *added]
                if _suffices(state, added):
                    break  # the next would leave more in float32 than it takes
        return state.problem(), state.records

    with state.control.stage("accuracy") as report:
        kept = covers_within(
            state.model,
            state.problem(),
            state.records,
            (sample, *state.further),
            state.tolerance,
            state.workspace.folder,
            state.control,
            report,
            widened,
            mixed,
        )
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
        state.control.warn(f"no cover was found that keeps the tolerance of {state.tolerance:g}")
    return kept, found or placements


def _mixed(
    state: RunState,
    keys: KeyContext,
    records: Sequence[CandidateRecord],
    factors: Mapping[int, float],
    errors: Mapping[tuple[str, ...], float],
) -> list[list[list[CandidateRecord]]]:
    """Candidates in two precisions that could keep the tolerance where these covers broke it.

    For each set of partitions, the fastest first, at falling shares of its burden.
    """
    model, tolerance = state.model, state.tolerance
    alone = isolated(records)
    products = products_of(model)
    burden = burdens(products, records, {str(k): e for k, e in alone.items()}, factors)
    effort = efforts(products, records)
    able = [name for name in {r.instance.toolchain for r in records} if get(name).careful]
    cover, error = max(errors.items(), key=lambda item: item[1], default=((), 0.0))
    found: list[list[list[CandidateRecord]]] = []
    sets = to_mix(records, cover, len(model.graph.operators), able)
    for parts in sorted(sets, key=lambda parts: sum(p.cost.at() for p in parts)):
        here = errors.get(tuple(p.id for p in parts), error)
        if len(parts[0].nodes) == len(model.graph.operators) and (parts[0].id,) not in errors:
            # A cover's error is known on all samples; a whole model's, alone, on the run's inputs.
            here = WORSE * alone.get(parts[0].id, 0.0)
        if here <= tolerance or not math.isfinite(here):
            continue  # admitted as it is, nothing known of it, or wrong altogether
        shares = [level * (tolerance / here) ** 2 for level in LEVELS]
        known = {record.id for levels in found for each in levels for record in each}
        levels = []
        for share in shares:
            new = mixed_records(model, records, parts, [share], burden, effort, keys.key)
            levels.append([record for record in new if record.id not in known])
            known.update(record.id for record in new)
        found.append(levels)
    return found


def _suffices(state: RunState, records: Sequence[CandidateRecord]) -> bool:
    """Whether a record that is the whole model keeps the tolerance, as far as its inputs tell."""
    return any(
        len(record.nodes) == len(state.model.graph.operators)
        and record.cost.usable
        and (record.cost.max_rel_error or 0.0) * WORSE <= state.tolerance
        for record in records
    )
