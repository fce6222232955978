"""Makes the tables of the HTML report about partitions and runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collage_engine.records.placement import Run
from collage_engine.store.compare import compare_runs
from collage_engine.store.document import Document
from collage_engine.wording.amounts import (
    DASH,
    bytes_text,
    moment_text,
    number_text,
    time_text,
)
from collage_engine.wording.facts import fact_lines, run_facts
from collage_engine.wording.figures import difference, drift_text, latency_us, winner_title
from collage_engine.wording.partition_figures import partition_figures
from collage_engine.wording.sentences import STAGE_TITLES
from collage_engine.wording.titles import toolchain_title


def table(
    rows: Sequence[tuple[str, ...]], head: Sequence[str], numbers: Sequence[str], mine: str = ""
) -> dict[str, Any]:
    """Return a table for the page.

    Args:
        rows: What each row is called, which is not shown, and its cells.
        head: The titles of the columns.
        numbers: Those of columns of numbers.
        mine: What the row is called that stands out.
    """
    return {"head": head, "numbers": numbers, "rows": rows, "mine": mine}


def rates_and_bytes(document: Document, run: Run) -> dict[str, Any]:
    """Return the rates that each partition achieves and its bytes, the most to win first."""
    if run.placement is None:
        return {}
    figures = partition_figures(document.graph, run.placement, document.candidates)
    rows = [
        (
            "",
            each.partition.id,
            toolchain_title(each.partition.instance),
            time_text(each.us),
            time_text(each.roof_us),
            DASH if each.efficiency is None else f"{100 * each.efficiency:.0f} %",
            DASH if each.gflops is None else f"{each.gflops:.3g}",
            DASH if each.gigabytes_per_s is None else f"{each.gigabytes_per_s:.3g}",
            *map(bytes_text, (each.weights, each.inputs, each.outputs, each.inside)),
        )
        for each in sorted(figures, key=lambda each: -(each.left_us or 0.0))
    ]
    rates = ("time", "roof", "of the roofline", "GFLOP/s", "GB/s")
    numbers = (*rates, "weights", "inputs", "outputs", "inside")
    return table(rows, ("id", "toolchain", *numbers), numbers)


def other_runs(document: Document, run: Run) -> dict[str, Any]:
    """Return the session's runs: times, the machine's drift, and what runs elsewhere."""
    rows = []
    for other in document.runs:
        changes = [change.change for change in compare_runs(run, other, document.graph).nodes]
        is_this = other.id == run.id
        against = difference(other.placement, other, run.placement, run)
        rows.append(
            (
                other.id,
                document.title(other),
                winner_title(other),
                str(len(other.placement.partitions)) if other.placement else DASH,
                time_text(latency_us(other.placement)),
                "" if is_this or against is None else against.text,
                "" if is_this else drift_text(other, run, document.title(run)),
                *(number_text(changes.count(change)) for change in ("moved", "regrouped")),
                str(other.threads),
                moment_text(other.started_at),
                other.note,
            )
        )
    numbers = ("partitions", "latency", "against this run", "moved", "regrouped", "threads")
    head = ("run", "exported", *numbers[:3], "drift of the baselines", *numbers[3:])
    return table(rows, (*head, "started", "note"), numbers, run.id)


def found(run: Run) -> list[str]:
    """Return how many candidates there were, and how long the stages took."""
    said = [f"{line}." for line in fact_lines(run_facts(run), ("Candidates",))]
    if run.seconds:
        stages = ", ".join(
            f"{STAGE_TITLES.get(name, name).lower()} {seconds:.1f} s"
            for name, seconds in run.seconds.items()
        )
        said.append(f"The stages took: {stages}.")
    return said
