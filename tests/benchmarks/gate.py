"""How often ``collage check`` notices an injected slowdown, and how often it raises a false alarm.

    python -m tests.benchmarks.gate ARTIFACT --out gate.json --seconds 200   # can be resumed
    python -m tests.benchmarks.gate --table gate.json                        # prints Markdown

The artifact is checked in turn against itself (a false alarm where it is called slower) and, each
call made longer by 5 %, against itself again. ``tests/unit/test_gate.py`` simulates the same.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

from collage_engine.artifact.paired_times import compare_artifacts
from collage_engine.cli.parser import MAX_SLOWER
from tests.support.slowed_artifact import slowed_copy

INJECTED = 1.05


def check_for(artifact: Path, seconds: float, out: Path) -> None:
    """Check for some seconds, and keep what was found, a line for each check."""
    with tempfile.TemporaryDirectory(prefix="collage-gate-") as scratch, out.open("a") as kept:
        ours = {
            "equal": slowed_copy(artifact, Path(scratch, "equal"), 1.0),
            "slower": slowed_copy(artifact, Path(scratch, "slower"), INJECTED),
        }
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for kind, folder in ours.items():
                began = time.monotonic()
                found, _ = compare_artifacts(folder, artifact, MAX_SLOWER)
                row = {"kind": kind, "outcome": found.outcome, "ratio": found.value}
                row |= {"pairs": found.pairs, "low": found.low, "us": found.baseline_us}
                kept.write(json.dumps(row | {"seconds": time.monotonic() - began}) + "\n")
                kept.flush()


def table(path: Path) -> None:
    """Print how often each outcome came, and what a check took."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    print("| artifact | checks | failed | passed | tie | ratio | pairs | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in ("equal", "slower"):
        some = [row for row in rows if row["kind"] == kind]
        counts = Counter(row["outcome"] for row in some)
        outcomes = " | ".join(str(counts[name]) for name in ("failed", "passed", "tie"))
        means = [sum(row[key] for row in some) / len(some) for key in ("ratio", "pairs", "seconds")]
        figures = "{:.3f} | {:.1f} | {:.0f}".format(*means)
        print(f"| {kind} | {len(some)} | {outcomes} | {figures} |")


def main() -> None:
    """Check, or print what was found so far."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("artifact", type=Path, nargs="?")
    arguments.add_argument("--out", type=Path, default=Path("gate.json"))
    arguments.add_argument("--seconds", type=float, default=200.0)
    arguments.add_argument("--table", type=Path)
    options = arguments.parse_args()
    if options.table:
        table(options.table)
    else:
        check_for(options.artifact, options.seconds, options.out)


if __name__ == "__main__":
    main()
