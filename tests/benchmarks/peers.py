"""Our artifact against other runtimes, each as its users run it, interleaved by rounds.

``python -m tests.benchmarks.peers [MODEL …] [--threads 1,2] [--rounds 50]
[--precision float32|bf16 --tolerance T] [--cache DIR] [--out results.json]``
``python -m tests.benchmarks.peers --table results.json`` prints a results file as Markdown.

A model is a name of ``tests.zoo`` or an .onnx file; without any, the eleven. Each is placed by
``collage place`` and its artifact run through its own loader, beside ONNX Runtime (its Python
session, inputs and outputs bound once), OpenVINO (a compiled model in float32, or bfloat16 where
said), ncnn and MNN (what pnnx and mnnconvert make, in float32). Every runtime has the same number
of threads and a process of its own that sleeps while another runs, and is started anew for each
launch of some rounds: two processes with the same module differ by a few percent throughout, which
no number of rounds would average out. ncnn (with pnnx) and MNN may be in interpreters of their own:
``--python ncnn=…``. ``--out`` is written after every model; what it holds is not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from collage_engine.machine.clocks import round_trip_ns
from collage_engine.machine.device import device
from collage_engine.toolchains.runtime.builder import find_compiler
from tests.benchmarks.peers_run import Load, Peer, PeerFailed, artifact_spec
from tests.benchmarks.peers_stats import paired_ratio
from tests.benchmarks.place import PlacingFailed, model_file, placed, print_head, print_row

ELEVEN = (
    "light_resnet50",
    "mobilenet_v2",
    "light_squeezenet",
    "light_inception_v2",
    "light_densenet121",
    "light_shufflenet",
    "bert_small",
    "gpt2_small",
    "unet_brain",
    "vit_b_block",
    "se_resnet50",
)
OURS, FLOAT32 = "collage", "float32"
OTHERS = ("onnxruntime", "openvino", "ncnn", "mnn")
"""Runtimes of others; where their packages are missing they take no part."""
IN_LESS = {FLOAT32: (), "bf16": ("openvino",)}
"""Those that run in the lower precision, too."""
RIGHT = {FLOAT32: 1e-3, "bf16": 5e-2}
"""Largest relative error with which a runtime still takes part in the verdict."""
BEHIND = 3.0
"""A runtime so many times slower than the fastest after three rounds sits out the rest."""
QUIET = 0.1
"""Cores kept busy by others, up to which the wall clock decides at one thread."""
REST_S, WARM_S, ROUND_S = 0.08, 0.02, 0.1
"""Seconds between rounds (threads of some runtimes spin for 0.06 after a call), of a round's
warming up, and of its timed calls."""

Entry = dict[str, Any]
"""One model at one thread count and precision."""
SAT_OUT = (-1.0, -1.0)


def specs_of(
    model: Path, artifact: Path, threads: int, keep: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Every runtime that is to run, ours first."""
    wanted = options.peers.split(",") if options.peers else OTHERS
    pythons = dict(pair.split("=", 1) for pair in options.python)
    ours = {"name": OURS, "kind": "artifact", "folder": str(artifact)}
    specs: list[dict[str, Any]] = [ours | {"precision": options.precision}]
    for kind in (each for each in OTHERS if each in wanted):
        about = {"kind": kind, "python": pythons.get(kind, sys.executable)}
        about |= {"folder": str(keep / f"{model.stem}-{kind}"), "model": str(model)}
        specs.append(about | {"name": kind, "precision": FLOAT32})
        if kind in IN_LESS[options.precision]:
            less = {"name": f"{kind} {options.precision}", "precision": options.precision}
            specs.append(about | less)
    return [spec | {"threads": threads} for spec in specs]


