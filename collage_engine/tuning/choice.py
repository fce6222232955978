"""The choice of what to tune next, from candidates, their costs and tuning records.

A candidate's *regret* is what the best placement with it costs above the best of all. Tuning could
change the answer if it may save more than that; other candidates are not tuned. What tuning may
save is what it was seen to save elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from collage_engine.records.candidate import Candidate
from collage_engine.records.cost_table import CostTable
from collage_engine.records.hand_over_constants import PAIR, pair_name, split_pair
from collage_engine.records.precision import FLOAT32
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.tuning import TuneRecord, TuneTask
from collage_engine.search.api import solve
from collage_engine.search.problem import Problem

TUNED = ("tuned", "yes")
"""The option that distinguishes a tuned instance from the untuned one."""
PLAN_GAIN = 0.3
"""Share of a kernel's time that tuning a schedule's parameters saves at most; it decides which
kernels could bring a candidate into the best cover; chosen."""
TRACE_GAIN = 0.95
"""Share of the time that tuning saves at most for loops that no schedule was written for, which
MetaSchedule tunes; chosen."""
UNSCHEDULED = ("", "plain")
"""The schedules of tasks that stand for such loops."""
UNFINISHED_GAIN = 0.05
"""Share that a search which was broken off may still save beyond what it saved; chosen."""

ProblemOf = Callable[[Sequence[Candidate], CostTable], Problem]
"""Makes the search problem of some candidates."""


@dataclass(frozen=True)
class Prospect:
    """A candidate that tuning could bring into a better placement."""

    candidate: Candidate
    """The untuned candidate."""
    cost_us: float
    """What it costs untuned."""
    gain_us: float
    """What the placement would gain by it at most."""


def is_plain(instance: ToolchainInstance) -> bool:
    """Tell whether an instance is untuned and without a library.

    On a processor it must also compute in float32; kernels for a device are tuned in lower
    precisions too.
    """
    if not instance.config:
        return instance.precision == FLOAT32
    return bool(instance.architecture) and all(name == "precision" for name, _ in instance.config)


def can_be_tuned(candidate: Candidate, costs: CostTable, toolchains: Sequence[str]) -> bool:
    """Tell whether a candidate was measured on the plain instance of a tunable toolchain."""
    mine = candidate.instance.toolchain in toolchains and is_plain(candidate.instance)
    return mine and costs.cost(candidate.id).usable and bool(candidate.key)


def tuned_instance(instance: ToolchainInstance, table: str) -> ToolchainInstance:
    """Return the instance that lowers with the table of choices of this digest."""
    return msgspec.structs.replace(instance, config=(*instance.config, TUNED), tuning=table)


def remaining(task: TuneTask, record: TuneRecord | None) -> float:
    """Return the share of a kernel's untuned time that tuning may save at most."""
    loops = task.kind == "trace" and task.schedule in UNSCHEDULED
    most = TRACE_GAIN if loops else PLAN_GAIN
    if record is not None and record.complete:
        return record.gain
    if record is None or not record.tried:
        return most
    return min(most, record.gain + UNFINISHED_GAIN)


def optimistic_us(
    cost_us: float,
    tasks: Sequence[TuneTask] | None,
    records: Mapping[str, TuneRecord],
) -> float | None:
    """Return what a candidate may cost once tuned, at best.

    Args:
        cost_us: What it costs untuned.
        tasks: What of it can be tuned; None: not known yet.
        records: What is known of workloads.

    Returns:
        Microseconds; None when tuning cannot save anything.
    """
    if tasks is None:
        share = PLAN_GAIN
    else:
        ways = by_work(tasks)
        whole = weight_of(ways)
        if not whole:
            return None
        share = sum(
            max(t.weight for t in same)
            / whole
            * max(remaining(t, records.get(t.workload)) for t in same)
            for same in ways
        )
    if share <= 0.0:
        return None
    return cost_us * (1.0 - share)


def by_work(tasks: Sequence[TuneTask]) -> list[list[TuneTask]]:
    """Return the tasks in groups; those of one group are the same work, tuned in different ways."""
    found: dict[str, list[TuneTask]] = {}
    for task in tasks:
        found.setdefault(task.beside or task.workload, []).append(task)
    return list(found.values())


