"""Lists the runs and baselines that numbers can be compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtWidgets import QComboBox

from collage_engine.drawing.baselines import baseline_title
from collage_gui.document.reference import Reference

if TYPE_CHECKING:
    from collage_gui.document.document import Document


def fill_references(combo: QComboBox, document: Document | None, prefix: str = "") -> None:
    """List the best baseline, every measured baseline of the shown run, and every other run.

    Args:
        combo: The list; its data are (kind, name) of a ``Reference``.
        document: The document; without one there is only the best baseline.
        prefix: What stands before each entry.
    """
    entries = [("Best baseline", Reference())]
    run = document.runs.shown_or_last() if document is not None else None
    if document is not None and run is not None:
        entries += [
            (baseline_title(baseline), Reference("baseline", baseline.name))
            for baseline in run.baselines
            if baseline.measured_us is not None
        ]
        entries += [
            (document.runs.title_of(each), Reference("run", each.id))
            for each in document.runs.visible
            if each is not run or document.comparison.reference == Reference("run", each.id)
        ]
    combo.blockSignals(True)
    combo.clear()
    for label, reference in entries:
        combo.addItem(prefix + label, (reference.kind, reference.name))
        if document is not None and reference == document.comparison.reference:
            combo.setCurrentIndex(combo.count() - 1)
    combo.blockSignals(False)
