"""What tool tips and the Why panel say of a cost: isolated, expected in this model, last run."""

from __future__ import annotations

from collage_engine.drawing.figures import partition_figures
from collage_engine.drawing.formatting import DASH, counted, time_text
from collage_engine.records.cost import Cost
from collage_engine.records.placement import Partition
from collage_engine.wording.runs import EXPECTED, ISOLATED, LAST_RUN


def cost_tip(cost: Cost) -> str:
    """Everything that is known of a cost, one fact a line."""
    if cost.state == "invalid":
        return f"Invalid: {cost.reason}"
    if cost.state == "unknown":
        return "Not measured yet"
    repeats = counted(cost.count, "repeat")
    lines = [f"{time_text(cost.median_us)} {ISOLATED}, the median of {repeats}"]
    if cost.in_place:
        lines = [
            f"{time_text(cost.median_us)} {EXPECTED}, {_source(cost)}",
            f"{time_text(cost.alone_us)} {ISOLATED}, the median of {repeats}",
        ]
    if cost.low_us is not None and cost.high_us is not None:
        lines.append(f"20th–80th percentile {time_text(cost.low_us)} – {time_text(cost.high_us)}")
    if cost.cold_us is not None:
        lines.append(f"With cold weights {time_text(cost.cold_us)}")
    if cost.max_rel_error is not None:
        lines.append(f"Largest relative error {cost.max_rel_error:.1e}")
    if cost.threads is not None:
        lines.append(f"{counted(cost.threads, 'thread')}, device {cost.fingerprint or DASH}")
    if cost.measured_at:
        lines.append(f"Measured {cost.measured_at}{', from the store' if cost.from_store else ''}")
    return "\n".join(lines)


def partition_text(partition: Partition, cost: Cost) -> str:
    """The three times of a partition: ``126 µs expected in this model (111 µs isolated, …)``.

    Args:
        partition: A partition of a placement.
        cost: The cost of its candidate; one that changed since the placement was made is left
            out.
    """
    figures = partition_figures(partition, {partition.candidate: cost})
    text = f"{time_text(figures.expected_us)} {EXPECTED}"
    parts = []
    if cost.in_place and cost.median_us == partition.estimated_us:
        parts.append(f"{time_text(figures.isolated_us)} {ISOLATED}")
    if figures.last_run_us is not None:
        parts.append(f"{time_text(figures.last_run_us)} in the {LAST_RUN}")
    return f"{text} ({', '.join(parts)})" if parts else text


def _source(cost: Cost) -> str:
    """Where an in-model cost comes from."""
    return "measured in whole placements" if cost.in_place == "seen" else "predicted from them"
