"""Our artifact against other runtimes, each as its users run it, interleaved by rounds.

``python -m tests.benchmarks.peers MODEL … [--threads 1,2] [--rounds 50]
[--precision float32|bf16 --tolerance T] [--cache DIR] [--out results.json]``
``python -m tests.benchmarks.peers --table results.json`` prints a results file as Markdown.

A model is a name of ``tests.zoo`` or an .onnx file. Each is placed by ``collage place`` and its
artifact run through its own loader, in turn with ONNX Runtime (its Python session, inputs and
outputs bound once) and OpenVINO (a compiled model in float32, or bfloat16 where said). Every
runtime has the same number of threads and a process of its own that sleeps while another runs, and
is started anew for each launch of some rounds: two processes with the same module differ by a few
percent throughout, which no number of rounds would average out. At one thread processor time
decides, at several the wall clock. ``--out`` is written after every model; what it holds is not
measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collage_engine.machine.device import device
from collage_engine.machine.worker import Worker, WorkerError
from tests import zoo
from tests.support.command import collage

OURS, FLOAT32 = "collage", "float32"
RIGHT = {FLOAT32: 1e-3, "bf16": 5e-2}
"""Largest relative error with which a runtime still takes part in the verdict."""
REST_S, WARM_S, ROUND_S = 0.08, 0.02, 0.1
"""Seconds between rounds (threads of some runtimes spin for 0.06 after a call), of a round's
warming up, and of its timed calls."""
RUNTIME, TIMEOUT_S = "tests.benchmarks.peers_child:Runtime", 600.0
"""What a process of a runtime is, and the seconds that it may take to load or for a round."""
OTHERS_SETTINGS = ("OMP_", "GOMP_", "KMP_", "TVM_", "MKL_", "OPENBLAS_")
"""How settings of threads begin in the environment, which are no business of another runtime."""
RESAMPLES = 4000
"""Resamples of the bootstrap that gives a ratio's interval; chosen."""

Entry = dict[str, Any]
"""One model at one thread count and precision."""


class PlacingFailed(Exception):
    """``collage place`` ended with an error; the last line of what it said."""


def model_file(name: str, folder: Path) -> Path:
    """Return the .onnx file of a model given by name or path."""
    if name.endswith(".onnx"):
        return Path(name).resolve()
    path = folder / f"{name}.onnx"
    path.write_bytes(zoo.build(name).SerializeToString(deterministic=True))
    return path


def placed(model: Path, out: Path, options: str, reuse: bool) -> dict[str, Any]:
    """Place a model, and return the document that ``collage place --json`` printed.

    It is kept next to the artifact, and may be reused.

    Raises:
        PlacingFailed: The command failed.
    """
    kept = out.with_suffix(".json")
    if not (reuse and kept.exists() and out.exists()):
        shutil.rmtree(out, ignore_errors=True)
        done = collage(f"place {model} -o {out} --json {options}", timeout=None)
        if done.returncode:
            raise PlacingFailed((done.stderr.strip().splitlines() or ["no message"])[-1])
        kept.write_text(done.stdout)
    document: dict[str, Any] = json.loads(kept.read_text())
    return document


def specs_of(model: Path, artifact: Path, threads: int, precision: str) -> list[dict[str, Any]]:
    """Return every runtime that is to run, ours first."""
    runtimes = [
        (OURS, "artifact", precision),
        ("onnxruntime", "onnxruntime", FLOAT32),
        ("openvino", "openvino", FLOAT32),
    ]
    if precision != FLOAT32:
        runtimes.append((f"openvino {precision}", "openvino", precision))
    manifest = json.loads((artifact / "manifest.json").read_text())
    about = {
        "folder": str(artifact),
        "model": str(model),
        "threads": threads,
        "inputs": str(artifact / "sample_input.npz"),
        "outputs": str(artifact / "sample_output.npz"),
        "output_names": [output["name"] for output in manifest["outputs"]],
    }
    return [about | {"name": n, "kind": kind, "precision": p} for n, kind, p in runtimes]