def weight_of(ways: Sequence[Sequence[TuneTask]]) -> float:
    """Return the weight of all work, counted once where it is tuned in several ways."""
    return sum(max(task.weight for task in same) for same in ways)


def choices_of(
    tasks: Sequence[TuneTask], records: Mapping[str, TuneRecord]
) -> dict[str, dict[str, Any]]:
    """Return the tuned choice of each workload.

    Where the same work was tuned in two ways, only the choice that gains more is returned.

    Args:
        tasks: The tasks of all candidates.
        records: What is known of workloads.
    """
    table = {w: dict(r.choice) for w, r in records.items() if r.choice}
    for task in tasks:
        if task.workload in table and task.beside in table:
            other, mine = records[task.beside].gain, records[task.workload].gain
            table.pop(task.workload if other >= mine else task.beside)
    return table


def prospects(
    candidates: Sequence[Candidate],
    costs: CostTable,
    tunable: Mapping[str, float],
    problem_of: ProblemOf,
) -> list[Prospect]:
    """Return the candidates whose tuning could still change the answer, the largest gain first.

    Args:
        candidates: All candidates.
        costs: Their costs.
        tunable: What a candidate may cost once tuned, in microseconds, by id.
        problem_of: Makes the search problem of some candidates.
    """
    known = [c for c in candidates if costs.cost(c.id).usable]
    if not any(c.id in tunable for c in known):
        return []
    regrets = solve(problem_of(known, costs), with_bounds=False).regrets
    found = []
    for candidate in known:
        regret = regrets.get(candidate.id)
        if regret is None or candidate.id not in tunable:
            continue
        cost_us = costs.cost(candidate.id).median_us or 0.0
        gain = cost_us - tunable[candidate.id] - regret
        if gain > 0:
            found.append(Prospect(candidate, cost_us, gain))
    return sorted(found, key=lambda p: (-p.gain_us, len(p.candidate.nodes)))


def disjoint(found: Sequence[Prospect]) -> list[Prospect]:
    """Return prospects that could be in one placement together, chosen greedily by gain."""
    taken: set[int] = set()
    chosen = []
    for prospect in found:
        if taken.isdisjoint(prospect.candidate.nodes):
            taken.update(prospect.candidate.nodes)
            chosen.append(prospect)
    return chosen


def ranked(
    found: Sequence[Prospect],
    tasks: Mapping[str, Sequence[TuneTask]],
    records: Mapping[str, TuneRecord],
) -> list[tuple[TuneTask, float]]:
    """Return unfinished workloads of prospects, the most promising first.

    Args:
        found: The prospects.
        tasks: What of a candidate can be tuned, by measurement key.
        records: What is known of workloads.

    Returns:
        Tasks with the microseconds that tuning each may save in all the places where it stands.
    """
    scores: dict[str, float] = {}
    by_workload: dict[str, TuneTask] = {}
    for prospect in found:
        ways = by_work(tasks.get(prospect.candidate.key, ()))
        whole = weight_of(ways)
        for task, same in ((t, group) for group in ways for t in group):
            record = records.get(task.workload)
            if record is not None and record.complete:
                continue
            by_workload[task.workload] = task
            gains = [records[t.workload].gain for t in same if t.workload in records]
            saved = remaining(task, record) - max(gains, default=0.0)
            us = prospect.cost_us * task.weight / whole * saved
            scores[task.workload] = scores.get(task.workload, 0.0) + us
    order = sorted(scores, key=lambda w: (-scores[w], w))
    return [(by_workload[w], scores[w]) for w in order if scores[w] > 0]


def with_tuned_pairs(
    constants: Mapping[str, float], instances: Sequence[ToolchainInstance]
) -> dict[str, float]:
    """Return the constants with hand-overs of tuned instances, which cost what untuned ones do."""
    found = dict(constants)
    tuned = {instance.id: tuned_instance(instance, "").id for instance in instances}
    for name, us in constants.items():
        if not name.startswith(PAIR):
            continue
        source, target = split_pair(name)
        for a in (source, tuned.get(source, source)):
            for b in (target, tuned.get(target, target)):
                found[pair_name(a, b)] = us
    return found
