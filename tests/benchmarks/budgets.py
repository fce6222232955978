"""How well runs keep their budgets, from an empty store, as a table.

``python -m tests.benchmarks.budgets [MODEL …] [--budgets 30,120,600] [--threads N] [--cache DIR]``

A model is a name of ``tests.zoo``, an .onnx file, or ``transformer500``, an encoder of some 500
operators. Every run begins with an empty store; what toolchains compile once per machine is there
already. Printed per run: the seconds of the whole command, by how much they miss the budget, when
the first answer was announced, how the run ended and was confirmed, its winner and latency, and the
share of candidates that were left unmeasured for want of time.

A budget is kept when it is missed by at most 15 % or 10 s, whichever is more; a run may end sooner.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from collage_engine.machine.folders import cache_folder
from tests.benchmarks.place import model_file
from tests.support.command import collage
from tests.zoo.text import bert

MODELS = ("mnist", "se_resnet50", "light_densenet121", "transformer500")
BUDGETS = (30, 120, 600)
"""Seconds."""
SLACK_SHARE, SLACK_S = 0.15, 10.0
"""By how much a budget may be exceeded: a share of it or seconds, whichever is more."""
ONCE_PER_MACHINE = ("native", "probes")
"""Folders of the cache that hold no measurements of candidates."""


@dataclass(frozen=True)
class Outcome:
    """One run."""

    model: str
    budget_s: float
    seconds: float
    document: dict[str, Any] | None
    said: str

    @property
    def over_s(self) -> float:
        """Seconds beyond the budget; negative: it ended sooner."""
        return self.seconds - self.budget_s

    @property
    def is_kept(self) -> bool:
        """Whether the run gave an answer within its budget and the slack."""
        slack = max(SLACK_S, SLACK_SHARE * self.budget_s)
        return self.document is not None and self.over_s <= slack

    def row(self) -> str:
        """The run as a line of the table."""
        verdict = "kept" if self.is_kept else "**missed**"
        start = f"| {self.model} | {self.budget_s:.0f} | {self.seconds:.1f} | {verdict} |"
        if self.document is None:
            return f"{start} failed: {self.said.strip().splitlines()[-1:]} | | | | |"
        placement = self.document["placement"]
        left = self.document.get("unmeasured") or {"share": 0.0}
        return (
            f"{start} {self.document.get('first_answer_s') or math.nan:.1f} | "
            f"{self.document['ended']} | "
            f"{self.document['confirmation']} | {self.document['winner']}, "
            f"{len(placement['partitions'])} | {placement['measured_us'] / 1000:.3g} | "
            f"{left['share']:.0%} |"
        )


def path_of(name: str, folder: Path) -> Path:
    """The .onnx file of a model, made if need be."""
    if name != "transformer500":
        return model_file(name, folder)
    path = folder / "transformer500.onnx"
    if not path.exists():
        onnx.save(bert(layers=14, length=128, hidden=256, heads=4, vocabulary=8000), path)
    return path


def cache_without_measurements(folder: Path, toolchain_cache: Path | None = None) -> Path:
    """A cache in this folder with an empty store, and what toolchains compile once per machine.

    Args:
        folder: Where it is made.
        toolchain_cache: The cache that this is copied from; None: the user's.
    """
    cache, source = folder / "cache", toolchain_cache or cache_folder()
    for part in ONCE_PER_MACHINE:
        if (source / part).is_dir():
            shutil.copytree(source / part, cache / part, symlinks=True)
    return cache


def run(
    name: str, budget_s: float, folder: Path, toolchain_cache: Path, threads: int = 0
) -> Outcome:
    """Place a model from an empty store."""
    model = path_of(name, folder)
    with tempfile.TemporaryDirectory(prefix="budgets-") as scratch:
        cache = cache_without_measurements(Path(scratch), toolchain_cache)
        began = time.monotonic()
        command = f"place {model} -o {scratch}/out --json --budget {budget_s:.0f}s"
        command += f" --threads {threads}" if threads else ""
        done = collage(command, cache=cache, timeout=None)
        seconds = time.monotonic() - began
    document = json.loads(done.stdout) if done.returncode == 0 else None
    return Outcome(name, budget_s, seconds, document, done.stderr)


def main() -> None:
    """Print the table, a row as soon as its run has ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)))
    parser.add_argument("--cache", type=Path, help="where models are kept")
    parser.add_argument("--threads", type=int, default=0, help="0: one for each processor")
    options = parser.parse_args()
    folder = options.cache or Path(tempfile.mkdtemp(prefix="budget-models-"))
    folder.mkdir(parents=True, exist_ok=True)
    titles = (
        "model|budget, s|run, s||first answer, s|ended|confirmed|winner, partitions|ms|left out"
    )
    print(f"| {titles.replace('|', ' | ')} |\n{'|---' * (titles.count('|') + 1)}|")
    for name in options.models:
        for budget_s in map(float, re.split(r",\s*", options.budgets)):
            row = run(name, budget_s, folder, cache_folder(), options.threads).row()
            print(row, flush=True)


if __name__ == "__main__":
    main()
