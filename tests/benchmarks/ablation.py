"""What each part of a run earns: configurations of ever more parts, in equal time.

    python -m tests.benchmarks.ablation --models FILE … [--budget 40] [--threads 1]
        [--configurations bd] [--core N] [--log ablation.jsonl] [--work FOLDER]
    python -m tests.benchmarks.ablation --table ablation.jsonl …

The configurations, each with the parts of those before it:

* b: the race of whole models, mixes that follow from profiles of operator groups, isolated costs
  and the covers with the least of them;
* d: + calibration within the model.

Every run has ``--budget`` seconds from opening the model to the artifact, and begins with an empty
store of measurements. ``--core`` binds everything to one processor, so that two can work side by
side. Afterwards the artifacts of a model
run in turns, each in a process of its own and in several sets of processes; the ratio to (b) is
paired by rounds, of the processor's time at one thread and of the clock's at several. Equal covers
are timed once and marked "=". Every line of ``--log`` is one run, or the times of one model's
artifacts; what it holds already is not done again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.peers_run import Load, Peer, artifact_spec
from tests.benchmarks.peers_stats import paired_ratio
from tests.benchmarks.place import PlacingFailed, placed, print_head, print_row

SETS, ROUNDS = 3, 10
"""Sets of processes in which artifacts are timed, and rounds in each."""
WARM_S, ROUND_S = 0.02, 0.15
"""Seconds of warming up and of timed calls in a round."""
CONFIGURATIONS = {"b": "--no-in-place", "d": ""}
"""Name → options of ``collage place``."""
Line = dict[str, Any]
"""A line of the log."""


def run_line(model: Path, configuration: str, options: argparse.Namespace) -> Line:
    """Place a model in one configuration; a line of the log."""
    how = f"--threads {options.threads} --budget {options.budget:g}s"
    out = artifact_of(model, configuration, options)
    out.parent.mkdir(parents=True, exist_ok=True)
    line = {"kind": "run", **heading(model, options), "configuration": configuration}
    try:
        run = placed(model.resolve(), out, f"{how} {CONFIGURATIONS[configuration]}")
    except PlacingFailed as failure:
        return line | {"failed": str(failure)}
    parts = run["placement"]["partitions"]
    return line | {
        "seconds": run["command_s"],
        "first_answer_s": run.get("first_answer_s"),
        "measured": run["candidates"]["measured"],
        "distinct": run["candidates"]["distinct"],
        "winner": run["winner"],
        "toolchains": dict(Counter(part["toolchain"] for part in parts)),
        "cover": sorted(part["candidate"] for part in parts),
    }


def heading(model: Path, options: argparse.Namespace) -> Line:
    """What a line is about."""
    return {"model": model.stem, "threads": options.threads, "budget_s": options.budget}


def artifact_of(model: Path, configuration: str, options: argparse.Namespace) -> Path:
    """Where an artifact is kept."""
    name = f"{model.stem}-{options.threads}-{options.budget:.0f}"
    folder: Path = options.work / "artifacts" / name / configuration
    return folder


def time_artifacts(model: Path, runs: Mapping[str, Line], options: argparse.Namespace) -> Line:
    """Time the artifacts of a model in turns; a line of the log.

    Args:
        model: the model.
        runs: by configuration, its run; configurations with equal covers are timed once.
        options: of the command line.
    """
    first_with: dict[tuple[str, ...], str] = {}
    same = {name: first_with.setdefault(tuple(run["cover"]), name) for name, run in runs.items()}
    timed = sorted(set(same.values()))
    which = 1 if options.threads == 1 else 0  # processor's time, or the clock's
    times: dict[str, list[float]] = {name: [] for name in timed}
    others = []
    for number in range(SETS):
        peers: dict[str, Peer] = {}
        with tempfile.TemporaryDirectory() as scratch:
            try:
                for name in timed if number % 2 else reversed(timed):
                    spec = artifact_spec(artifact_of(model, name, options))
                    peers[name] = Peer(spec, Path(scratch))
                load = Load()
                load.start([peer.pid for peer in peers.values()])
                for turn in range(ROUNDS):
                    for name in timed if turn % 2 else reversed(timed):
                        times[name].append(peers[name].round(WARM_S, ROUND_S)[which])
                others.append(load.others())
            finally:
                for peer in peers.values():
                    peer.close()
    base = same.get("b", timed[0])
    ratios: dict[str, list[float]] = {base: [1.0] * 3}
    for name in timed:
        found = paired_ratio(times[name], times[base], launches=SETS)
        if found is not None and name != base:
            ratios[name] = [found.middle, found.low, found.high]
    return {
        "kind": "times",
        **heading(model, options),
        "us": {name: statistics.median(times[same[name]]) for name in same},
        "ratio": {name: ratios.get(same[name]) for name in same},
        "same": same,
        "others": statistics.median(others),
    }


def lines_of(path: Path) -> list[Line]:
    """The lines of a log; none where there is no such file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure(options: argparse.Namespace) -> None:
    """Place every model in every configuration and time the artifacts, but what the log holds."""
    for model in options.models:
        known = [
            line
            for line in lines_of(options.log)
            if all(line[key] == value for key, value in heading(model, options).items())
        ]
        runs = {line["configuration"]: line for line in known if line["kind"] == "run"}
        for configuration in options.configurations:
            if configuration not in runs:
                runs[configuration] = run_line(model, configuration, options)
                note(options.log, runs[configuration])
        present = {name: run for name, run in runs.items() if "failed" not in run}
        done = any(set(line["same"]) >= set(present) for line in known if line["kind"] == "times")
        if present and not done:
            note(options.log, time_artifacts(model, present, options))


