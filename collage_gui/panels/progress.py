"""The strip below the graph while the engine works."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QProgressBar, QPushButton, QWidget

from collage_engine.drawing.formatting import STAGE_TITLES, duration_text
from collage_gui.document.execution import Execution
from collage_gui.elided_label import ElidedLabel


class ProgressStrip(QWidget):
    """Shows stage, counts, rate, time left and current candidate; hidden while nothing runs."""

    cancel_wanted = Signal()

    def __init__(self, execution: Execution) -> None:
        super().__init__()
        self._execution = execution
        self.setObjectName("progressStrip")
        self.stage = ElidedLabel()
        self.stage.setProperty("heading", True)
        self.bar = QProgressBar(textVisible=False)
        self.bar.setObjectName("progressBar")
        self.bar.setAccessibleName("Progress")
        self.bar.setMinimumWidth(40)
        self.bar.setMaximumWidth(220)
        self.counts = ElidedLabel()
        self.counts.setObjectName("progressCounts")
        self.now = ElidedLabel()
        self.now.setProperty("quiet", True)
        self.cancel = QPushButton("Cancel")
        self.cancel.setObjectName("cancelRun")
        self.cancel.clicked.connect(self.cancel_wanted)
        box = QHBoxLayout(self)
        box.setContentsMargins(14, 6, 14, 6)
        box.setSpacing(14)
        box.addWidget(self.stage, 3)
        box.addWidget(self.bar, 3, Qt.AlignmentFlag.AlignVCenter)
        box.addWidget(self.counts, 4)
        box.addWidget(self.now, 4)
        box.addWidget(self.cancel)
        execution.running_changed.connect(self.refresh)
        execution.progress_changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Show the stage under way and how far it is."""
        execution = self._execution
        progress = execution.progress
        self.setVisible(execution.running or progress is not None)
        self.cancel.setEnabled(execution.running and not execution.cancelling)
        if execution.cancelling:
            self.stage.setText("Cancelling…")
            self.now.setText("What was measured is kept.")
            return
        under_way = [s.stage for s in execution.stages.values() if not s.done]
        stage = under_way[-1] if under_way else progress.stage if progress is not None else ""
        self.stage.setText(STAGE_TITLES.get(stage, "Starting"))
        if progress is None or progress.stage != stage or progress.total <= 0:
            self.bar.setRange(0, 0)
            self.counts.setText("")
            self.now.setText("")
            return
        self.bar.setRange(0, progress.total)
        self.bar.setValue(progress.done)
        parts = [f"{progress.done} of {progress.total}"]
        if progress.rate:
            parts.append(f"{progress.rate:.1f}/s")
        if progress.left_s is not None:
            parts.append(f"{duration_text(progress.left_s)} left")
        self.counts.setText(" · ".join(parts))
        self.now.setText(progress.now)
        self.now.setToolTip(progress.now)