def measure(name: str, threads: int, keep: Path, options: argparse.Namespace) -> Entry:
    """Place, build, time: one row."""
    model = model_file(name, keep)
    artifact = keep / f"{model.stem}-{threads}-{options.precision}"
    how = f"--threads {threads} --budget {options.budget} --tune-budget {options.tune_budget} "
    how += f"--precision {options.precision}"
    how += f" --tolerance {options.tolerance}" if options.tolerance else ""
    placement = placed(model, artifact, how, options.reuse)["placement"]
    runtimes: dict[str, dict[str, Any]] = {}
    samples: dict[str, list[tuple[float, float]]] = {}
    order = random.Random(0)
    for launch in range(options.launches):
        peers: dict[str, Worker] = {}
        try:
            for spec in specs_of(model, artifact, threads, options.precision):
                about = runtimes.setdefault(spec["name"], {"precision": spec["precision"]})
                if about.get("reason"):
                    continue
                peer = Worker(RUNTIME)
                try:
                    version, error = peer.call(spec, TIMEOUT_S)
                except WorkerError as failure:
                    peer.close()
                    if spec["name"] == OURS:
                        raise
                    about["reason"] = str(failure)
                    continue
                peers[spec["name"]] = peer
                about |= {"version": version, "error": error}
                if not error <= max(options.tolerance or 0.0, RIGHT[spec["precision"]]):
                    about["reason"] = f"wrong numbers: max_rel_error {error:.2g}"
            least, more = divmod(options.rounds, options.launches)
            for _ in range(least + (launch < more)):
                for each in order.sample(list(peers), len(peers)):
                    time.sleep(REST_S)
                    samples.setdefault(each, []).append(
                        peers[each].call((WARM_S, ROUND_S), TIMEOUT_S)
                    )
        finally:
            for peer in peers.values():
                peer.close()
    used = [part["toolchain"] for part in placement["partitions"]]
    entry = {
        "model": name,
        "threads": threads,
        "precision": options.precision,
        "launches": options.launches,
        "toolchains": {toolchain: used.count(toolchain) for toolchain in dict.fromkeys(used)},
        "runtimes": runtimes,
        "samples": samples,
    }
    entry["best"] = compared(entry, options.precision)
    entry["best_float32"] = None if options.precision == FLOAT32 else compared(entry, FLOAT32)
    return entry


def times_us(entry: Entry, runtime: str) -> list[float]:
    """Return the rounds of a runtime, by the clock that decides."""
    wall_or_cpu = 1 if entry["threads"] == 1 else 0
    return [pair[wall_or_cpu] for pair in entry["samples"].get(runtime, ())]


def compared(entry: Entry, precision: str) -> tuple[str, list[float]] | None:
    """Return the fastest other at this precision, and ours over it with the 95 % interval."""
    medians = {
        name: statistics.median(times_us(entry, name))
        for name, about in entry["runtimes"].items()
        if name != OURS and about["precision"] == precision and not about.get("reason")
    }
    ours = times_us(entry, OURS)
    if not medians or len(ours) < 3:
        return None
    best = min(medians, key=lambda name: medians[name])
    return best, paired_ratio(ours, times_us(entry, best), entry["launches"])


def paired_ratio(a: Sequence[float], b: Sequence[float], launches: int) -> list[float]:
    """Return the median over common rounds of ``a[k] / b[k]``, and its 95 % bootstrap interval.

    Efron's percentile bootstrap with a fixed seed: equal data, equal verdict. Launches are drawn
    first, then the rounds of each: what differs between processes is part of the interval.
    """
    ratios = np.divide(a, b)
    groups = [group for group in np.array_split(ratios, launches) if group.size]
    draw = np.random.default_rng(0)
    medians = []
    for _ in range(RESAMPLES):
        drawn = [
            draw.choice(groups[g], groups[g].size) for g in draw.choice(len(groups), len(groups))
        ]
        medians.append(np.median(np.concatenate(drawn)))
    return [float(np.median(ratios)), *map(float, np.percentile(medians, [2.5, 97.5]))]


