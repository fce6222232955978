"""What mixing toolchains could win at most, and what simple mixes do win, model by model.

    python -m tests.benchmarks.mixing FILE.onnx … [--threads 1] [--log mixing.jsonl]
    python -m tests.benchmarks.mixing --table mixing.jsonl

For each model, each toolchain alone is built and timed first, as a run does. Then the model is cut
into the groups of TVM's FuseOps, and for each toolchain one cover is built in which it runs every
group that it has a candidate for (TVM runs the others). A profile of that cover tells what each
group takes on that toolchain *inside the model*. From these times follow:

* the bound: the sum, over all groups, of the least time that any toolchain took. No cover made of
  these groups can be faster, launches and hand-overs left out;
* mixes: the cover with the fastest toolchain for each group, and covers in which the toolchain that
  is fastest alone runs everything but the few groups where another one saves most, with partitions
  of equal neighbours merged. They are built and timed in interleaved rounds with the two fastest
  toolchains alone.

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
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.budget import RunBudget
from collage_engine.control.run_control import RunControl
from collage_engine.model.index_set import members
from collage_engine.partition.call_graph import CallGraph, call_graph
from collage_engine.partition.candidate import make_candidate
from collage_engine.partition.fuse_ops import fuse_ops
from collage_engine.partition.regions import merge_regions
from collage_engine.records.candidate import Candidate
from collage_engine.records.errors import CollageError
from collage_engine.records.numbering import OperatorNumber
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.stage import Facts, run_stages
from collage_engine.run.stages.enumerate import Enumerate
from collage_engine.run.stages.samples import DrawSamples
from collage_engine.run.stages.whole_models import TimeWholeModels
from collage_engine.run.trials_of_run import trial_runner
from collage_engine.trials.contender import Contender
from collage_engine.trials.objective import trial_settings
from collage_engine.trials.placement_process import PlacementProcess
from collage_engine.trials.proposals import Proposal
from collage_engine.trials.rounds import InterleavedRounds, WithdrawalSettings, median_of
from collage_engine.trials.runner import TrialRunner
from tests.benchmarks.peers_stats import paired_ratio

Group = tuple[OperatorNumber, ...]
Line = dict[str, Any]
"""A line of the log."""

BUDGET_S = 120.0
"""Seconds that the stage of whole models is told the run has: three quarters of it at most."""
PROFILES, RUNS = 3, 5
"""Profiles of each cover, and runs of the model in each."""
DEVIATIONS = (1, 3, 8, 1000)
"""Numbers of groups, those with the largest saving first, that leave the fastest toolchain."""
LEAST_SAVING_US, LEAST_SAVING_SHARE = 5.0, 0.003
"""A group leaves it only where that saves so many microseconds and this share of the model."""
ROUNDS, ROUNDS_S = 16, 60.0
"""Interleaved rounds, and seconds for all of them together at most."""
FACTOR = 1.35
"""Toolchains alone that take so many times the fastest are no base of a mix."""


class Study:
    """One model: its groups, what each toolchain takes for them, and the mixes that follow."""

    def __init__(self, model: Path, threads: int) -> None:
        self.model = model
        self.settings = RunSettings(threads=threads, budget_s=BUDGET_S)
        self.opened = OpenModel(str(model), {})
        self.times: dict[Group, dict[str, float]] = {}
        """By group and toolchain instance, µs inside the model."""
        self.sums: dict[str, float] = {}
        """By instance, the sum over all groups in the cover that favours it."""

    def line(self) -> Line:
        """Do everything; what the log keeps."""
        began = time.monotonic()
        control = RunControl(lambda event: None, threading.Event(), threading.Event())
        with control:
            budget = RunBudget.of(self.settings, 0.0)
            control.ends_at = budget.ends_at
            facts: Facts = {
                "budget": budget,
                "previous": None,
                "exchange": None,
                "open_model": self.opened,
                "settings": self.settings,
                "pins": (),
                "out": None,
                "run_id": "mixing",
                "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            facts = run_stages([Enumerate(), DrawSamples(), TimeWholeModels()], facts, control)
            whole_s = time.monotonic() - began
            whole = [one for one in facts["whole_models"].timed if one.contender.eligible]
            with trial_runner(
                "mixing",
                self.opened,
                [facts["sample"]],
                facts["tolerance"],
                control,
                trial_settings(self.settings),
                modules=facts["whole_models"].modules,
            ) as runner:
                self.profile(runner, facts)
                profile_s = time.monotonic() - began - whole_s
                alone = [one.contender for one in whole if len(one.contender.cover) == 1]
                rows = self.time(runner, alone[:2], facts)
        return {
            "model": self.model.stem,
            "threads": self.settings.threads,
            "operators": len(self.opened.model.graph.operators),
            "groups": len(self.groups),
            "whole_us": {one.contender.name: one.measured_us for one in whole},
            "whole_s": whole_s,
            "sums_us": self.sums,
            "bound_us": sum(min(found.values()) for found in self.times.values()),
            "profile_s": profile_s,
            "rows": rows,
            "seconds": time.monotonic() - began,
        }

    @property
    def calls(self) -> CallGraph:
        """The operators and what they pass to each other."""
        return call_graph(self.opened.model.graph)

    @property
    def groups(self) -> list[Group]:
        """The groups of FuseOps, without those of constants only."""
        graph = self.opened.model.graph
        return [
            found for one in fuse_ops(graph, "relax") if (found := tuple(graph.to_operators(one)))
        ]

    def candidate(self, instance: ToolchainInstance, group: Sequence[OperatorNumber]) -> Candidate:
        """The group on a toolchain."""
        return make_candidate(self.opened.model.graph, instance, tuple(group), rule="fuseops")

    def profile(self, runner: TrialRunner, facts: Facts) -> None:
        """Find out what every group takes inside the model, toolchain by toolchain."""
        menu, groups = facts["menu"], self.groups
        defaults = [one for one in menu.sources if not one.instance.config]
        native = next(one.instance for one in defaults if one.lowers_to_tir)
        known = {(one.instance.id, tuple(one.nodes)) for one in facts["data"].candidates}
        for source in defaults:
            own = {g for g in groups if (source.instance.id, g) in known}
            if source.instance == native:
                own = set(groups)
            if not own:
                continue
            cover = tuple(
                self.candidate(source.instance if g in own else native, g) for g in groups
            )
            proposal = Proposal(cover=cover, profiles=PROFILES, runs_per_profile=RUNS)
            trial = runner.run(proposal)
            if trial.failures:
                continue
            self.sums[source.instance.id] = sum(trial.partitions_us.values())
            for group, candidate in zip(groups, cover, strict=True):
                taken = trial.partitions_us[candidate.id]
                found = self.times.setdefault(group, {})
                name = candidate.instance.id
                found[name] = min(taken, found.get(name, math.inf))

    def mixes(self, bases: Sequence[str], facts: Facts) -> dict[str, tuple[Candidate, ...]]:
        """Covers that could win, by a name that says what they are."""
        by_id = {one.instance.id: one.instance for one in facts["menu"].sources}
        fastest = {g: min(found, key=lambda name: found[name]) for g, found in self.times.items()}
        covers = {
            "fastest of each group": tuple(
                self.candidate(by_id[name], group) for group, name in fastest.items()
            )
        }
        for base in bases:
            saved = {
                group: found[base] - min(found.values())
                for group, found in self.times.items()
                if base in found
            }
            least = max(
                LEAST_SAVING_US,
                LEAST_SAVING_SHARE
                * sum(found[base] for found in self.times.values() if base in found),
            )
            worth = sorted((g for g in saved if saved[g] > least), key=lambda g: -saved[g])
            for count in DEVIATIONS:
                chosen = set(worth[:count])
                if chosen:
                    pick: dict[Group, str] = {
                        g: fastest[g] if g in chosen else base for g in self.times
                    }
                    covers[f"{base} but {len(chosen)}"] = self.merged(pick, by_id)
        return covers

    def merged(
        self, pick: dict[Group, str], by_id: dict[str, ToolchainInstance]
    ) -> tuple[Candidate, ...]:
        """The cover in which every group runs where it is said, equal neighbours merged."""
        owner: list[str | None] = [None] * self.calls.size
        for group, name in pick.items():
            for operator in group:
                owner[operator] = name
        return tuple(
            self.candidate(by_id[str(name)], tuple(map(OperatorNumber, members(bits))))
            for name, bits in merge_regions(self.calls, owner)
        )

    def time(self, runner: TrialRunner, alone: Sequence[Contender], facts: Facts) -> list[Line]:
        """Time the mixes beside the fastest toolchains alone."""
        bases = [one.cover[0].instance.id for one in alone]
        contenders = list(alone)
        seen: set[frozenset[str]] = set()
        for name, cover in self.mixes(bases, facts).items():
            key = frozenset(candidate.id for candidate in cover)
            if key not in seen and len(cover) > 1:
                seen.add(key)
                contenders.append(Contender(name=name, kind="collage", cover=cover))
        processes = [runner.process(contender) for contender in contenders]
        runner.build(processes)
        runner.load(processes)
        present = [one for one in processes if one.loaded and one.failure is None]
        taken = InterleavedRounds(
            present, runner.timed_round, lambda one: True, WithdrawalSettings()
        ).run(ROUNDS, ROUNDS_S)
        first: Callable[[PlacementProcess], float] = lambda one: median_of(taken[one])  # noqa: E731
        best = min((one for one in present if one.contender in alone), key=first, default=None)
        rows = []
        for one in processes:
            row: Line = {
                "name": one.contender.name,
                "partitions": len(one.contender.cover),
                "toolchains": dict(Counter(c.instance.id for c in one.contender.cover)),
                "failure": one.failure,
            }
            if one in taken and best is not None:
                row["us"] = median_of(taken[one])
                rounds = min(len(taken[one]), len(taken[best]))
                ratio = paired_ratio(taken[one][:rounds], taken[best][:rounds], launches=1)
                if ratio is not None:
                    row["ratio"] = [ratio.middle, ratio.low, ratio.high]
            rows.append(row)
        return rows


def print_table(lines: Sequence[Line]) -> None:
    """Print a row for each model."""
    print(
        "| model | groups | fastest alone, µs | sum of its groups | bound, µs | bound against it "
        "| best mix against it [95 %] | partitions of that mix |\n|---|---|---|---|---|---|---|---|"
    )
    gains: list[float] = []
    for line in lines:
        alone = [row for row in line["rows"] if row["partitions"] == 1 and row.get("us")]
        mixes = [row for row in line["rows"] if row["partitions"] > 1 and row.get("ratio")]
        if not alone or not mixes:
            print(f"| {line['model']} | {line['groups']} | could not be timed | | | | | |")
            continue
        fastest = min(alone, key=lambda row: row["us"])
        mix = min(mixes, key=lambda row: row["ratio"][0])
        base = fastest["name"]
        trial_us = line["whole_us"].get(base) or fastest["us"]
        gains.append(mix["ratio"][0])
        low, high = mix["ratio"][1:]
        used = ", ".join(f"{name} {count}" for name, count in mix["toolchains"].items())
        sums = line["sums_us"].get(base)
        print(
            f"| {line['model']} | {line['groups']} | {base} {trial_us:.0f} "
            f"| {f'{sums:.0f}' if sums else '–'} | {line['bound_us']:.0f} "
            f"| {line['bound_us'] / trial_us - 1:+.1%} | {mix['ratio'][0] - 1:+.1%} "
            f"[{low - 1:+.1%}, {high - 1:+.1%}] | {used} |"
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
