"""What huge pages gain an artifact: two instances in one process, one of them left as it is.

    python -m tests.benchmarks.bench_huge_pages ARTIFACT … [--core 1] [--rounds 60]

CPU time of one thread, in interleaved rounds. Where memory comes to lie moves an instance's time by
several percent, so each artifact is run twice: with huge pages in the first instance, and in the
second. The ratio is the median of paired rounds, with huge pages against without.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from collage_engine.artifact.loader import run_artifact as loader

ROUND_S = 0.02
"""Seconds of one instance's calls in a round; chosen, so that other work disturbs few of them."""


def compare(folder: Path, moved: int, rounds: int) -> str:
    """The ratio of an artifact, of whose two instances the one of a number is on huge pages."""
    manifest = loader.opened(folder)
    os.environ.update(manifest["environment"])
    calls, loading = [], []
    for number in range(2):
        os.environ[loader.HUGE_PAGES] = "1" if number == moved else "0"
        began = time.process_time()
        model = loader.Model(folder, manifest, private=number > 0)
        loading.append(time.process_time() - began)
        tensors = model.bind(loader.read_npz(folder / loader.SAMPLES[0], model.kinds("inputs")))
        calls.append(lambda model=model, tensors=tensors: model.invoke(tensors))
        calls[-1]()
    began = time.process_time()
    calls[0]()
    count = max(1, round(ROUND_S / (time.process_time() - began)))
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for number in random.sample(range(2), 2):
            began = time.process_time()
            for _ in range(count):
                calls[number]()
            taken[number].append((time.process_time() - began) / count)
    ratios = [of[moved] / of[1 - moved] for of in zip(*taken, strict=True)]
    plain = statistics.median(taken[1 - moved])
    ratio = statistics.median(ratios)
    return (
        f"{folder.name}, instance {moved}: {ratio:.4f} of {plain * 1e3:.3f} ms, "
        f"loaded in {loading[moved]:.2f} s"
    )


def main() -> None:
    """Run each artifact in processes of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifacts", nargs="+", type=Path)
    parser.add_argument("--core", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--instance", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    if options.instance is not None:
        print(compare(options.artifacts[0].resolve(), options.instance, options.rounds), flush=True)
        return
    for folder in options.artifacts:
        for instance in range(2):
            command = [sys.executable, "-m", "tests.benchmarks.bench_huge_pages", str(folder)]
            command += ["--core", str(options.core), "--rounds", str(options.rounds)]
            subprocess.run([*command, "--instance", str(instance)], check=True)


if __name__ == "__main__":
    main()
