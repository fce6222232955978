"""Whether stated intervals hold: candidates measured again in sittings of their own.

    python -m tests.benchmarks.bench_doubt [MODEL …] [--sets N] [--sittings N] [--threads N]

A sitting is a measuring process of its own, some time after the one before. Node sets are drawn by
lot from those with several rivals; all candidates on them are measured in every sitting. Then, for
every ordered pair of sittings: does the interval that the one's repeats state (``median_interval``)
hold the other's median? Printed for several assumed drifts between sittings, and for the drift
that one half of the candidates shows in the first two sittings, which is how a run learns it (from
what it measures twice), held against the other half in all sittings; and the halves the other way
round. Also printed: the machine's load. 90 % is what is promised.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from collage_engine.measure.guard import NAME as GUARD
from collage_engine.measure.measurer import group_candidates
from collage_engine.pipeline.inputs import representative_inputs
from collage_engine.pipeline.measuring import Measuring
from collage_engine.pipeline.workspace import Workspace
from collage_engine.records.cost import Cost
from collage_engine.records.settings import RunSettings
from collage_engine.search.doubt import BUSY_DRIFT, drift_between, median_interval
from tests.benchmarks.place import model_file

LEVEL = 0.9


def sittings(
    name: str, sets: int, count: int, apart_s: float, settings: RunSettings, folder: Path
) -> list[dict[str, Cost]]:
    """Key to cost, per sitting."""
    workspace = Workspace(str(model_file(name, folder)), {})
    try:
        menu = workspace.menu(settings)
        groups = [g for g in group_candidates(menu.records) if len(g.candidates) > 1]
        random.Random(0).shuffle(groups)
        inputs = representative_inputs(workspace.model, settings)
        found = []
        for number in range(count):
            if number:
                time.sleep(apart_s)
            with Measuring(workspace, menu, settings, inputs, lambda event: None) as measuring:
                measurer = measuring.measurer()
                measurer.store = None  # every sitting for itself
                costs = measurer.measure(groups[:sets]).costs
                if workspace.store is not None and workspace.store.constant(GUARD) is None:
                    workspace.store.put_constant(GUARD, measurer.guard)
                found.append({key: cost for key, cost in costs.items() if cost.usable})
        return found
    finally:
        workspace.close()


def held(pairs: Sequence[tuple[Cost, Cost]], drift: float) -> float:
    """Share of pairs in which the first's interval holds the second's median."""
    inside = 0
    for first, second in pairs:
        low, high = median_interval(first.repeats_us, level=LEVEL, drift=drift)
        inside += low <= (second.median_us or math.nan) <= high
    return inside / len(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["encoder", "light_squeezenet"])
    parser.add_argument("--sets", type=int, default=12)
    parser.add_argument("--sittings", type=int, default=3)
    parser.add_argument("--apart", type=float, default=0.0, help="seconds between sittings")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    settings = RunSettings(threads=chosen.threads)
    drifts = (0.0, 0.02, 0.05, 0.1, 0.2, BUSY_DRIFT)
    print("| model | candidates | pairs | load | median ratio of sittings | " + " | ".join(
        f"held at {d:.0%}" for d in drifts
    ) + " | drift of one half | held in the other | and the other way round |")  # fmt: skip
    print("|" + "---|" * (8 + len(drifts)))
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.models:
            taken = sittings(
                name, chosen.sets, chosen.sittings, chosen.apart, settings, Path(folder)
            )
            keys = sorted(set.intersection(*(set(costs) for costs in taken)))
            halves = [
                [(a[k], b[k]) for a, b in itertools.permutations(taken, 2) for k in keys[part::2]]
                for part in (0, 1)
            ]
            pairs = halves[0] + halves[1]
            ratio = median(
                max(us(a), us(b)) / min(us(a), us(b)) for a, b in pairs
            )  # fmt: skip
            shares = " | ".join(f"{held(pairs, d):.0%}" for d in drifts)
            learnt = [
                drift_between([
                    (taken[0][k].repeats_us, taken[1][k].repeats_us) for k in keys[part::2]
                ])
                for part in (0, 1)
            ]  # fmt: skip
            print(
                f"| {name} | {len(keys)} | {len(pairs)} | {os.getloadavg()[0]:.1f} | {ratio:.2f} "
                f"| {shares} | {learnt[0]:.1%} | {held(halves[1], learnt[0]):.0%} "
                f"| {learnt[1]:.1%}: {held(halves[0], learnt[1]):.0%} |",
                flush=True,
            )


def us(cost: Cost) -> float:
    return cost.median_us or math.nan


if __name__ == "__main__":
    main()