def note(log: Path, line: Line) -> None:
    """Append a line to the log and print it."""
    with log.open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    print(json.dumps({key: value for key, value in line.items() if key != "cover"}), flush=True)


def print_table(lines: Sequence[Line]) -> None:
    """Print a row for each model and configuration, then the means of each configuration."""
    print_head(
        "model|threads|configuration|time against (b) [95 %]|run, s|first answer, s|measured|"
        "winner, toolchains"
    )
    keys = ("model", "threads", "budget_s")
    times = {tuple(line[k] for k in keys): line for line in lines if line["kind"] == "times"}
    ratios: dict[tuple[int, str], list[float]] = {}
    for run in lines:
        if run["kind"] != "run":
            continue
        cells = [run["model"], run["threads"], run["configuration"]]
        if "failed" in run:
            print_row([*cells, f"failed: {run['failed']}", *[""] * 4])
            continue
        timed = times.get(tuple(run[k] for k in keys))
        ratio = timed["ratio"].get(run["configuration"]) if timed is not None else None
        text = "–"
        if timed is not None and ratio is not None:
            is_same = timed["same"][run["configuration"]] != run["configuration"]
            text = "= " * is_same + "{:.3f} [{:.3f}, {:.3f}]".format(*ratio)
            ratios.setdefault((run["threads"], run["configuration"]), []).append(ratio[0])
        used = ", ".join(f"{name} {count}" for name, count in run["toolchains"].items())
        first = f"{run['first_answer_s']:.1f}" if run["first_answer_s"] else "–"
        measured = f"{run['measured']} of {run['distinct']}"
        winner = f"{run['winner']}: {used}"
        print_row([*cells, text, f"{run['seconds']:.1f}", first, measured, winner])
    print()
    print_head("threads|configuration|models|time against (b), geometric mean|best|worst")
    for (threads, configuration), some in sorted(ratios.items()):
        mean = math.exp(statistics.fmean(map(math.log, some)))
        figures = (f"{figure:.3f}" for figure in (mean, min(some), max(some)))
        print_row([threads, configuration, len(some), *figures])


def main() -> None:
    """Read the command line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--models", nargs="+", type=Path, default=[])
    options.add_argument("--budget", type=float, default=40.0, help="seconds of each run")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--configurations", default="".join(CONFIGURATIONS))
    options.add_argument("--core", type=int, help="bind everything to this processor")
    options.add_argument("--log", type=Path, default=Path("ablation.jsonl"))
    options.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "ablation")
    options.add_argument("--table", nargs="+", type=Path, help="print what these logs hold")
    given = options.parse_args()
    if given.table:
        print_table([line for path in given.table for line in lines_of(path)])
        return
    if given.core is not None:
        os.sched_setaffinity(0, {given.core})
    measure(given)


if __name__ == "__main__":
    main()
