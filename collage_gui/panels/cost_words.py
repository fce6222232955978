"""What the kinds of times of a candidate are, in words: estimated, alone, in place."""

from __future__ import annotations

from collage_engine.drawing.words import DASH, counted, time_text
from collage_engine.records.cost import Cost
from collage_engine.records.placement import Partition

ESTIMATED = (
    "What the search reckons with. Where whole covers were looked into: the time within the model, "
    "seen there, or predicted from what was seen. Else: the time alone."
)
ALONE = (
    "Timed alone, over and over: its weights and code are in the nearest caches then. Within the "
    "model, where all else runs in between, it takes longer."
)
IN_PLACE = "Its part of the confirmed run: the whole exported model, profiled."
DIFFERENCE = "In place less estimated"


def cost_tip(cost: Cost) -> str:
    """Median, spread, repeats, when, on what."""
    if cost.state == "invalid":
        return f"Invalid: {cost.reason}"
    if cost.state == "unknown":
        return "Not measured yet"
    repeats = counted(cost.count, "repeat")
    lines = [f"Median {time_text(cost.median_us)} of {repeats}, alone"]
    if cost.in_place:
        lines = [
            f"{time_text(cost.median_us)} within the model, {_how(cost)}",
            f"Median {time_text(cost.alone_us)} of {repeats}, alone",
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


def alone_us(cost: Cost) -> float | None:
    """The time alone, where the cost is another: that within the model."""
    return cost.alone_us if cost.in_place else None


def partition_words(partition: Partition, cost: Cost) -> str:
    """``estimated 41 µs within the model (alone 33 µs), in place 43 µs``

    A cost that has changed since the placement was made is none of its words.
    """
    text = f"estimated {time_text(partition.estimated_us)}"
    if cost.in_place and cost.median_us == partition.estimated_us:
        text += f" within the model, {_how(cost)} (alone {time_text(cost.alone_us)})"
    if partition.in_place_us is not None:
        text += f", in place {time_text(partition.in_place_us)}"
    return text


def _how(cost: Cost) -> str:
    return "as seen in covers that were run" if cost.in_place == "seen" else "as predicted"
