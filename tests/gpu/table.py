"""The benchmark's table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tests.gpu.subjects import COLLAGE, COMPILED, EAGER

Row = Mapping[str, Any]


def alone(row: Row) -> dict[str, float]:
    """µs of every toolchain by itself: on the whole model, where it takes all of it, else as greedy
    partitioning has it with TVM behind; of its instances the fastest."""
    found: dict[str, float] = {}
    for baseline in row.get("baselines", ()):
        name, us = baseline["name"], baseline["measured_us"]
        if us is None or baseline["kind"] not in ("whole-model", "greedy", "fuseops"):
            continue
        first = name.removeprefix("greedy ").split(" ")[0].partition("[")[0]
        several = baseline["kind"] == "greedy" and name.count("→") > 1
        if not several and us < found.get(first, float("inf")):
            found[first] = us
    return found


def table(rows: Sequence[Row]) -> str:
    """Markdown: the artifact against each toolchain alone and torch, and the additive error.

    µs of a call; what is missing is a dash, with its reason below.
    """
    lines = [
        "| model | precision | Collage | partitions | best alone | each alone | torch eager | "
        "torch.compile | additive error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    notes = []
    for row in rows:
        median = row.get("median_us", {})
        ours = row.get("measured_us")
        singles = alone(row)
        best = min(singles, key=lambda name: singles[name]) if singles else None
        each = ", ".join(f"{n} {us:.1f}" for n, us in sorted(singles.items(), key=lambda x: x[1]))
        gain = (
            f"{best} {singles[best]:.1f} ({ours / singles[best] - 1:+.1%})"
            if best and ours
            else "–"
        )
        error = row.get("additive_error_us")
        shown = {
            name: f"{median[name]:.1f}" if name in median else "–"
            for name in (COLLAGE, EAGER, COMPILED)
        }
        used = "+".join(row.get("toolchains", ())) or "–"
        lines.append(
            f"| {row['model']} | {row['precision']} | {shown[COLLAGE]} | "
            f"{row.get('partitions', '–')}: {used} | {gain} | {each or '–'} | {shown[EAGER]} | "
            f"{shown[COMPILED]} | {f'{error / ours:+.1%}' if error is not None and ours else '–'} |"
        )
        for name, reason in {**row.get("failed", {}), **row.get("notes", {})}.items():
            notes.append(f"- {row['model']} {row['precision']}, {name}: {reason}")
    return "\n".join([*lines, *([""] if notes else []), *notes])


def summary(row: Row) -> dict[str, float]:
    """Median µs by subject, of a row's rounds."""
    return {name: statistics.median(us) for name, us in row.get("rounds_us", {}).items() if us}
