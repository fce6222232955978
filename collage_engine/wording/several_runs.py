"""Says what was placed several times: ways to share processors, and shapes of one artifact."""

from __future__ import annotations

from collage_engine.records.placement import DeploymentRow, Run
from collage_engine.records.shapes import ShapeRow, Sharing
from collage_engine.support.text import counted
from collage_engine.wording.amounts import DASH, bytes_text, gain_text, significant, time_text
from collage_engine.wording.titles import toolchain_title

WAY_COLUMNS = (
    "instances",
    "threads of each",
    "items per second",
    "toolchains",
    "best single toolchain",
    "time against it",
)
"""Titles of the columns of the table of deployments."""
WAY_NUMBERS = ("instances", "threads of each", "items per second", "time against it")
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
    """Return the texts of a row, in the order of ``WAY_COLUMNS``."""

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


SHAPE_COLUMNS = (
    "shape",
    "latency",
    "items per second",
    "toolchains",
    "best single toolchain",
    "against it",
)
"""Titles of the columns of the table of shapes."""
SHAPE_NUMBERS = ("latency", "items per second", "against it")
"""Titles of the columns that hold numbers."""


def shape_cells(row: ShapeRow) -> tuple[str, ...]:
    """Return the texts of a row, in the order of ``SHAPE_COLUMNS``."""
    single = f"{row.best_single}, {time_text(row.best_single_us)}" if row.best_single else DASH
    rate = DASH if row.items_per_s is None else significant(row.items_per_s)
    gain = gain_text(row.latency_us, row.best_single_us)
    toolchains = ", ".join(row.toolchains) or DASH
    return (row.choice.text, time_text(row.latency_us), rate, toolchains, single, gain)


def sharing_sentences(shapes: int, sharing: Sharing | None) -> list[str]:
    """Return what the entries of an artifact share, and along which dimensions it pads.

    Args:
        shapes: How many shapes it has.
        sharing: What is known of it; None: nothing.
    """
    if sharing is None:
        return []
    said = []
    if sharing.apart_bytes and shapes > 1:
        said.append(
            f"the files of {shapes} shapes take {bytes_text(sharing.bytes)} together; apart they "
            f"would take {bytes_text(sharing.apart_bytes)}"
        )
    if sharing.padded:
        said.append(
            f"inputs that are smaller along {', '.join(sharing.padded)} are padded to the next "
            "larger shape"
        )
    for dim, why in sharing.not_padded.items():
        said.append(f"inputs are not padded along {dim}: {why}")
    if sharing.others:
        said.append(
            f"any other shape runs the model's own file on {toolchain_title(sharing.others)}"
        )
    return said
