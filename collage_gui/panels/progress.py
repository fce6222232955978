"""The strip below the graph while the engine works."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QProgressBar, QPushButton, QSizePolicy, QWidget

from collage_engine.drawing.formatting import STAGE_TITLES, duration_text
from collage_gui.document.execution import Execution


class ProgressStrip(QWidget):
    """Shows stage, counts, rate, time left and current candidate; hidden while nothing runs."""

    cancel_wanted = Signal()

    def __init__(self, execution: Execution) -> None:
        super().__init__()
        self._execution = execution
        self.setObjectName("progressStrip")
        self.stage = QLabel()
        self.stage.setProperty("heading", True)
        self.bar = QProgressBar(textVisible=False)
        self.bar.setObjectName("progressBar")
        self.bar.setAccessibleName("Progress")
        self.bar.setFixedWidth(220)
        self.counts = QLabel()
        self.counts.setObjectName("progressCounts")
        self.now = QLabel()
        self.now.setProperty("quiet", True)
        self.now.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.now.setMinimumWidth(120)
        self.cancel = QPushButton("Cancel")
        self.cancel.setObjectName("cancelRun")
        self.cancel.clicked.connect(self.cancel_wanted)
        box = QHBoxLayout(self)
        box.setContentsMargins(14, 6, 14, 6)
        box.setSpacing(14)
        box.addWidget(self.stage)
        box.addWidget(self.bar, 0, Qt.AlignmentFlag.AlignVCenter)
        box.addWidget(self.counts)
        box.addWidget(self.now, 1)
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
