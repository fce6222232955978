"""Calibration: costs are corrected by what partitions take inside whole models.

Whatever of several partitions has taken part in the race was profiled there: the covers of mixes,
in which each toolchain has all groups of operators that it can take, and the covers that the search
proposes. What a partition took there replaces what it took in isolation; for all others it is
predicted from these (``trials.in_model_costs``). The search on such costs proposes another cover,
which enters the race in turn, until it proposes one that was there, or the time is up. What is
predicted too low is tried and found out; what was measured stays.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Sequence
from functools import cache
from typing import TYPE_CHECKING

from collage_engine.machine.run_control import RunControl
from collage_engine.planning.search_inputs import Cover, SearchInputs, SearchResult
from collage_engine.records.candidate import CostTable, InModelSource
from collage_engine.support.text import counted
from collage_engine.trials.contender import Contender, ContenderResult, ModuleKey, with_eligibility
from collage_engine.trials.in_model_costs import PartitionWork, fit, moved_bytes
from collage_engine.trials.race import Race

if TYPE_CHECKING:
    from collage_engine.model.dataflow_graph import DataflowGraph

TURNS = 16
"""Proposals of the search that are tried at most: of a small model the next cover may always be a
little cheaper than the last one; chosen."""


def calibrate_costs(
    graph: DataflowGraph,
    inputs: SearchInputs,
    searched: SearchResult,
    race: Race,
    control: RunControl,
) -> tuple[SearchInputs, SearchResult]:
    """Have covers enter the race, and search again on what their partitions take there.

    Where time is short, the covers that were profiled before have to do. Where there are none, and
    where no cover could be run, everything stays as it is.

    Args:
        graph: The model's graph.
        inputs: The candidates with their isolated costs.
        searched: The best covers on these.
        race: The race, with what was profiled so far.
        control: Takes progress, and why a placement could not be profiled.

    Returns:
        The inputs with costs within the model, and the best covers on these.
    """
    if not _is_worthwhile(inputs, searched):
        return inputs, searched
    seconds = race.clock.for_step_s
    if not seconds:
        control.cut("calibrate")
    if not seconds and not race.standings.profiled():
        return inputs, searched
    ends_at = time.monotonic() + seconds
    isolated, timed, failed = inputs, set[ModuleKey](), set[ModuleKey]()
    with control.stage("calibrate") as report:
        for turn in range(TURNS + 1):  # after the last one, a search
            tried = {one.contender.key: one for one in race.standings.profiled()}
            costs = corrected_costs(graph, isolated, list(tried.values()))
            if costs is not None:
                again = isolated.with_costs(costs)
                result = again.search()
                if not result.covers:
                    control.log("on the costs within the model the search finds no placement")
                    break
                inputs, searched = again, result
            cover = _next_cover(searched.covers, timed.union(tried), failed)
            if cover is None or not seconds or turn == TURNS or race.clock.is_over(ends_at):
                break
            now = f"placement {len(tried) + 1}, {counted(len(cover), 'partition')}"
            report.progress(turn, TURNS, now)
            proposed = with_eligibility(inputs, Contender(cover=cover))
            trial = race.try_cover(proposed, ends_at=ends_at)
            if trial.partitions_us:
                timed.add(proposed.key)  # one partition alone is never profiled
            else:
                failed.add(proposed.key)
                reason = trial.reason or "its partitions gave no times"
                control.log(f"a placement could not be profiled: {reason}")
        profiled = counted(len(tried), "placement") if tried else "no placement"
        report.detail = f"{profiled} profiled within the model"
    return inputs, searched


def _is_worthwhile(inputs: SearchInputs, searched: SearchResult) -> bool:
    """Tell whether calibration could learn anything.

    It could where the best cover has several partitions, or where a candidate that covers only a
    part of the graph has a cost: a whole model takes what it takes in isolation.
    """
    operators = max((len(c.nodes) for c in inputs.candidates), default=0)
    return len(searched.covers[0]) > 1 or any(
        inputs.costs.cost(c.id).usable and len(c.nodes) < operators for c in inputs.candidates
    )


def _next_cover(
    covers: Sequence[Cover], tried: Collection[ModuleKey], failed: Collection[ModuleKey]
) -> Cover | None:
    """Return the best cover that can be run; None: it was tried, so that nothing is left to learn.

    Args:
        covers: The covers, best first.
        tried: The covers that were timed.
        failed: Those that could not be profiled.
    """
    able = (cover for cover in covers if Contender(cover=cover).key not in failed)
    best = next(able, None)
    return best if best is not None and Contender(cover=best).key not in tried else None


def corrected_costs(
    graph: DataflowGraph, inputs: SearchInputs, trials: Sequence[ContenderResult]
) -> CostTable | None:
    """Return the costs with those within the model added.

    A candidate that was run within a model takes the median of what was seen there; for the others
    it is predicted. A candidate that takes as long as the best cover keeps its isolated cost.

    Args:
        graph: The model's graph.
        inputs: The candidates with their isolated costs.
        trials: What the partitions of covers took within the model.

    Returns:
        The costs; None where no candidate with an isolated cost was run within the model.
    """
    seen: dict[str, list[float]] = {}
    for trial in trials:
        for name, us in trial.partitions_us.items():
            seen.setdefault(name, []).append(us)
    best_us = min((trial.profiled_us for trial in trials), default=0.0)
    moved = cache(lambda nodes: moved_bytes(graph, nodes))
    works: dict[str, PartitionWork] = {}
    for candidate in inputs.candidates:
        isolated_us = inputs.costs.cost(candidate.id).median_us
        if best_us > 0 and isolated_us:
            weights, values = moved(candidate.nodes)
            works[candidate.id] = PartitionWork(
                toolchain=candidate.instance.toolchain,
                isolated_us=isolated_us,
                weight_bytes=weights,
                value_bytes=values,
                share=min(1.0, isolated_us / best_us),
            )
    seen_us = {name: statistics.median(us) for name, us in seen.items() if name in works}
    if not seen_us:
        return None
    model = fit([(works[name], us) for name, us in seen_us.items()])
    times: dict[str, tuple[float, InModelSource]] = {
        name: (one.isolated_us + model.added_us(one), "predicted")
        for name, one in works.items()
        if one.share < 1.0
    }
    return inputs.costs.with_in_model(times | {name: (us, "seen") for name, us in seen_us.items()})
