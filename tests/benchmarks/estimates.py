"""Estimates of whole placements against what they took.

    python -m tests.benchmarks.estimates [MODEL …] [--threads 1] [--budget 60]
    python -m tests.benchmarks.estimates --log ablation.jsonl …  # what an ablation's runs found

A model is a name of ``tests.zoo`` or an .onnx file. Each is placed once; the rows are the exported
placement and the three fastest covers that lost, of those that were timed end to end and consist of
measured candidates. The additive error is the measured time less the estimate, as a share of the
measured time; positive where a placement is slower than its estimate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from collage_engine import api
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from tests.benchmarks.place import model_file

LOST = 3
"""Covers that lost and are listed."""
ALL_PARTS = "d"
"""The ablation's configuration in which a run has all its parts."""
Row = tuple[str, int, float, float]
"""Name, partitions, estimated µs, measured µs."""


def rows_of(run: Run) -> list[Row]:
    """The exported placement and the fastest covers that lost, where both times are known."""
    placement = run.placement
    assert placement is not None
    found: list[Row] = []
    if placement.estimated_us is not None and placement.measured_us is not None:
        found.append(
            ("exported", len(placement.partitions), placement.estimated_us, placement.measured_us)
        )
    lost: list[Row] = [
        (f"cover {k}", len(one.partitions), one.estimated_us, one.measured_us)
        for k, one in enumerate(run.rivals, start=2)
        if one.estimated_us is not None and one.measured_us is not None
    ]
    lost += [
        (base.name, base.partitions, base.estimated_us, base.measured_us)
        for base in run.baselines
        if base.name != run.winner
        and base.estimated_us is not None
        and base.measured_us is not None
    ]
    distinct = {(row[1], round(row[2], 3)): row for row in sorted(lost, key=lambda row: -row[3])}
    if found:
        distinct.pop((found[0][1], round(found[0][2], 3)), None)
    return found + sorted(distinct.values(), key=lambda row: row[3])[:LOST]


def rows_of_log(path: Path) -> list[tuple[str, list[Row], list[str]]]:
    """By model of a log of the ablation: placements of runs of all parts, and what was busy."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        (
            line["model"],
            [(row[0], row[1], row[2], row[3]) for row in line["estimates"]],
            line["busy"],
        )
        for line in lines
        if line["kind"] == "run" and line["configuration"] == ALL_PARTS and "estimates" in line
    ]


def print_rows(model: str, rows: list[Row], busy: list[str]) -> list[float]:
    """Print a row for each placement, and return the errors."""
    errors = [1 - estimated / measured for _, _, estimated, measured in rows]
    for (title, partitions, estimated, measured), error in zip(rows, errors, strict=True):
        times = f"{estimated:.2f} | {measured:.2f}"
        print(f"| {model} | {title} | {partitions} | {times} | {error:+.1%} |", flush=True)
    if busy:
        print(f"| {model} | ({busy[0]}) | | | | |", flush=True)
    return errors


def summary(title: str, errors: list[float]) -> str:
    """Sentences with the median and the worst of some errors."""
    sizes = [abs(error) for error in errors]
    return (
        f"{title}, {len(errors)} of them: additive error {statistics.median(sizes):.1%} in the "
        f"median, {max(sizes):.1%} at worst, "
        f"{statistics.median(errors):+.1%} in the median with its sign."
    )


def main() -> None:
    """Place models and print a row for each placement, then the errors of all."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("models", nargs="*", default=["mnist"])
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--budget", type=float, default=60.0, help="seconds of each run")
    options.add_argument(
        "--log", type=Path, nargs="+", help="place nothing: read these logs of the ablation"
    )
    given = options.parse_args()
    errors: list[float] = []
    mixed: list[float] = []

    def add(model: str, rows: list[Row], busy: list[str]) -> None:
        found = print_rows(model, rows, busy)
        errors.extend(found)
        mixed.extend(error for row, error in zip(rows, found, strict=True) if row[1] > 1)

    print(
        "| model | placement | partitions | estimated µs | measured µs | additive error |\n"
        "|---|---|---|---|---|---|"
    )
    if given.log:
        for path in given.log:
            for model, rows, busy in rows_of_log(path):
                add(model, rows, busy)
    else:
        settings = RunSettings(threads=given.threads, budget_s=given.budget)
        with tempfile.TemporaryDirectory() as folder:
            for name in given.models:
                with api.open_model(model_file(name, Path(folder))) as session:
                    run = session.place(settings)
                busy = [state.busy for state in run.machine if state.busy]
                assert run.placement is not None
                add(Path(name).stem, rows_of(run), busy)
    if errors:
        print(f"\n{summary('All placements', errors)}")
    if mixed:
        print(summary("Those of several partitions", mixed))


if __name__ == "__main__":
    main()