def interleave(peers: dict[str, Peer], samples: dict[str, list[Any]], rounds: int) -> None:
    """Rounds handed to the processes in turn, in changing order; one that is gone sits out."""
    order = random.Random(sum(map(len, samples.values())))
    resting = set(samples) - set(peers)
    for _ in range(rounds):
        if max(map(len, samples.values()), default=0) == 3:
            typical = {name: middle(some, "wall") for name, some in samples.items()}
            fastest = min(typical.values())
            resting |= {n for n, us in typical.items() if us > BEHIND * fastest and n != OURS}
        for name in order.sample(list(samples), len(samples)):
            if name in resting:
                samples[name].append(SAT_OUT)
                continue
            time.sleep(REST_S)
            samples[name].append(peers[name].round(WARM_S, ROUND_S))


def column(samples: list[Any], clock: str) -> list[float]:
    """The figures of one clock, in µs; NaN where the runtime sat out."""
    place = 1 if clock == "cpu" else 0
    return [pair[place] if pair[place] >= 0 else math.nan for pair in samples]


def middle(samples: list[Any], clock: str) -> float:
    """The median of a runtime's rounds, in µs; infinite without any."""
    known = [us for us in column(samples, clock) if not math.isnan(us)]
    return float(np.median(known)) if known else math.inf


def measure(name: str, threads: int, keep: Path, options: argparse.Namespace) -> Entry:
    """Place, build, time: one row."""
    model = model_file(name, keep)
    artifact = keep / f"{model.stem}-{threads}-{options.precision}"
    if not options.reuse:
        artifact.with_suffix(".json").unlink(missing_ok=True)
    how = f"--threads {threads} --budget {options.budget} --tune-budget {options.tune_budget} "
    how += f"--precision {options.precision}"
    how += f" --tolerance {options.tolerance}" if options.tolerance else ""
    document = placed(model, artifact, how, own_store=False)
    specs = {
        spec["name"]: artifact_spec(artifact) | spec
        for spec in specs_of(model, artifact, threads, keep, options)
    }
    runtimes: dict[str, dict[str, Any]] = {}
    peers: dict[str, Peer] = {}
    samples: dict[str, list[Any]] = {}
    trips, loads = [round_trip(threads)], []
    try:
        for launch in range(options.launches):
            for peer in peers.values():
                peer.close()
            peers.clear()
            for key, spec in specs.items():
                if launch and (key not in samples or samples[key][-1] == SAT_OUT):
                    continue
                about = {"precision": spec["precision"], "reason": None}
                try:
                    peers[key] = Peer(spec, keep)
                    samples.setdefault(key, [])
                    error = peers[key].error
                    about |= {"version": peers[key].version, "error": error}
                    most = max(options.tolerance or 0.0, RIGHT[spec["precision"]])
                    if not error <= most:
                        about["reason"] = f"wrong numbers: max_rel_error {error:.2g}"
                except PeerFailed as failure:
                    about["reason"] = str(failure)
                runtimes.setdefault(key, about)
            load = Load()
            load.start([peer.pid for peer in peers.values()])
            least, more = divmod(options.rounds, options.launches)
            interleave(peers, samples, least + (launch < more))
            loads.append(load.others())
    finally:
        for peer in peers.values():
            peer.close()
    busy = sum(loads) / len(loads)
    trips.append(round_trip(threads))
    placement = document["placement"]
    used: dict[str, int] = {}
    for part in placement["partitions"]:
        used[part["toolchain"]] = used.get(part["toolchain"], 0) + 1
    entry = {
        "model": name,
        "threads": threads,
        "precision": options.precision,
        "clock": "cpu" if threads == 1 and busy > QUIET else "wall",
        "load": busy,
        "round_trip_ns": trips,
        "launches": options.launches,
        "estimated_us": placement["estimated_us"],
        "placed_us": placement["measured_us"],
        "toolchains": used,
        "runtimes": runtimes,
        "samples": samples,
    }
    entry["best"] = compared(entry, options.precision)
    is_lower = options.precision != FLOAT32
    entry["best_float32"] = compared(entry, FLOAT32) if is_lower else None
    return entry


def round_trip(threads: int) -> float | None:
    """What a cache line takes between two cores and back, in ns; at one thread nobody asks."""
    return round_trip_ns(find_compiler()) if threads > 1 else None


