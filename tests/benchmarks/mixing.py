"""What mixing toolchains could win at most, and what simple mixes do win, model by model.

    python -m tests.benchmarks.mixing FILE.onnx … [--threads 1] [--log mixing.jsonl]
    python -m tests.benchmarks.mixing --table mixing.jsonl

For each model, each toolchain alone is built and timed first, as a run does. Then the model is cut
into the groups of TVM's FuseOps, and profiles tell what each group takes on each toolchain
*inside the model* (``trials.mixes``). From these times follow:

* the bound: the sum, over all groups, of the least time that any toolchain took. No cover whose
  partitions are these groups can be faster, launches and hand-overs left out;
* mixes: those that a run would try, and further ones that promise nothing. They are built and timed
  in interleaved rounds with the two fastest toolchains alone.

Each line of the log is one model; models that it holds already are not done again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import threading
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.budget import RunBudget
from collage_engine.control.run_control import RunControl
from collage_engine.machine.clocks import machine_state
from collage_engine.records.errors import CollageError
from collage_engine.records.settings import RunSettings
from collage_engine.run.stages.enumerate import enumerate_candidates
from collage_engine.run.stages.mixes import Mixing
from collage_engine.run.stages.samples import draw_samples
from collage_engine.run.stages.whole_models import race_whole_models, timed
from collage_engine.run.task import RunTask
from collage_engine.trials.contender import Contender
from collage_engine.trials.mixes import Mix, MixSettings
from collage_engine.trials.race import Race

Line = dict[str, Any]
"""A line of the log."""

BUDGET_S = 120.0
"""Seconds that the stage of whole models is told the run has: three quarters of it at most."""
EVERYTHING = MixSettings(
    least_group_share=0.0, moved_groups=(1, 3, 8, 1000), least_gain=-math.inf, most=10
)
"""All groups on all toolchains, and mixes whatever they promise."""
ROUNDS = 16
"""Common rounds of those that are near the fastest."""


class Study:
    """One model: its groups, what each toolchain takes for them, and the mixes that follow."""

    def __init__(self, model: Path, threads: int) -> None:
        self.model = model
        self.settings = RunSettings(threads=threads, budget_s=BUDGET_S)
        self.opened = OpenModel(str(model), {})

    def line(self) -> Line:
        """Do everything; what the log keeps."""
        began = time.monotonic()
        control = RunControl(lambda event: None, threading.Event(), threading.Event())
        with control:
            budget = RunBudget.of(self.settings, 0.0)
            control.ends_at = budget.ends_at
            task = RunTask(
                open_model=self.opened,
                settings=self.settings,
                pins=(),
                out=None,
                run_id="mixing",
                previous=None,
                started_at=datetime.now(UTC).isoformat(timespec="seconds"),
                machine_before=machine_state(),
            )
            menu, data = enumerate_candidates(task, budget, control)
            samples = draw_samples(task, control)
            raced = race_whole_models(task, menu, data, samples, budget, control)
            whole_s = time.monotonic() - began
            race = raced.race
            race.ends_at = math.inf
            whole = [one for one in timed(race.results()) if one.contender.eligible]
            mixing = Mixing(task, menu, raced.data, samples.tolerance, race, EVERYTHING)
            with control.stage("mixes") as report:
                times = mixing.profiled(math.inf, report)
            profile_s = time.monotonic() - began - whole_s
            alone = [one.contender for one in whole if len(one.contender.cover) == 1]
            rows = self.time(race, alone[:2], mixing.mixes(times))
        return {
            "model": self.model.stem,
            "threads": self.settings.threads,
            "operators": len(self.opened.model.graph.operators),
            "groups": len(mixing.groups),
            "whole_us": {one.contender.name: one.measured_us for one in whole},
            "whole_s": whole_s,
            "sums_us": {
                name: sum(taken.get(name, min(taken.values())) for taken in times.us.values())
                for name in mixing.taken
            },
            "bound_us": times.bound_us,
            "profile_s": profile_s,
            "rows": rows,
            "seconds": time.monotonic() - began,
        }

    def time(self, race: Race, alone: Sequence[Contender], mixes: Sequence[Mix]) -> list[Line]:
        """Time the mixes beside the fastest toolchains alone."""
        contenders = list(alone)
        for mix in mixes:
            used = Counter(candidate.instance.id for candidate in mix.cover)
            name = ", ".join(f"{count} on {name}" for name, count in used.most_common())
            contenders.append(Contender(name=name, kind="collage", cover=mix.cover))
        race.enter(contenders)
        for _ in range(ROUNDS):
            race.round()
        results = {one.contender.module: one for one in race.results()}
        best_us = min(results[one.module].measured_us or math.inf for one in alone)
        rows = []
        for contender in contenders:
            result = results[contender.module]
            row: Line = {
                "name": contender.name,
                "partitions": len(contender.cover),
                "toolchains": dict(Counter(c.instance.id for c in contender.cover)),
                "failure": result.reason,
            }
            if result.measured_us is not None:
                row |= {"us": result.measured_us, "ratio": result.measured_us / best_us}
            rows.append(row)
        return rows


def print_table(lines: Sequence[Line]) -> None:
    """Print a row for each model."""
    print(
        "| model | groups | fastest alone, µs | sum of its groups | bound, µs | bound against it "
        "| best mix against it | partitions of that mix |\n|---|---|---|---|---|---|---|---|"
    )
    gains: list[float] = []
    for line in lines:
        alone = [row for row in line["rows"] if row["partitions"] == 1 and row.get("us")]
        mixes = [row for row in line["rows"] if row["partitions"] > 1 and row.get("ratio")]
        if not alone or not mixes:
            print(f"| {line['model']} | {line['groups']} | could not be timed | | | | | |")
            continue
        fastest = min(alone, key=lambda row: row["us"])
        mix = min(mixes, key=lambda row: row["ratio"])
        base = fastest["name"]
        trial_us = line["whole_us"].get(base) or fastest["us"]
        gains.append(mix["ratio"])
        used = ", ".join(f"{name} {count}" for name, count in mix["toolchains"].items())
        sums = line["sums_us"].get(base)
        print(
            f"| {line['model']} | {line['groups']} | {base} {trial_us:.0f} "
            f"| {f'{sums:.0f}' if sums else '–'} | {line['bound_us']:.0f} "
            f"| {line['bound_us'] / trial_us - 1:+.1%} | {mix['ratio'] - 1:+.1%} | {used} |"
        )
    if gains:
        won = sum(gain <= 0.97 for gain in gains)
        print(
            f"\nIn {won} of {len(gains)} models the best mix takes at least 3 % less than the "
            f"fastest toolchain alone; median {statistics.median(gains) - 1:+.1%}."
        )


def main() -> None:
    """Read the command line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("models", nargs="*", type=Path)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--log", type=Path, default=Path("mixing.jsonl"))
    options.add_argument("--table", type=Path, help="print what this log holds")
    given = options.parse_args()
    path: Path = given.table or given.log
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if given.table is None:
        known = {(line["model"], line["threads"]) for line in lines}
        for model in given.models:
            if (model.stem, given.threads) in known:
                continue
            try:
                lines.append(Study(model.resolve(), given.threads).line())
            except (CollageError, OSError) as error:
                print(f"{model.stem}: {error}", flush=True)
                continue
            with path.open("a") as stream:
                stream.write(json.dumps(lines[-1]) + "\n")
            print_table(lines[-1:])
    else:
        print_table(lines)


if __name__ == "__main__":
    main()
