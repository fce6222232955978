"""An artifact for several shapes beside the artifacts that are made for each shape alone.

    python -m tests.benchmarks.shapes FOLDER [--budget 60] [--threads 1] [--rounds 60] [--controls]
        [MODEL …]

A model is a name of ``tests.benchmarks.open_models``; by default MobileNetV2 is placed at batch 1,
4 and 16, and BERT-Small at 32, 128 and 512 tokens. Each shape is placed alone with the budget, and
all N shapes of a model in one command with N times the budget. Every command begins with an empty
store of measurements; what toolchains compile once per machine is there already. With
``--controls`` each shape is placed alone a second time: how far two such artifacts lie apart is
what a comparison with the first one cannot tell from chance.

The artifact for several shapes is loaded with all its entries, as a server would have it; each
other artifact has a process of its own. At each shape the two take turns in random order.

It takes 2·N·budget seconds a model (3·N with controls), and half a minute to compare each shape:
15 minutes with a budget of 60 s, which is said at the beginning. What is in FOLDER already is not
done again, so a command that was interrupted goes on when it is given again.

The table says for each shape the median time of a call of each artifact, the median of the paired
ratios (above 1: several shapes in one artifact are slower) with its 95 % interval, the verdict on
``MOST_SLOWER``, and what each artifact holds. Then follow the memory of the processes and the
sizes on disk. The status is 1 where a shape is surely slower than that.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import onnx

from collage_engine.artifact.artifact import LOADERS
from collage_engine.artifact.loader.run_artifact import SAMPLES, shapes_of
from collage_engine.artifact.manifest import read_manifest
from tests.benchmarks.budgets import cache_without_measurements
from tests.benchmarks.open_models import MODELS
from tests.benchmarks.peers_stats import paired_ratio
from tests.support.command import ROOT, collage

SHAPES = {"mobilenet_v2": ("batch", (1, 4, 16)), "bert_small": ("sequence", (32, 128, 512))}
"""Model → the dimension that it names, and the sizes at which it is placed: a batch of
images, and a number of tokens."""
MOST_SLOWER = 1.03
"""The time of a call in the artifact for several shapes over that in the artifact for one, at most;
what is promised."""
ROUND_S = 0.1
"""Seconds of calls of one artifact in a round; chosen, so that a round is over before the machine's
speed has changed."""
_KILOBYTES = ("VmRSS", "RssAnon", "RssFile", "VmHWM")
"""The process's resident memory, that of its own and that of files, and the most so far."""
SEVERAL, ALONE, CONTROL = "several", "alone", "control"
"""Artifacts: of all shapes, of one shape, of one shape once more."""


class Loaded:
    """A process that holds an artifact with all its entries, and times calls of one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries = [read_manifest(place) for place in folders_of(folder)]
        command = [sys.executable, "-m", "tests.benchmarks.shapes", str(folder), "--serve"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.memory_kib: dict[str, int] = self._answer()
        """Of the process, when every entry has run."""

    def __enter__(self) -> Loaded:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def seconds(self, entry: int, calls: int) -> float:
        """Median seconds of that many calls of an entry, one after the other."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{entry} {calls}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.folder}: its process ended with {self._process.wait()}")
        return json.loads(line)


def folders_of(folder: Path) -> list[Path]:
    """The folders of an artifact for several shapes, or the only one."""
    entries = read_manifest(folder).get("entries", [{}])
    return [folder / entry.get("folder", "") for entry in entries]


def memory_kib() -> dict[str, int]:
    """The memory of this process now, and at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) for name in _KILOBYTES}


def serve(folder: Path) -> None:
    """Load an artifact, and answer what the lines of standard input ask: ``ENTRY CALLS``."""
    sys.path.insert(0, str(LOADERS))
    import run_artifact as loader

    ready = []
    for place in folders_of(folder):
        one = loader.load(place)
        tensors = one.bind(loader.read_npz(place / SAMPLES[0], one.kinds("inputs")))
        one.invoke(tensors)
        ready.append((one, tensors))
    print(json.dumps(memory_kib()), flush=True)
    for line in sys.stdin:
        number, calls = map(int, line.split())
        one, tensors = ready[number]
        taken = []
        for _ in range(calls):
            begin = time.perf_counter()
            one.invoke(tensors)
            taken.append(time.perf_counter() - begin)
        print(json.dumps(statistics.median(taken)), flush=True)


def place(model: Path, out: Path, sizes: str, budget_s: float, threads: int) -> None:
    """Place a model for these sizes from an empty store, unless that was done before.

    Args:
        model: The .onnx file.
        out: The artifact's folder; what the command printed is written beside it, as JSON.
        sizes: What ``--dim`` is given, such as ``batch=1,4,16``.
        budget_s: Seconds of the whole command.
        threads: Of every runtime.
    """
    document = out.with_suffix(".json")
    if document.exists():
        return
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="shapes-") as scratch:
        cache = cache_without_measurements(Path(scratch))
        began = time.monotonic()
        command = f"place {model} -o {out} --json --dim {sizes} --threads {threads}"
        command += f" --budget {budget_s:g}s"
        done = collage(command, cache=cache, timeout=None)
    if done.returncode:
        raise SystemExit(f"{command}: status {done.returncode}\n{done.stderr[-3000:]}")
    print(f"{out}: {time.monotonic() - began:.0f} s of {budget_s:g} s", flush=True)
    document.write_text(done.stdout)


def runs_of(out: Path) -> list[dict[str, Any]]:
    """The run of each shape of an artifact, as its command printed it."""
    document = json.loads(out.with_suffix(".json").read_text())
    return document.get("runs", [document])


def said(run: Mapping[str, Any]) -> str:
    """How a run came to its answer."""
    left = run.get("unmeasured") or {"share": 0.0}
    parts = len(run["placement"]["partitions"])
    what = f"{run['winner']} ({parts}), {run['confirmation']}, {run['ended']}"
    return f"{what}, {left['share']:.0%} unmeasured"


def partitions(entry: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    """The toolchain and the nodes of each partition of an entry's placement."""
    found = entry["placement"]["partitions"]
    return sorted((each["toolchain"], tuple(each["onnx_nodes"])) for each in found)


