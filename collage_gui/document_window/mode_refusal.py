"""Says why colouring the graph by a quantity would say nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.records.precision import FLOAT32

if TYPE_CHECKING:
    from collage_engine.drawing.box_styles import Mode
    from collage_gui.document.document import Document


def mode_refusal(document: Document, mode: Mode) -> str:
    """Says why colouring by a quantity would say nothing now; empty where it says something."""
    shown = document.placement.shown
    if mode == "toolchain":
        return ""
    if shown is None:
        return "There is no placement yet."
    partitions = shown.placement.partitions
    if mode == "in-model" and all(p.in_place_us is None for p in partitions):
        return "The shown placement was not profiled in a confirmed run."
    if mode == "roofline" and all(p.estimated_us is None for p in partitions):
        return "No partition has a time."
    if mode == "changes" and len(document.runs.visible) < 2:
        return "There is no other run to compare with."
    if mode == "device" and len({p.device for p in partitions}) < 2:
        return "Everything runs on one device."
    if mode == "precision" and all(p.precision == FLOAT32 for p in partitions):
        run = document.runs.shown_or_last()
        if run is None or run.accuracy is None or not run.accuracy.products:
            return (
                "Everything is in float32; a run with a lower precision tells what rounding does."
            )
    return ""
