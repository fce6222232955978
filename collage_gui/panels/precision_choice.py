"""Chooses the lowest precision that candidates may compute in."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QComboBox

from collage_engine.records.precision import (
    BFLOAT16,
    DEVICE_ONLY,
    FLOAT16,
    FLOAT32,
    INT8,
    TF32,
    short,
)

MEANINGS = {
    FLOAT32: "float32 everywhere",
    TF32: "products on tensor cores, operands rounded to ten bits of mantissa",
    FLOAT16: "operands of products rounded to half precision, where that is faster",
    BFLOAT16: "operands of products rounded to bfloat16, where that is faster",
    INT8: "for models that mark themselves what is rounded to 8 bits (QDQ)",
}
"""Precisions in the order in which they are offered, and what they mean."""


class PrecisionChoice(QComboBox):
    """Lists the precisions that mean something for the target."""

    def __init__(self) -> None:
        super().__init__()
        self.show_target("cpu")

    def show_target(self, kind: str) -> None:
        """List the precisions for a kind of device, cpu or cuda; keep the choice if possible."""
        chosen = self.precision()
        offered = [p for p in MEANINGS if kind == "cuda" or p not in DEVICE_ONLY]
        if offered == [self.itemData(at) for at in range(self.count())]:
            return
        self.blockSignals(True)
        self.clear()
        for at, precision in enumerate(offered):
            self.addItem(short(precision), precision)
            self.setItemData(at, MEANINGS[precision], Qt.ItemDataRole.ToolTipRole)
        self.blockSignals(False)
        self.choose(chosen)

    def precision(self) -> str:
        """Return the chosen precision."""
        return self.currentData() or FLOAT32

    def choose(self, precision: str) -> None:
        """Choose a precision; float32 where it is not listed."""
        self.setCurrentIndex(max(0, self.findData(precision)))