def compare(several: Loaded, alone: Loaded, rounds: int) -> dict[str, Any]:
    """Let both take turns at the shape of an artifact for one shape."""
    (mine,) = alone.entries
    entry = next(k for k, e in enumerate(several.entries) if shapes_of(e) == shapes_of(mine))
    calls = max(1, round(ROUND_S / alone.seconds(0, 3)))
    dice = random.Random(0)
    times: dict[str, list[float]] = {SEVERAL: [], ALONE: []}
    for _ in range(rounds):
        turns = [(SEVERAL, several, entry), (ALONE, alone, 0)]
        dice.shuffle(turns)
        for name, loaded, number in turns:
            times[name].append(loaded.seconds(number, calls))
    ratio = paired_ratio(times[SEVERAL], times[ALONE])
    assert ratio is not None
    return {
        "several_ms": 1e3 * statistics.median(times[SEVERAL]),
        "alone_ms": 1e3 * statistics.median(times[ALONE]),
        "ratio": ratio.middle,
        "low": ratio.low,
        "high": ratio.high,
        "same": partitions(several.entries[entry]) == partitions(mine),
        "memory_kib": {"first": several.memory_kib, "alone": alone.memory_kib},
    }


def verdict(found: Mapping[str, Any]) -> str:
    """What the interval of a ratio says of the promise."""
    if found["high"] <= MOST_SLOWER:
        return "kept"
    return "missed" if found["low"] > MOST_SLOWER else "not decided"


def compared(folder: Path, first: str, second: str, rounds: int) -> dict[str, Any]:
    """The comparison of two artifacts in a folder, done now or before."""
    path = folder / f"{first}-{second}.json"
    if not path.exists():
        with Loaded(folder / first) as several, Loaded(folder / second) as alone:
            path.write_text(json.dumps(compare(several, alone, rounds)))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def bytes_of(out: Path) -> int:
    """The size of an artifact's files, equal ones once."""
    files = [read_manifest(place)["files"].values() for place in folders_of(out)]
    return sum({about["sha256"]: about["bytes"] for of in files for about in of}.values())


def do_model(name: str, folder: Path, options: argparse.Namespace) -> bool:
    """Place and compare one model, print its table; whether no shape surely misses the promise."""
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "model.onnx"
    if not model.exists():
        onnx.save(MODELS[name](), model)
    dim, sizes = SHAPES[name]
    kinds = (ALONE, CONTROL) if options.controls else (ALONE,)
    given = (options.budget, options.threads)
    for size in sizes:
        for kind in kinds:
            place(model, folder / f"{kind}-{size}", f"{dim}={size}", *given)
    every = ",".join(map(str, sizes))
    place(model, folder / SEVERAL, f"{dim}={every}", len(sizes) * options.budget, options.threads)
    print(f"\n### {name}\n")
    titles = "shape|several, ms|alone, ms|ratio|verdict|same placement|several|alone"
    print(f"| {titles.replace('|', ' | ')} |\n{'|---' * (titles.count('|') + 1)}|")
    good = True
    memory = {}
    for number, size in enumerate(sizes):
        alone = f"{ALONE}-{size}"
        pairs = [(SEVERAL, alone, runs_of(folder / SEVERAL)[number])]
        if options.controls:
            control = f"{CONTROL}-{size}"
            pairs.append((control, alone, runs_of(folder / control)[0]))
        for first, second, run in pairs:
            found = compared(folder, first, second, options.rounds)
            memory[first] = found["memory_kib"]["first"]["VmRSS"] / 1024
            memory[second] = found["memory_kib"]["alone"]["VmRSS"] / 1024
            good = good and (first != SEVERAL or verdict(found) != "missed")
            cells = [
                f"{dim}={size}" + ("" if first == SEVERAL else ", control"),
                f"{found['several_ms']:.3f}",
                f"{found['alone_ms']:.3f}",
                f"{found['ratio']:.3f} ({found['low']:.3f} to {found['high']:.3f})",
                verdict(found) if first == SEVERAL else "–",
                "yes" if found["same"] else "no",
                said(run),
                said(runs_of(folder / second)[0]),
            ]
            print(f"| {' | '.join(cells)} |", flush=True)
    print()
    for out, mib in memory.items():
        print(f"{out}: {bytes_of(folder / out) / 1e6:.1f} MB on disk, {mib:.0f} MiB in memory")
    return good


def main() -> int:
    """Place, compare, and print a table for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where models, artifacts and results are kept")
    parser.add_argument("models", nargs="*", default=list(SHAPES))
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each shape")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--controls", action="store_true", help="place each shape alone twice")
    parser.add_argument("--serve", action="store_true", help="as this program calls itself")
    options = parser.parse_intermixed_args()
    if options.serve:
        serve(options.folder)
        return 0
    shapes = sum(len(SHAPES[name][1]) for name in options.models)
    commands = 3 if options.controls else 2
    comparing_s = 30 * (commands - 1)
    minutes = shapes * (commands * options.budget + comparing_s) / 60
    print(f"This takes at most about {minutes:.0f} minutes.", flush=True)
    good = [do_model(name, options.folder.absolute() / name, options) for name in options.models]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
