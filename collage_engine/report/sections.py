"""Makes the parts of the HTML report that are tables of partitions and runs, and the ties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collage_engine.drawing.baselines import baseline_title
from collage_engine.drawing.facts import fact_lines, run_facts
from collage_engine.drawing.figures import (
    drift_text,
    latency_us,
    winner_title,
)
from collage_engine.drawing.formatting import (
    DASH,
    STAGE_TITLES,
    bytes_text,
    counted,
    gain_text,
    moment_text,
    number_text,
    time_text,
)
from collage_engine.drawing.palette import toolchain_title
from collage_engine.drawing.partition_figures import partition_figures
from collage_engine.records.placement import Run
from collage_engine.session.compare import compare_runs
from collage_engine.session.document import Document


def ties_sentences(run: Run) -> list[str]:
    """Returns which placements cannot be told from the exported one, and how sure that is."""
    tied = [baseline_title(base) for base in run.baselines if base.name in run.tied]
    if run.winner != "collage" and "collage" in run.tied:
        tied.insert(0, "Collage")
    chosen = winner_title(run)
    if not tied:
        timed = sum(base.measured_us is not None for base in run.baselines)
        return [f"No other placement is tied with {chosen}."] if timed else []
    return [
        (
            f"Tied with {chosen}: {', '.join(tied)}. In the rounds that they ran together they are "
            "within 1 %, or a signed-rank test and most of the rounds do not tell them apart."
        )
    ]


def about_latencies(run: Run) -> str:
    """Returns the conditions under which the latencies were measured, in a sentence."""
    return (
        f"The whole model, end to end, on {run.device or run.target} with "
        f"{counted(run.threads, 'thread')}, timed in interleaved rounds. The range is from the "
        "20th to the 80th percentile of the rounds."
    )


def roofline(document: Document, run: Run) -> dict[str, Any]:
    """Returns the rates that each partition achieves, the most to win first, as a table."""
    if run.placement is None:
        return {}
    roofs = partition_figures(document.graph, run.placement, document.candidates)
    known = [roof for roof in roofs if roof.left_us is not None]
    rows = [
        (
            roof.partition.id,
            toolchain_title(roof.partition.instance),
            time_text(roof.us),
            DASH if roof.gflops is None else f"{roof.gflops:.3g}",
            DASH if roof.gigabytes_per_s is None else f"{roof.gigabytes_per_s:.3g}",
            time_text(roof.roof_us),
            time_text(roof.left_us),
            DASH if roof.efficiency is None else f"{100 * roof.efficiency:.0f} %",
        )
        for roof in sorted(known, key=lambda roof: -(roof.left_us or 0.0))
    ]
    return _of_partitions(rows, "time", "GFLOP/s", "GB/s", "roof", "above", "of the roofline")


def memory(document: Document, run: Run) -> dict[str, Any]:
    """Returns the bytes of each partition, those with the most weights first, as a table."""
    if run.placement is None:
        return {}
    parts = partition_figures(document.graph, run.placement, document.candidates)
    rows = [
        (
            part.partition.id,
            toolchain_title(part.partition.instance),
            *map(bytes_text, (part.weights, part.inputs, part.outputs, part.inside)),
        )
        for part in sorted(parts, key=lambda part: -part.weights)
    ]
    return _of_partitions(rows, "weights", "inputs", "outputs", "inside")


def _of_partitions(rows: Sequence[tuple[str, ...]], *numbers: str) -> dict[str, Any]:
    """Return a table of numbers, a row for each partition."""
    return {"head": ("id", "toolchain", *numbers), "numbers": numbers, "rows": rows, "mine": -1}


def other_runs(document: Document, run: Run) -> list[dict[str, Any]]:
    """Returns the session's other runs: times, the machine's drift, and what runs elsewhere."""
    if len(document.runs) < 2:
        return []
    ours = latency_us(run.placement)
    rows = []
    for other in document.runs:
        is_this = other.id == run.id
        changes = [change.change for change in compare_runs(run, other, document.graph).nodes]
        drift = "" if is_this else drift_text(other, run, document.title(run))
        rows.append(
            {
                "title": document.title(other),
                "chosen": is_this,
                "exported": winner_title(other),
                "us": latency_us(other.placement),
                "gain": "" if is_this else gain_text(latency_us(other.placement), ours),
                "drift": drift,
                "moved": "" if is_this else number_text(changes.count("moved")),
                "regrouped": "" if is_this else number_text(changes.count("regrouped")),
                "partitions": len(other.placement.partitions) if other.placement else 0,
                "threads": other.threads,
                "started": moment_text(other.started_at),
                "note": other.note,
            }
        )
    return rows


def found(run: Run) -> list[str]:
    """Returns how many candidates there were, and how long the stages took."""
    said = [f"{line}." for line in fact_lines(run_facts(run), ("Candidates",))]
    if run.seconds:
        stages = ", ".join(
            f"{STAGE_TITLES.get(name, name).lower()} {seconds:.1f} s"
            for name, seconds in run.seconds.items()
        )
        said.append(f"The stages took: {stages}.")
    return said
