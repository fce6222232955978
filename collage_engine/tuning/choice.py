"""What to tune next: pure logic over candidates, a search problem and tuning records.

A candidate's *regret* is what the best placement with it costs above the best of all. It could
change the answer once tuned if tuning may save more than that; the rest is left alone. What tuning
may save is what it was seen to save elsewhere, and never more than the candidate's certified lower
bound allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from collage_engine.records.candidate import Candidate
from collage_engine.records.precision import FLOAT32
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.tuning import TuneRecord, TuneTask
from collage_engine.search.api import solve
from collage_engine.search.problem import Problem

TUNED = ("tuned", "yes")
HOPE_PLAN = 0.3
"""Largest share of its time that tuning a schedule's parameters was seen to save, rounded up."""
HOPE_TRACE = 0.95
"""The same for loops that no schedule was written for."""
UNSCHEDULED = ("", "plain")
"""What tasks say that stand for such loops."""
HOPE_MORE = 0.05
"""What a search that was broken off may still find beyond what it found."""


@dataclass(frozen=True)
class Hope:
    """A candidate that tuning could bring into a better placement."""

    candidate: Candidate
    """Untuned."""
    gain_us: float
    """What the placement would gain by it alone if all went as well as it could."""


def is_plain(instance: ToolchainInstance) -> bool:
    """Whether it is as the toolchain offers it, untuned and without a library. Kernels for a
    device are tuned in lower precisions too."""
    if not instance.config:
        return instance.precision == FLOAT32
    return bool(instance.architecture) and all(name == "precision" for name, _ in instance.config)


def can_be_tuned(record: Candidate, toolchains: Sequence[str]) -> bool:
    """Whether it is the plain form of a toolchain that has a tuner."""
    mine = record.instance.toolchain in toolchains and is_plain(record.instance)
    return mine and record.cost.usable and bool(record.key)


def tuned_instance(instance: ToolchainInstance, table: str) -> ToolchainInstance:
    """The instance that lowers with a table of choices."""
    return msgspec.structs.replace(instance, config=(*instance.config, TUNED), tuning=table)


def remaining(task: TuneTask, record: TuneRecord | None) -> float:
    """Share of the kernel's untuned time that tuning may save at most, as far as is known."""
    loops = task.kind == "trace" and task.schedule in UNSCHEDULED
    hope = HOPE_TRACE if loops else HOPE_PLAN
    if record is not None and record.complete:
        return record.gain
    if record is None or not record.tried:
        return hope
    return min(hope, record.gain + HOPE_MORE)


def optimistic_us(
    candidate: Candidate,
    tasks: Sequence[TuneTask] | None,
    records: Mapping[str, TuneRecord],
) -> float | None:
    """What the candidate may cost once tuned, at best; None when nothing can come of it.

    ``tasks`` None: not known yet what it consists of.
    """
    cost = candidate.cost.median_us or 0.0
    if tasks is None:
        share = HOPE_PLAN
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
    return max(candidate.lower_bound_us or 0.0, cost * (1.0 - share))


def by_work(tasks: Sequence[TuneTask]) -> list[list[TuneTask]]:
    """Tasks grouped: those of one group are the same work, tuned in different ways."""
    found: dict[str, list[TuneTask]] = {}
    for task in tasks:
        found.setdefault(task.beside or task.workload, []).append(task)
    return list(found.values())


def weight_of(ways: Sequence[Sequence[TuneTask]]) -> float:
    """Of all work, each counted once."""
    return sum(max(task.weight for task in same) for same in ways)


def choices_of(
    tasks: Sequence[TuneTask], records: Mapping[str, TuneRecord]
) -> dict[str, dict[str, Any]]:
    """What was found, by workload; of the same work tuned in two ways, what gains more."""
    table = {w: dict(r.choice) for w, r in records.items() if r.choice}
    for task in tasks:
        if task.workload in table and task.beside in table:
            other, mine = records[task.beside].gain, records[task.workload].gain
            table.pop(task.workload if other >= mine else task.beside)
    return table


def hopes(
    candidates: Sequence[Candidate],
    tunable: Mapping[str, float],
    problem_of: Callable[[list[Candidate]], Problem],
) -> list[Hope]:
    """Candidates whose tuning could still change the answer, the largest gain first.

    ``tunable``: candidate id → what it may cost once tuned.
    """
    known = [c for c in candidates if c.cost.usable]
    if not any(c.id in tunable for c in known):
        return []
    regrets = solve(problem_of(known), with_bounds=False).regrets
    found = []
    for candidate in known:
        regret = regrets.get(candidate.id)
        if regret is None or candidate.id not in tunable:
            continue
        gain = (candidate.cost.median_us or 0.0) - tunable[candidate.id] - regret
        if gain > 0:
            found.append(Hope(candidate, gain))
    return sorted(found, key=lambda h: (-h.gain_us, len(h.candidate.nodes)))


def apart(found: Sequence[Hope]) -> list[Hope]:
    """Those that could be in one placement together, greedily by gain."""
    taken: set[int] = set()
    chosen = []
    for hope in found:
        if taken.isdisjoint(hope.candidate.nodes):
            taken.update(hope.candidate.nodes)
            chosen.append(hope)
    return chosen


def ranked(
    found: Sequence[Hope],
    tasks: Mapping[str, Sequence[TuneTask]],
    records: Mapping[str, TuneRecord],
) -> list[tuple[TuneTask, float]]:
    """Unfinished workloads of these candidates with the microseconds that tuning each may save in
    all the places where it stands, most first. ``tasks``: by measurement key."""
    scores: dict[str, float] = {}
    by_workload: dict[str, TuneTask] = {}
    for hope in found:
        ways = by_work(tasks.get(hope.candidate.key, ()))
        whole = weight_of(ways)
        for task, same in ((t, group) for group in ways for t in group):
            record = records.get(task.workload)
            if record is not None and record.complete:
                continue
            by_workload[task.workload] = task
            gains = [records[t.workload].gain for t in same if t.workload in records]
            saved = remaining(task, record) - max(gains, default=0.0)
            us = (hope.candidate.cost.median_us or 0.0) * task.weight / whole * saved
            scores[task.workload] = scores.get(task.workload, 0.0) + us
    order = sorted(scores, key=lambda w: (-scores[w], w))
    return [(by_workload[w], scores[w]) for w in order if scores[w] > 0]


def with_tuned_pairs(
    constants: Mapping[str, float], instances: Sequence[ToolchainInstance]
) -> dict[str, float]:
    """Hand-over costs of tuned instances are those of their untuned selves."""
    found = dict(constants)
    tuned = {instance.id: tuned_instance(instance, "").id for instance in instances}
    for name, us in constants.items():
        if not name.startswith("pair:"):
            continue
        _, source, target = name.split(":")
        for a in (source, tuned.get(source, source)):
            for b in (target, tuned.get(target, target)):
                found[f"pair:{a}:{b}"] = us
    return found
