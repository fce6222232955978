"""What each part of a run earns: configurations of ever more parts, in equal time.

    python -m tests.benchmarks.ablation --models FILE … [--budget 40] [--threads 1]
        [--configurations bd] [--core N] [--log ablation.jsonl] [--work FOLDER]
    python -m tests.benchmarks.ablation --table ablation.jsonl …

The configurations, each with the parts of those before it:

* b: the race of whole models, mixes that follow from profiles of operator groups, isolated costs
  and the covers with the least of them;
* d: + calibration within the model.

Every run has ``--budget`` seconds from opening the model to the artifact, and begins with the same
store: it holds what is measured once per machine and no candidate of the model. ``--core`` binds
everything to one processor, so that two can work side by side. Afterwards the artifacts of a model
run in turns, each in a process of its own and in several sets of processes; the ratio to (b) is
paired by rounds, of the processor's time at one thread and of the clock's at several. Equal covers
are timed once and marked "=". Every line of ``--log`` is one run, or the times of one model's
artifacts; what it holds already is not done again. ``python -m tests.benchmarks.estimates --log``
prints from it what the placements of (d) were estimated to take.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collage_engine import api
from collage_engine.machine.folders import cache_folder
from collage_engine.records.errors import CollageError
from collage_engine.records.settings import RunSettings
from tests.benchmarks.budgets import ONCE_PER_MACHINE
from tests.benchmarks.estimates import rows_of
from tests.benchmarks.peers_run import Load, Peer
from tests.benchmarks.peers_stats import paired_ratio
from tests.support.command import ROOT

SETS, ROUNDS = 3, 10
"""Sets of processes in which artifacts are timed, and rounds in each."""
WARM_S, ROUND_S = 0.02, 0.15
"""Seconds of warming up and of timed calls in a round."""
Line = dict[str, Any]
"""A line of the log."""

CONFIGURATIONS = "bd"


def settings_of(configuration: str, budget_s: float, threads: int) -> RunSettings:
    """The settings of a run of this configuration that lasts so long."""
    return RunSettings(threads=threads, budget_s=budget_s, in_place=configuration == "d")


def place_here(given: Mapping[str, Any]) -> Line:
    """Place a model in this process; what counts of the run."""
    settings = settings_of(given["configuration"], given["budget_s"], given["threads"])
    answers: list[float] = []
    began = time.monotonic()

    def listen(event: object) -> None:
        if type(event).__name__ == "Provisional":
            answers.append(time.monotonic() - began)

    with api.open_model(given["model"], listener=listen) as session:
        run = session.place(settings, out=given["out"], spent_s=time.monotonic() - began)
    assert run.placement is not None
    used = Counter(part.toolchain for part in run.placement.partitions)
    return {
        "seconds": time.monotonic() - began,
        "first_answer_s": answers[0] if answers else None,
        "stages_s": {name: round(s, 1) for name, s in run.seconds.items()},
        "measured": run.candidates.measured,
        "distinct": run.candidates.distinct,
        "winner": run.winner,
        "toolchains": dict(used),
        "cover": sorted(part.candidate for part in run.placement.partitions),
        "run_us": run.placement.measured_us,
        "estimates": rows_of(run),
        "ended": run.ended,
        "confirmation": run.confirmation,
        "busy": [state.busy for state in run.machine if state.busy],
    }


def in_child(given: Mapping[str, Any], cache: Path) -> Line:
    """Place a model in a process of its own, with a cache of its own."""
    environment = {
        **os.environ,
        "COLLAGE_CACHE_DIR": str(cache),
        # Compiled runtimes lie where the probes found them.
        "COLLAGE_BUILD_DIR": given["build_folder"],
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.ablation", "--place", json.dumps(given)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [""])[-1][:300]}
    found: Line = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def machine_cache(work: Path, threads: int) -> Path:
    """A cache with what is measured once per machine, by placing mnist; made if need be."""
    base = work / f"machine-{threads}"
    if (base / "done").exists():
        return base
    base.mkdir(parents=True, exist_ok=True)
    for part in ONCE_PER_MACHINE:
        if (cache_folder() / part).is_dir():
            shutil.copytree(cache_folder() / part, base / part, symlinks=True, dirs_exist_ok=True)
    mnist = ROOT / "resources" / "models" / "mnist.onnx"
    given = {
        "model": str(mnist),
        "configuration": "d",
        "budget_s": 120.0,
        "threads": threads,
        "out": None,
        "build_folder": str(base / "native"),
    }
    made = in_child(given, base)
    if "failed" in made:
        raise SystemExit(f"mnist cannot be placed: {made['failed']}")
    (base / "done").write_text("")
    return base


def place(model: Path, configuration: str, options: argparse.Namespace) -> Line:
    """Place a model in one configuration; a line of the log."""
    machine = machine_cache(options.work, options.threads)
    out = artifact_of(model, configuration, options)
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    given = {
        "model": str(model),
        "configuration": configuration,
        "budget_s": options.budget,
        "threads": options.threads,
        "out": str(out),
        "build_folder": str(machine / "native"),
    }
    with tempfile.TemporaryDirectory(prefix="ablation-", dir=options.work) as scratch:
        cache = Path(scratch) / "cache"
        shutil.copytree(machine, cache, symlinks=True)
        found = in_child(given, cache)
    return {"kind": "run", **heading(model, options), "configuration": configuration, **found}


def heading(model: Path, options: argparse.Namespace) -> Line:
    """What a line is about."""
    return {"model": model.stem, "threads": options.threads, "budget_s": options.budget}


def artifact_of(model: Path, configuration: str, options: argparse.Namespace) -> Path:
    """Where an artifact is kept until the artifacts of its model are timed."""
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
    base = same["b"] if "b" in same else timed[0]
    ratios: dict[str, list[float]] = {}
    for name in timed:
        found = paired_ratio(times[name], times[base], launches=SETS)
        if found is not None:
            ratios[name] = [1.0] * 3 if name == base else [found.middle, found.low, found.high]
    return {
        "kind": "times",
        **heading(model, options),
        "clock": "wall" if options.threads > 1 else "cpu",
        "us": {name: statistics.median(times[same[name]]) for name in same},
        "ratio": {name: ratios.get(same[name]) for name in same},
        "same": same,
        "others": statistics.median(others),
    }


def artifact_spec(folder: Path) -> Line:
    """How ``peers_child`` loads an artifact."""
    manifest = json.loads((folder / "manifest.json").read_text())
    return {
        "kind": "artifact",
        "folder": str(folder),
        "threads": manifest["threads"],
        "inputs": str(folder / "sample_input.npz"),
        "outputs": str(folder / "sample_output.npz"),
        "output_names": [about["name"] for about in manifest["outputs"]],
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
                runs[configuration] = place(model, configuration, options)
                note(options.log, runs[configuration])
        present = {name: run for name, run in runs.items() if "failed" not in run}
        there = all(artifact_of(model, name, options).is_dir() for name in present)
        done = any(set(line["same"]) >= set(present) for line in known if line["kind"] == "times")
        if present and there and not done:
            try:
                note(options.log, time_artifacts(model, present, options))
            except (CollageError, OSError, RuntimeError) as error:
                print(f"{model.stem}: its artifacts cannot be timed: {error}", file=sys.stderr)
                continue
        if not options.keep:
            for name in present:
                shutil.rmtree(artifact_of(model, name, options), ignore_errors=True)


def note(log: Path, line: Line) -> None:
    """Append a line to the log and print it."""
    with log.open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    shown = {key: value for key, value in line.items() if key not in ("cover", "stages_s")}
    print(json.dumps(shown), flush=True)


def print_table(lines: Sequence[Line]) -> None:
    """Print a row for each model and configuration, then the means of each configuration."""
    print(
        "| model | threads | configuration | time against (m) [95 %] | run, s | first answer, s "
        "| measured | winner, toolchains |"
    )
    print("|---|---|---|---|---|---|---|---|")
    runs = {
        (line["model"], line["threads"], line["budget_s"], line["configuration"]): line
        for line in lines
        if line["kind"] == "run"
    }
    times = {
        (line["model"], line["threads"], line["budget_s"]): line
        for line in lines
        if line["kind"] == "times"
    }
    ratios: dict[tuple[int, str], list[float]] = {}
    seconds: dict[tuple[int, str], list[float]] = {}
    for (model, threads, budget_s, configuration), run in sorted(runs.items()):
        start = f"| {model} | {threads} | {configuration} |"
        if "failed" in run:
            print(f"{start} failed: {run['failed']} | | | | |")
            continue
        timed = times.get((model, threads, budget_s))
        ratio = timed["ratio"].get(configuration) if timed is not None else None
        text = "–"
        if timed is not None and ratio is not None:
            text = f"{ratio[0]:.3f} [{ratio[1]:.3f}, {ratio[2]:.3f}]"
            if timed["same"][configuration] != configuration:
                text = f"= {timed['same'][configuration]} {ratio[0]:.3f}"
            ratios.setdefault((threads, configuration), []).append(ratio[0])
            seconds.setdefault((threads, configuration), []).append(run["seconds"])
        used = ", ".join(f"{name} {count}" for name, count in run["toolchains"].items())
        first = f"{run['first_answer_s']:.1f}" if run["first_answer_s"] else "–"
        print(
            f"{start} {text} | {run['seconds']:.1f} | {first} | {run['measured']} of "
            f"{run['distinct']} | {run['winner']}: {used} |"
        )
    print(
        "\n| threads | configuration | models | time against (m), geometric mean | best | worst "
        "| run, s, median |\n|---|---|---|---|---|---|---|"
    )
    for (threads, configuration), some in sorted(ratios.items()):
        mean = math.exp(statistics.fmean(map(math.log, some)))
        print(
            f"| {threads} | {configuration} | {len(some)} | {mean:.4f} | {min(some):.3f} "
            f"| {max(some):.3f} | {statistics.median(seconds[threads, configuration]):.1f} |"
        )


def main() -> None:
    """Read the command line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--models", nargs="+", type=Path, default=[])
    options.add_argument("--budget", type=float, default=40.0, help="seconds of each run")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--configurations", default=CONFIGURATIONS)
    options.add_argument("--core", type=int, help="bind everything to this processor")
    options.add_argument("--log", type=Path, default=Path("ablation.jsonl"))
    options.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "ablation")
    options.add_argument("--keep", action="store_true", help="keep the artifacts")
    options.add_argument("--table", nargs="+", type=Path, help="print what these logs hold")
    options.add_argument("--place", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.place:
        print(json.dumps(place_here(json.loads(given.place))))
        return
    if given.table:
        print_table([line for path in given.table for line in lines_of(path)])
        return
    if given.core is not None:
        os.sched_setaffinity(0, {given.core})
    given.models = [path.resolve() for path in given.models]
    given.work = given.work.resolve()
    measure(given)


if __name__ == "__main__":
    main()
