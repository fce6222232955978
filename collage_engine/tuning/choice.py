"""The choice of what to tune next, from candidates, their costs and tuning records.

A candidate's *regret* is what the best placement with it costs above the best of all. Tuning could
change the answer if it may save more than that; other candidates are not tuned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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
GAIN = 0.3
"""Share of a candidate's time that tuning saves at most: whoever lies further behind the best
cover is not tuned. In ``RESULTS.md`` no tuned model gained more than a twentieth as a whole."""

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


def choices_of(records: Mapping[str, TuneRecord]) -> dict[str, dict[str, Any]]:
    """Return the tuned choice of each workload of which one is known."""
    return {w: dict(r.choice) for w, r in records.items() if r.choice}


def prospects(
    candidates: Sequence[Candidate],
    costs: CostTable,
    tunable: Collection[str],
    problem_of: ProblemOf,
) -> list[Prospect]:
    """Return the candidates whose tuning could still change the answer, the largest gain first.

    Args:
        candidates: All candidates.
        costs: Their costs.
        tunable: Ids of those that can be tuned.
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
        gain = GAIN * cost_us - regret
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
        Tasks with the microseconds that each takes in all the places where it stands.
    """
    scores: dict[str, float] = {}
    by_workload: dict[str, TuneTask] = {}
    for prospect in found:
        listed = tasks.get(prospect.candidate.key, ())
        whole = sum(task.weight for task in listed)
        for task in listed:
            record = records.get(task.workload)
            if whole and not (record is not None and record.complete):
                by_workload[task.workload] = task
                us = prospect.cost_us * task.weight / whole
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
