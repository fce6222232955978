"""Moves along the order in which products are rounded, and has a run confirm the place."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QSlider, QWidget

from collage_engine.drawing.rounding import RoundingCurve, RoundingPoint
from collage_engine.wording.amounts import significant, time_text
from collage_gui.document.document import Document
from collage_gui.theme import UNIT
from collage_gui.widgets import ElidedLabel, lay_out, named, push_button, text_label

LEAST, MOST = 0.001, 0.05
"""Tolerances at the ends of the slider: below 0.1 % hardly a product of seven models could be
rounded, and above 5 % hardly an output is of use."""
STEPS = 20 * UNIT
"""Steps of the slider, and its width in pixels: each makes the tolerance 2.5 % larger."""


class PrecisionSlider(QWidget):
    """A bar below the graph: a tolerance, what is predicted for it, and a run that confirms it.

    It is shown while the graph is coloured by precision, for runs that know what rounding single
    products does.
    """

    moved = Signal()
    """Another point of the curve is shown."""
    run_wanted = Signal(str, float)
    """The user wants a run with a precision and a tolerance."""

    def __init__(self, document: Document) -> None:
        super().__init__()
        self._document = document
        self._run_id = ""
        self._curve: RoundingCurve | None = None
        self.point: RoundingPoint | None = None
        """What is predicted where the slider stands; None: the run's own placement is shown."""
        self.setObjectName("precisionSlider")
        self.slider = named(
            QSlider(Qt.Orientation.Horizontal),
            "toleranceSlider",
            "Tolerance",
            "What another tolerance would bring: the products that would be rounded are coloured "
            "at once, time and error are predicted from what the run has measured",
        )
        self.slider.setRange(0, STEPS)
        self.slider.setFixedWidth(STEPS)
        self.slider.valueChanged.connect(self._slid)
        self.tolerance = text_label(wraps=False)
        self.predicted = named(ElidedLabel(), "predictedPrecision")
        tip = "Confirm the prediction: run with this tolerance"
        self.confirm = push_button("Run with it", "confirmTolerance", self._confirm, tip)
        parts = (self.slider, self.tolerance, (self.predicted, 1), self.confirm)
        lay_out(QHBoxLayout(self), *parts, edge=1)
        self.hide()

    @property
    def value(self) -> float:
        """Return the tolerance at which the slider stands, as ``max|y−r| / max|r|``."""
        return LEAST * float((MOST / LEAST) ** (self.slider.value() / STEPS))

    def refresh(self, mode: str) -> None:
        """Show the run whose placement is shown; the slider goes back to the run's tolerance.

        Args:
            mode: By what the graph is coloured.
        """
        run = self._document.runs.shown_or_last()
        curve = RoundingCurve.of(run) if mode == "precision" else None
        about = run.accuracy if run is not None else None
        if run is not None and about is not None and curve is not None and run.id != self._run_id:
            self._run_id, self._curve, self.point = run.id, curve, None
            with QSignalBlocker(self.slider):
                self.slider.setValue(_step(about.tolerance))
            self._show_tolerance(about.tolerance)
            self.predicted.setText("Move the slider to see what another tolerance would bring")
            self.moved.emit()
        elif curve is None:
            self._run_id, self._curve, self.point = "", None, None
            self.moved.emit()
        self.confirm.setEnabled(self.point is not None and not self._document.running)
        self.setVisible(curve is not None)

    def _slid(self) -> None:
        if self._curve is None:
            return
        self.point = self._curve.at(self.value)
        self._show_tolerance(self.value)
        rounded, float32_time = len(self.point.products), time_text(self._curve.best_us)
        self.predicted.setText(
            f"Predicted: {rounded} of {len(self._curve.order)} rounded, error "
            f"{significant(100 * self.point.error)} %, {time_text(self.point.us)} "
            f"(float32 {float32_time})"
            if rounded
            else f"Predicted: nothing faster than {float32_time} in float32 keeps it"
        )
        self.confirm.setEnabled(not self._document.running)
        self.moved.emit()

    def _show_tolerance(self, tolerance: float) -> None:
        self.tolerance.setText(f"Tolerance {significant(100 * tolerance)} %")

    def _confirm(self) -> None:
        run = self._document.runs.find(self._run_id)
        if run is not None and run.accuracy is not None:
            self.run_wanted.emit(run.accuracy.precision, self.value)


def _step(tolerance: float) -> int:
    """Return the step of the slider that is nearest to a tolerance."""
    steps = range(STEPS + 1)
    return min(steps, key=lambda step: abs(LEAST * (MOST / LEAST) ** (step / STEPS) - tolerance))
