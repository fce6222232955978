"""Says what the times of a run mean where it was not placed for latency, and the ways it tried."""

from __future__ import annotations

from collage_engine.records.placement import DeploymentRow, Run
from collage_engine.support.counted import counted
from collage_engine.wording.formatting import DASH, gain_text, significant

COLUMNS = (
    "instances",
    "threads of each",
    "items per second",
    "toolchains",
    "best single toolchain",
    "time against it",
)
"""Titles of the columns of the table of deployments."""
NUMBERS = ("instances", "threads of each", "items per second", "time against it")
"""Titles of the columns that hold numbers."""


def objective_sentences(run: Run) -> list[str]:
    """Return what the run's times are of; nothing where they are medians of single calls."""
    if run.objective == "p99":
        return ["all times are 99th percentiles of single calls"]
    if run.objective == "throughput":
        measured = run.placement.measured_us if run.placement is not None else None
        text = (
            f"all times are those of {counted(run.streams, 'instance')} at once with "
            f"{counted(run.threads, 'thread')} each, over the calls of all of them"
        )
        if measured:
            text += f", {significant(1e6 / measured)} runs per second"
        return [text]
    return []


def deployment_cells(row: DeploymentRow) -> tuple[str, ...]:
    """Return the texts of a row, in the order of ``COLUMNS``."""

    def rate(per_second: float | None) -> str:
        return DASH if per_second is None else significant(per_second)

    single = DASH
    if row.best_single:
        single = f"{row.best_single}, {rate(row.best_single_items_per_s)}"
    gain = DASH
    if row.items_per_s and row.best_single_items_per_s:
        gain = gain_text(1 / row.items_per_s, 1 / row.best_single_items_per_s)
    return (
        str(row.streams),
        str(row.threads),
        rate(row.items_per_s),
        ", ".join(row.toolchains) or DASH,
        single,
        gain,
    )
