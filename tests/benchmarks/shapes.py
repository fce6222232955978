"""An artifact for several shapes beside the artifacts that are made for each shape alone.

    collage place m.onnx -o together --dim batch=1,4,16 --threads 1
    collage place m.onnx -o alone1 --dim batch=1 --threads 1     # and so on
    python -m tests.benchmarks.shapes together alone1 alone4 alone16 [--rounds 60]

The artifact for several shapes is loaded once, with all its entries, as a server would have it;
each other artifact has a process of its own. At each shape the two take turns in random order.
Printed for each shape, as one line of JSON: the median time of a call of each, the median of the
paired ratios (above 1: several shapes in one artifact are slower) with its 95 % interval, and
whether both hold the same placement. Then the memory of each process and the sizes on disk.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from collage_engine.artifact.artifact import LOADERS
from collage_engine.artifact.loader.entries import entries_of, sample_files, shapes_of
from collage_engine.artifact.manifest import read_manifest
from tests.benchmarks.peers_stats import paired_ratio

ROUND_S = 0.1
"""Seconds of calls of one artifact in a round; chosen, so that a round is over before the machine's
speed has changed."""
_KILOBYTES = ("VmRSS", "RssAnon", "RssFile", "VmHWM")
"""The process's resident memory, that of its own and that of files, and the most so far."""


class Loaded:
    """A process that holds an artifact with all its entries, and times calls of one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries = entries_of(read_manifest(folder))
        command = [sys.executable, "-m", "tests.benchmarks.shapes", str(folder), "--serve"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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


def memory_kib() -> dict[str, int]:
    """The memory of this process now, and at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) for name in _KILOBYTES}


def serve(folder: Path) -> None:
    """Load an artifact, and answer what the lines of standard input ask: ``ENTRY CALLS``."""
    sys.path.insert(0, str(LOADERS))
    import run_artifact as loader

    model = loader.load(folder)
    entries = entries_of(read_manifest(folder))
    ready = []
    for number, entry in enumerate(entries):
        one = model.model(number) if len(entries) > 1 else model
        inputs = loader.read_npz(folder / sample_files(entry)[0], one.kinds("inputs"))
        tensors = one.bind(inputs)
        one.main(*tensors)
        ready.append((one, tensors))
    print(json.dumps(memory_kib()), flush=True)
    for line in sys.stdin:
        number, calls = map(int, line.split())
        one, tensors = ready[number]
        taken = []
        for _ in range(calls):
            begin = time.perf_counter()
            one.main(*tensors)
            one.wait()
            taken.append(time.perf_counter() - begin)
        print(json.dumps(statistics.median(taken)), flush=True)


def partitions(entry: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    """The toolchain and the nodes of each partition of an entry's placement."""
    found = entry["placement"]["partitions"]
    return sorted((each["toolchain"], tuple(each["onnx_nodes"])) for each in found)


def compare(together: Loaded, alone: Loaded, rounds: int) -> dict[str, Any]:
    """Let both take turns at the shape of an artifact for one shape."""
    (mine,) = alone.entries
    entry = next(k for k, e in enumerate(together.entries) if shapes_of(e) == shapes_of(mine))
    calls = max(1, round(ROUND_S / alone.seconds(0, 3)))
    dice = random.Random(0)
    times: dict[str, list[float]] = {"together": [], "alone": []}
    for _ in range(rounds):
        turns = [("together", together, entry), ("alone", alone, 0)]
        dice.shuffle(turns)
        for name, loaded, number in turns:
            times[name].append(loaded.seconds(number, calls))
    ratio = paired_ratio(times["together"], times["alone"])
    return {
        "dims": together.entries[entry]["dims"],
        "together_ms": round(1e3 * statistics.median(times["together"]), 4),
        "alone_ms": round(1e3 * statistics.median(times["alone"]), 4),
        "together/alone": ratio and round(ratio.middle, 4),
        "interval": ratio and [round(ratio.low, 4), round(ratio.high, 4)],
        "same placement": partitions(together.entries[entry]) == partitions(mine),
        "partitions": [len(partitions(together.entries[entry])), len(partitions(mine))],
        "toolchains": sorted({toolchain for toolchain, _ in partitions(mine)}),
        "calls": calls,
    }


def main() -> None:
    """Compare, and print one line of JSON for each shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("together", type=Path)
    parser.add_argument("alone", type=Path, nargs="*")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--serve", action="store_true", help="as this program calls itself")
    options = parser.parse_args()
    if options.serve:
        serve(options.together)
        return
    memory = {}
    with Loaded(options.together) as together:
        memory[options.together.name] = together.memory_kib
        for folder in options.alone:
            with Loaded(folder) as alone:
                memory[folder.name] = alone.memory_kib
                print(json.dumps(compare(together, alone, options.rounds)), flush=True)
    print(json.dumps({"memory_kib": memory}))
    disk = {
        folder.name: sum(about["bytes"] for about in read_manifest(folder)["files"].values())
        for folder in (options.together, *options.alone)
    }
    print(json.dumps({"disk_bytes": disk, "sizes": read_manifest(options.together).get("sizes")}))


if __name__ == "__main__":
    main()