def compared(entry: Entry, precision: str) -> tuple[str, list[float]] | None:
    """The fastest of the others at this precision, and ours over it with the 95 % interval."""
    clock, samples = entry["clock"], entry["samples"]
    known = {
        name: middle(samples[name], clock)
        for name, about in entry["runtimes"].items()
        if name in samples and name != OURS and about["precision"] == precision
        if about["reason"] is None
    }
    if not known or OURS not in samples:
        return None
    best = min(known, key=lambda name: known[name])
    ours, other = column(samples[OURS], clock), column(samples[best], clock)
    ratio = paired_ratio(ours, other, entry["launches"])
    return None if ratio is None else (best, [ratio.middle, ratio.low, ratio.high])


def cells_of(entry: Entry, names: list[str]) -> list[str]:
    """The row of an entry."""
    cells = [entry["model"]]
    for name in names:
        us = middle(entry["samples"].get(name, []), entry["clock"])
        about = entry["runtimes"].get(name, {})
        text = f"{us / 1000:.4g}" if math.isfinite(us) else "–"
        cells.append(text + " *" * bool(about.get("reason")))
    for found in (entry["best"], entry["best_float32"]):
        if found is None:
            cells.append("–")
            continue
        share = [f"{100 * (ratio - 1):+.1f} %".replace("-", "−") for ratio in found[1]]
        cells.append(f"{share[0]} [{share[1]}, {share[2]}], {found[0]}")
    cells.append(", ".join(f"{name} {count}" for name, count in entry["toolchains"].items()))
    trips = " and ".join(f"{ns:.0f}" for ns in entry["round_trip_ns"] if ns is not None)
    cells.append(f"{entry['clock']}, load {entry['load']:.2f}" + f", {trips} ns" * bool(trips))
    return cells


def print_tables(entries: list[Entry]) -> None:
    """Print a table for each thread count and precision, times in ms, and why some have none."""
    for group in sorted({(entry["threads"], entry["precision"]) for entry in entries}):
        some = [entry for entry in entries if (entry["threads"], entry["precision"]) == group]
        names = [OURS, *sorted({name for entry in some for name in entry["runtimes"]} - {OURS})]
        print(f"\n**{group[0]} thread(s), {group[1]}**, ms:\n")
        against = "ours against the best other|against the best of float32"
        print_head("|".join(["model", *names, against, "placed on", "clock"]))
        for entry in some:
            print_row(cells_of(entry, names))
        for entry in some:
            for name, about in entry["runtimes"].items():
                if about["reason"]:
                    print(f"- \\* {name} on {entry['model']}: {about['reason']}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--threads", default="1,2", help="thread counts (default: 1,2)")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--launches", type=int, default=5, help="each for a share of the rounds")
    parser.add_argument("--precision", default=FLOAT32, choices=tuple(IN_LESS))
    parser.add_argument("--tolerance", type=float, help="given to place, with --precision")
    parser.add_argument("--budget", default="10m", help="place's time for measuring")
    parser.add_argument("--tune-budget", default="0s", help="place's time for tuning TVM")
    parser.add_argument("--peers", help="only these runtimes: onnxruntime,openvino,ncnn,mnn")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="RUNTIME=INTERPRETER",
        help="one that has the runtime and numpy (ncnn: and pnnx); may be repeated",
    )
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
    """Add what is not known yet, and write it after every model."""
    models = options.models or ELEVEN
    print(f"{device().description}, load average {os.getloadavg()[0]:.2f}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        keep = (options.cache or Path(scratch)).resolve() / "peers"
        keep.mkdir(parents=True, exist_ok=True)
        os.environ["COLLAGE_CACHE_DIR"] = str(keep.parent)
        for threads in map(int, options.threads.split(",")):
            for name in models:
                key = (name, threads, options.precision)
                if key in {(e["model"], e["threads"], e["precision"]) for e in entries}:
                    continue
                try:
                    entries.append(measure(name, threads, keep, options))
                except (PeerFailed, PlacingFailed) as failure:
                    print(f"{name}, {threads} thr: {failure}", flush=True)
                    continue
                options.out.write_text(json.dumps(entries))
                print_tables(entries[-1:])


if __name__ == "__main__":
    main()
