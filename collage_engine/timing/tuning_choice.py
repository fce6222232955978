"""The choice of what to tune next, from candidates, their costs and tuning records.

Tuning could change the answer where a candidate is in the best cover if each that can be tuned took
as little as tuning may make of it; other candidates are not tuned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from collage_engine.kernels.choices import TUNED
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.candidate import Candidate, CostTable
from collage_engine.records.precision import FLOAT32
from collage_engine.records.toolchain import ToolchainInstance, TuneRecord, TuneTask
from collage_engine.search.api import solve

GAIN = 0.3
"""Share of a candidate's time that tuning saves at most: one that lies further behind others is not
tuned. Chosen: in ``RESULTS.md`` no tuned model gained more than a twentieth as a whole."""


def is_plain(instance: ToolchainInstance) -> bool:
    """Tell whether an instance computes in float32 on the processor, untuned, without a library."""
    return not (instance.config or instance.architecture) and instance.precision == FLOAT32


def can_be_tuned(candidate: Candidate, costs: CostTable, toolchains: Sequence[str]) -> bool:
    """Tell whether a candidate was measured on the plain instance of a tunable toolchain."""
    mine = candidate.instance.toolchain in toolchains and is_plain(candidate.instance)
    return mine and costs.cost(candidate.id).usable and bool(candidate.key)


def tuned_instance(instance: ToolchainInstance, table: str) -> ToolchainInstance:
    """Return the instance that lowers with the table of choices of this digest."""
    return msgspec.structs.replace(instance, config=(*instance.config, TUNED), tuning=table)


def choices_of(records: Mapping[str, TuneRecord]) -> dict[str, dict[str, Any]]:
    """Return the tuned choice of each workload of which one is known."""
    return {w: dict(r.choice) for w, r in records.items() if r.choice}


def promising(inputs: SearchInputs, tunable: Collection[str]) -> list[Candidate]:
    """Return the candidates whose tuning could change the answer, those that take longest first.

    They are those of the best cover if each of them became as fast as it could.

    Args:
        inputs: All candidates with their costs.
        tunable: Ids of those that can be tuned.
    """
    costs = inputs.costs
    by_id = {c.id: c for c in inputs.candidates if costs.cost(c.id).usable}
    if by_id.keys().isdisjoint(tunable):
        return []
    problem = inputs.problem_of(tuple(by_id.values()), costs)
    hoped = tuple(
        replace(candidate, cost_us=(1 - GAIN) * candidate.cost_us)
        if candidate.id in tunable and candidate.cost_us is not None
        else candidate
        for candidate in problem.candidates
    )
    cover = set(solve(replace(problem, candidates=hoped)).cover or ())
    chosen = [c for c in by_id.values() if c.id in cover and c.id in tunable]
    return sorted(chosen, key=lambda c: -(costs.cost(c.id).us or 0.0))


def ranked(
    chosen: Sequence[Candidate],
    costs: CostTable,
    tasks: Mapping[str, Sequence[TuneTask]],
    records: Mapping[str, TuneRecord],
) -> list[tuple[TuneTask, float]]:
    """Return unfinished workloads of candidates, the most promising first.

    Args:
        chosen: The candidates.
        costs: Their costs.
        tasks: What of a candidate can be tuned, by measurement key.
        records: What is known of workloads.

    Returns:
        Tasks with the microseconds that each takes in all the places where it stands.
    """
    scores: dict[str, float] = {}
    by_workload: dict[str, TuneTask] = {}
    for candidate in chosen:
        listed = tasks.get(candidate.key, ())
        whole = sum(task.weight for task in listed)
        for task in listed:
            record = records.get(task.workload)
            if whole and not (record is not None and record.complete):
                by_workload[task.workload] = task
                us = (costs.cost(candidate.id).us or 0.0) * task.weight / whole
                scores[task.workload] = scores.get(task.workload, 0.0) + us
    order = sorted(scores, key=lambda w: (-scores[w], w))
    return [(by_workload[w], scores[w]) for w in order if scores[w] > 0]
