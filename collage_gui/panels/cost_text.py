"""How the kinds of costs are explained: isolated, in the model, estimated."""

from __future__ import annotations

from collage_engine.drawing.formatting import DASH, counted, time_text
from collage_engine.records.cost import Cost
from collage_engine.records.placement import Partition

ESTIMATED = (
    "The cost that the search uses. Where whole placements were run, it is the cost in the model: "
    "measured there, or predicted from what was measured. Elsewhere it is the isolated cost."
)
ISOLATED = (
    "Measured by itself, over and over, so that its weights and code are in the nearest caches. "
    "In the model, where everything else runs in between, it takes longer."
)
IN_MODEL = "Its part of the confirmed run, in which the whole exported model was profiled."
DIFFERENCE = "The in-model time less the estimated cost."


def cost_tip(cost: Cost) -> str:
    """Everything that is known of a cost, one fact a line."""
    if cost.state == "invalid":
        return f"Invalid: {cost.reason}"
    if cost.state == "unknown":
        return "Not measured yet"
    repeats = counted(cost.count, "repeat")
    lines = [f"Isolated cost {time_text(cost.median_us)}, the median of {repeats}"]
    if cost.in_place:
        lines = [
            f"In-model cost {time_text(cost.median_us)}, {_source(cost)}",
            f"Isolated cost {time_text(cost.alone_us)}, the median of {repeats}",
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


def isolated_us(cost: Cost) -> float | None:
    """The isolated cost in µs, where the cost itself is another: that in the model."""
    return cost.alone_us if cost.in_place else None


def partition_text(partition: Partition, cost: Cost) -> str:
    """What a partition costs: ``estimated 41 µs, in the confirmed run 43 µs``.

    Args:
        partition: A partition of a placement.
        cost: The cost of its candidate; one that changed since the placement was made is left
            out.
    """
    text = f"estimated {time_text(partition.estimated_us)}"
    if cost.in_place and cost.median_us == partition.estimated_us:
        text += f" in the model, {_source(cost)} (isolated cost {time_text(cost.alone_us)})"
    if partition.in_place_us is not None:
        text += f", in the confirmed run {time_text(partition.in_place_us)}"
    return text


def _source(cost: Cost) -> str:
    """Where an in-model cost comes from."""
    return "measured in whole placements" if cost.in_place == "seen" else "as predicted"
