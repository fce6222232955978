"""Says why colouring the graph by a quantity would say nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.records.precision import FLOAT32
from collage_gui import words

if TYPE_CHECKING:
    from collage_engine.drawing.box_styles import Mode
    from collage_gui.document.document import Document


def mode_refusal(document: Document, mode: Mode) -> str:
    """Says why colouring by a quantity would say nothing now; empty where it says something."""
    shown = document.placement.shown
    if mode == "toolchain":
        return ""
    if shown is None:
        return words.NO_PLACEMENT
    partitions = shown.placement.partitions
    if mode == "in-model" and all(p.in_place_us is None for p in partitions):
        return words.NOT_PROFILED
    if mode == "roofline" and all(p.estimated_us is None for p in partitions):
        return words.NO_TIMES
    if mode == "changes" and len(document.runs.visible) < 2:
        return words.NO_OTHER_RUN
    if mode == "device" and len({p.device for p in partitions}) < 2:
        return words.ONE_DEVICE
    if mode == "precision" and all(p.precision == FLOAT32 for p in partitions):
        run = document.runs.shown_or_last()
        if run is None or run.accuracy is None or not run.accuracy.products:
            return words.NOT_REDUCED
    if mode == "gain" and not document.comparison.reference_partitions():
        return words.REFERENCE_WITHOUT_TIMES
    return ""
