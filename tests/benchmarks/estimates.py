"""Estimates of whole placements against what they took.

    python -m tests.benchmarks.estimates [MODEL …] [--threads 1] [--budget 60]

A model is a name of ``tests.zoo`` or an .onnx file. Each is placed once; the rows are the exported
placement and the three fastest covers that lost, of those that were timed end to end and consist of
measured candidates. The additive error is the measured time less the estimate, as a share of the
measured time; positive where a placement is slower than its estimate.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from collage_engine import api
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from tests.benchmarks.place import model_file, print_head, print_row

LOST = 3
"""Covers that lost and are listed."""
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


def summary(title: str, errors: list[float]) -> str:
    """The median and the worst of some errors."""
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
    given = options.parse_args()
    found: list[tuple[int, float]] = []
    print_head("model|placement|partitions|estimated µs|measured µs|additive error")
    settings = RunSettings(threads=given.threads, budget_s=given.budget)
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models:
            with api.open_model(model_file(name, Path(folder))) as session:
                run = session.place(settings)
            for title, count, estimated, measured in rows_of(run):
                error = 1 - estimated / measured
                found.append((count, error))
                figures = (f"{estimated:.2f}", f"{measured:.2f}", f"{error:+.1%}")
                print_row([Path(name).stem, title, count, *figures])
    mixed = [error for count, error in found if count > 1]
    if found:
        print("\n" + summary("All placements", [error for _, error in found]))
    if mixed:
        print(summary("Those of several partitions", mixed))


if __name__ == "__main__":
    main()