def cells_of(entry: Entry, names: list[str]) -> list[str]:
    """Return the row of an entry."""
    cells = [entry["model"]]
    for name in names:
        times = times_us(entry, name)
        text = f"{statistics.median(times) / 1000:.4g}" if times else "–"
        cells.append(text + " *" * bool(entry["runtimes"].get(name, {}).get("reason")))
    for verdict in (entry["best"], entry["best_float32"]):
        if verdict is None:
            cells.append("–")
            continue
        share = [f"{100 * (ratio - 1):+.1f} %".replace("-", "−") for ratio in verdict[1]]
        cells.append(f"{share[0]} [{share[1]}, {share[2]}], {verdict[0]}")
    cells.append(", ".join(f"{name} {count}" for name, count in entry["toolchains"].items()))
    return cells


def print_tables(entries: list[Entry]) -> None:
    """Print a table for each thread count and precision, times in ms, and why some have none."""
    for group in sorted({(entry["threads"], entry["precision"]) for entry in entries}):
        some = [entry for entry in entries if (entry["threads"], entry["precision"]) == group]
        names = [OURS, *sorted({name for entry in some for name in entry["runtimes"]} - {OURS})]
        print(f"\n**{group[0]} thread(s), {group[1]}**, ms:\n")
        against = "ours against the best other|against the best of float32"
        titles = "|".join(["model", *names, against, "placed on"]).split("|")
        for cells in (titles, ["---"] * len(titles), *(cells_of(entry, names) for entry in some)):
            print(f"| {' | '.join(cells)} |", flush=True)
        for entry in some:
            for name, about in entry["runtimes"].items():
                if about.get("reason"):
                    print(f"- \\* {name} on {entry['model']}: {about['reason']}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--threads", default="1,2", help="thread counts (default: 1,2)")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--launches", type=int, default=5, help="each for a share of the rounds")
    parser.add_argument("--precision", default=FLOAT32, choices=tuple(RIGHT))
    parser.add_argument("--tolerance", type=float, help="given to place, with --precision")
    parser.add_argument("--budget", default="10m", help="place's time for measuring")
    parser.add_argument("--tune-budget", default="0s", help="place's time for tuning TVM")
    parser.add_argument("--cache", type=Path, help="measurements, models and artifacts")
    parser.add_argument("--reuse", action="store_true", help="do not place again what is in cache")
    parser.add_argument("--out", type=Path, default=Path("peers.json"))
    parser.add_argument("--table", type=Path, metavar="FILE", help="only print this file's table")
    options = parser.parse_args()
    path: Path = options.table or options.out
    entries: list[Entry] = json.loads(path.read_text()) if path.exists() else []
    if not options.table:
        measure_all(entries, options)
    print_tables(entries)


def measure_all(entries: list[Entry], options: argparse.Namespace) -> None:
    """Add what was not measured yet, and write it after every model."""
    print(f"{device().description}, load average {os.getloadavg()[0]:.2f}", flush=True)
    for name in [name for name in os.environ if name.startswith(OTHERS_SETTINGS)]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as scratch:
        keep = (options.cache or Path(scratch)).resolve() / "peers"
        keep.mkdir(parents=True, exist_ok=True)
        os.environ["COLLAGE_CACHE_DIR"] = str(keep.parent)
        for threads in map(int, options.threads.split(",")):
            for name in options.models:
                key = (name, threads, options.precision)
                if key in {(e["model"], e["threads"], e["precision"]) for e in entries}:
                    continue
                try:
                    entries.append(measure(name, threads, keep, options))
                except (WorkerError, PlacingFailed) as failure:
                    print(f"{name}, {threads} thr: {failure}", flush=True)
                    continue
                options.out.write_text(json.dumps(entries))
                print_tables(entries[-1:])


if __name__ == "__main__":
    main()
