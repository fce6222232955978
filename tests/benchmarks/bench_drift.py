"""Whether stated intervals hold: candidates measured again in sessions of their own.

    python -m tests.benchmarks.bench_drift [MODEL …] [--sets N] [--sessions N] [--apart S]

A session is a measuring process of its own, some time after the one before. Node sets are drawn by
lot from those with several candidates; all candidates on them are measured in every session. Then,
for ordered pairs of sessions: does the interval that the one's repeats state
(``remeasured_median_interval``) hold the other's median? Printed: the share at the default drift,
at several assumed ones, and at what the machine has learnt as runs learn it (``store.drift``): from
one half of the candidates, each session of the first half of them against the one before, held
against the *other* half of the candidates in pairs with at least one of the *later* sessions; and
the halves of the candidates the other way round. 90 % is what is promised. Also printed: how slow
the speed probe found the machine, how much the medians themselves differ, and its load."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from collage_engine.candidates.inputs import representative_inputs
from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.run_control import RunControl
from collage_engine.records.cost import Cost
from collage_engine.records.settings import RunSettings
from collage_engine.search.run_to_run_drift import (
    DEFAULT_DRIFT,
    remeasured_median_interval,
    required_drift,
)
from collage_engine.store.drift import drift
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.timing.measurer import group_candidates
from collage_engine.timing.speed_probe import NAME as PROBE_CONSTANT
from tests.benchmarks.place import model_file

LEVEL = 0.9


def sessions(
    name: str, sets: int, count: int, apart_s: float, settings: RunSettings, folder: Path
) -> list[dict[str, Cost]]:
    """Key to cost, per session."""
    workspace = OpenModel(str(model_file(name, folder)), {})
    try:
        menu = workspace.menu(settings)
        groups = [g for g in group_candidates(menu.candidates) if len(g.candidates) > 1]
        random.Random(0).shuffle(groups)
        inputs = representative_inputs(workspace.model, settings)
        found = []
        for number in range(count):
            if number:
                time.sleep(apart_s)
            with Measuring(workspace, menu, settings, inputs, RunControl()) as measuring:
                measurer = measuring.measurer()
                measurer.store = None  # every session for itself
                costs = measurer.measure(groups[:sets]).costs
                if workspace.store is not None and workspace.store.constant(PROBE_CONSTANT) is None:
                    workspace.store.put_constant(PROBE_CONSTANT, measurer.probe_reference)
                found.append({key: cost for key, cost in costs.items() if cost.usable})
        return found
    finally:
        workspace.close()


def held(pairs: Sequence[tuple[Cost, Cost]], drift: float) -> float:
    """Share of pairs in which the first's interval holds the second's median."""
    inside = 0
    for first, second in pairs:
        low, high = remeasured_median_interval(first.repeats_us, level=LEVEL, drift=drift)
        inside += low <= (second.median_us or math.nan) <= high
    return inside / len(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["encoder", "light_squeezenet"])
    parser.add_argument("--sets", type=int, default=12)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--apart", type=float, default=0.0, help="seconds between sessions")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    settings = RunSettings(threads=chosen.threads)
    assumed = (0.0, 0.05, 0.1, DEFAULT_DRIFT)
    print(
        "| model | candidates | load | slowness | median ratio of sessions | "
        + " | ".join(f"held at {d:.0%}" for d in assumed)
        + " | learnt in one half and earlier | held in the other, later | and the other way round |"
    )
    print("|" + "---|" * (8 + len(assumed)))
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.models:
            taken = sessions(
                name, chosen.sets, chosen.sessions, chosen.apart, settings, Path(folder)
            )
            tell(name, taken, assumed)


def tell(name: str, taken: Sequence[Mapping[str, Cost]], assumed: Sequence[float]) -> None:
    keys = sorted(set.intersection(*(set(costs) for costs in taken)))
    every = [(a[k], b[k]) for a, b in itertools.permutations(taken, 2) for k in keys]
    ratio = median(max(us(a), us(b)) / min(us(a), us(b)) for a, b in every)
    slow = [costs[k].slowness for costs in taken for k in keys]
    middle = len(taken) // 2
    learnt, later = [], []
    for part in (0, 1):
        known = [
            [required_drift(a[k].repeats_us, b[k].repeats_us) for k in keys[part::2]]
            for a, b in itertools.pairwise(taken[:middle])
        ]
        learnt.append(drift(known, DEFAULT_DRIFT))
        later.append(
            [
                (taken[i][k], taken[j][k])
                for i, j in itertools.permutations(range(len(taken)), 2)
                if max(i, j) >= middle
                for k in keys[part::2]
            ]
        )
    shares = " | ".join(f"{held(every, d):.0%}" for d in assumed)
    print(
        f"| {name} | {len(keys)} | {os.getloadavg()[0]:.1f} | {min(slow):.2f}–{max(slow):.2f} "
        f"| {ratio:.2f} | {shares} | {learnt[0]:.1%} | {held(later[1], learnt[0]):.0%} "
        f"| {learnt[1]:.1%}: {held(later[0], learnt[1]):.0%} |",
        flush=True,
    )


def us(cost: Cost) -> float:
    return cost.median_us or math.nan


if __name__ == "__main__":
    main()
