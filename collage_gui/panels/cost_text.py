"""Says of a cost what tool tips and the Why panel show: isolated, in this model, last run."""

from __future__ import annotations

from collage_engine.records.cost import Cost
from collage_engine.records.placement import Partition
from collage_engine.wording.figures import isolated_us
from collage_engine.wording.formatting import counted, time_text
from collage_engine.wording.runs import EXPECTED, ISOLATED, LAST_RUN


def cost_tip(cost: Cost) -> str:
    """Returns everything that is known of a cost, one fact a line."""
    if cost.state == "invalid":
        return f"Invalid: {cost.reason}"
    if cost.state == "unknown":
        return "Not measured yet"
    lines = []
    if cost.in_place:
        source = (
            "measured in whole placements" if cost.in_place == "seen" else "predicted from them"
        )
        lines.append(f"{time_text(cost.median_us)} {EXPECTED}, {source}")
    alone = cost.alone_us if cost.in_place else cost.median_us
    if alone is not None:
        repeats = counted(cost.count, "repeat")
        lines.append(f"{time_text(alone)} {ISOLATED}, the median of {repeats}")
    if cost.low_us is not None and cost.high_us is not None:
        lines.append(f"20th–80th percentile {time_text(cost.low_us)} – {time_text(cost.high_us)}")
    if cost.max_rel_error is not None:
        lines.append(f"Largest relative error {cost.max_rel_error:.1e}")
    if cost.measured_at:
        store = ", from the store" if cost.from_store else ""
        lines.append(f"Measured {cost.measured_at}{store}")
    return "\n".join(lines)


def partition_text(partition: Partition, cost: Cost) -> str:
    """Returns a partition's times: ``126 µs expected in this model (111 µs isolated, …)``.

    Args:
        partition: A partition of a placement.
        cost: The cost of its candidate; one that changed since the placement was made is left
            out.

    Returns:
        The times that are known; empty where none is.
    """
    parts, alone_us = [], isolated_us(cost)
    if alone_us is not None and cost.in_place and cost.median_us == partition.estimated_us:
        parts.append(f"{time_text(alone_us)} {ISOLATED}")
    if partition.in_place_us is not None:
        parts.append(f"{time_text(partition.in_place_us)} in the {LAST_RUN}")
    if partition.estimated_us is None:
        return ", ".join(parts)
    text = f"{time_text(partition.estimated_us)} {EXPECTED}"
    return f"{text} ({', '.join(parts)})" if parts else text
