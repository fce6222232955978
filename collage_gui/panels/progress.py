"""The strip at the bottom while the engine works: stage, counts, rate, time left, what now."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QProgressBar, QPushButton, QSizePolicy, QWidget

from collage_engine.drawing.words import STAGE_TITLES, duration_text
from collage_gui.session import Document
from collage_gui.theme import Theme


class ProgressStrip(QWidget):
    """Hidden while nothing runs."""

    cancel_wanted = Signal()

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__()
        self.document = document
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
        document.running_changed.connect(self.refresh)
        document.progress_changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        document = self.document
        progress = document.progress
        active = document.running or progress is not None
        self.setVisible(active)
        if not active:
            return
        self.cancel.setEnabled(document.running and not document.cancelling)
        if document.cancelling:
            self.stage.setText("Cancelling…")
            self.now.setText("What was measured is kept.")
            return
        current = next(
            (s.stage for s in reversed(list(document.stages.values())) if not s.done), None
        )
        if progress is not None:
            current = current or progress.stage
        self.stage.setText(STAGE_TITLES.get(current or "", "Starting"))
        if progress is None or progress.stage != current or progress.total <= 0:
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
