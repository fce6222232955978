"""Shows a run's progress in a strip below the graph while the engine works."""

from __future__ import annotations

import time

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QProgressBar,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from collage_engine.drawing.figures import latency_text, toolchains_text
from collage_engine.drawing.formatting import STAGE_TITLES, duration_text
from collage_engine.records.event import Progress
from collage_gui.document.document import Document
from collage_gui.elided_label import ElidedLabel, PartsLabel, plain_tip

BEST_SO_FAR = "Best so far"

STEPS = {
    "enumerate": "Candidates",
    "whole-models": "Whole models",
    "mixes": "Mixes",
    "measure": "Measure",
    "tune": "Tune",
    "search": "Search",
    "calibrate": "In the model",
    "precision": "Precision",
    "confirm": "Confirm",
}
"""Names of the stages in the row of stages. Stages that a user can do nothing about are left
out."""
USUAL = ("enumerate", "whole-models", "measure", "search", "confirm")
"""The stages that every run has: they stand in the row before they begin."""

BAR_MOST = 120
"""Largest width of the bar, in pixels; chosen, so that the texts beside it have room."""
TICK_MS = 1000
"""Milliseconds between updates of the time left while no news arrives; chosen: by the second."""
GAP = 14
"""Pixels between the parts of the strip, and beside them; chosen."""
BAR_LEAST = 40
"""Least width of the bar, in pixels; chosen: how full it is can still be seen."""
NOW_LEAST = 20
"""Least width of what is worked on, in pixels; chosen: it gives way first."""
LEAST_RATE = 0.05
"""Steps per second below which the rate is not shown: it would read 0.0. Follows from the one
decimal that is shown."""
LONG_TIME_LEFT = "59 min 59 s left"
LONG_BEST = "Best so far: 999 ms measured"
"""The longest usual texts of the time left and of the best placement: there is always room for
them."""


class ProgressStrip(QWidget):
    """Shows the stages, how far the run is, the best placement so far, and ends the run.

    It is hidden while nothing runs. Its buttons never move: every text takes the room that is
    left, and is cut where that is too little.
    """

    cancel_wanted = Signal()
    keep_wanted = Signal()
    """End the run with the best placement so far."""

    def __init__(self, document: Document) -> None:
        super().__init__()
        self._document = document
        self._execution = execution = document.execution
        self.setObjectName("progressStrip")
        self.stage = ElidedLabel()
        self.stage.setProperty("heading", True)
        self.bar = QProgressBar(textVisible=False)
        self.bar.setObjectName("progressBar")
        self.bar.setAccessibleName("Progress")
        self.bar.setMinimumWidth(BAR_LEAST)
        self.bar.setMaximumWidth(BAR_MOST)
        self._arrived = time.monotonic()
        """When the news of the progress arrived that is shown."""
        self._clock = QTimer(self, interval=TICK_MS)
        self._clock.timeout.connect(self._count_down)
        self.counts = PartsLabel(LONG_TIME_LEFT)
        self.counts.setObjectName("progressCounts")
        self.now = ElidedLabel()
        self.now.setProperty("quiet", True)
        self.now.setMinimumWidth(NOW_LEAST)
        self.steps = PartsLabel(separator="  ")
        self.steps.setObjectName("progressSteps")
        self.steps.setProperty("small", True)
        self.best = PartsLabel(LONG_BEST)
        self.best.setObjectName("bestSoFar")
        self.best.setProperty("small", True)
        self.keep = QPushButton("Stop and keep")
        self.keep.setObjectName("stopAndKeep")
        self.keep.setToolTip(
            "End the run with the best placement so far, which is confirmed quickly"
        )
        self.keep.clicked.connect(self.keep_wanted)
        self.cancel = QPushButton("Cancel")
        self.cancel.setObjectName("cancelRun")
        self.cancel.setToolTip("End the run without a result; what was measured is kept")
        self.cancel.clicked.connect(self.cancel_wanted)
        first, second = QHBoxLayout(), QHBoxLayout()
        for line in (first, second):
            line.setSpacing(GAP)
        for label in (self.stage, self.counts, self.steps, self.best):
            # As wide as its text where there is room for it; less where there is not.
            label.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        first.addWidget(self.stage)
        first.addWidget(self.bar, 0, Qt.AlignmentFlag.AlignVCenter)
        first.addWidget(self.counts)
        first.addWidget(self.now, 1)
        first.addStretch(0)
        second.addWidget(self.steps)
        second.addWidget(self.best)
        second.addStretch(1)
        lines = QVBoxLayout()
        lines.setSpacing(2)
        lines.addLayout(first)
        lines.addLayout(second)
        box = QHBoxLayout(self)
        box.setContentsMargins(GAP, 6, GAP, 6)
        box.setSpacing(GAP)
        box.addLayout(lines, 1)
        box.addWidget(self.keep)
        box.addWidget(self.cancel)
        execution.running_changed.connect(self.refresh)
        execution.progress_changed.connect(self._take_news)
        self.refresh()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Gives the names of stages their whole room where the other texts keep their least."""
        super().resizeEvent(event)
        metrics = self.stage.fontMetrics()
        longest = max(metrics.horizontalAdvance(STAGE_TITLES[stage]) for stage in STEPS) + 4
        buttons = self.keep.sizeHint().width() + self.cancel.sizeHint().width()
        room = event.size().width() - buttons - 4 * GAP
        least = longest + GAP + BAR_LEAST + GAP + self.counts.minimumSizeHint().width()
        self.stage.setMinimumWidth(longest if room >= least else 0)
        self.now.setVisible(room >= least + GAP + NOW_LEAST)

    def _take_news(self) -> None:
        self._arrived = time.monotonic()
        self.refresh()

    def _count_down(self) -> None:
        """Show the time left now: what takes long may tell nothing for a minute."""
        progress = self._execution.progress
        if progress is not None and self.counts.text():
            self.counts.set_parts(progress_parts(progress, time.monotonic() - self._arrived))

    def refresh(self) -> None:
        """Show the stage under way, how far it is, and what the run has found."""
        execution = self._execution
        progress = execution.progress
        self.setVisible(execution.running or progress is not None)
        self.cancel.setEnabled(execution.running and not execution.cancelling)
        self.keep.setEnabled(
            execution.running and not execution.stopping and execution.provisional is not None
        )
        self.keep.setVisible(execution.running)
        (self._clock.start if execution.running else self._clock.stop)()
        under_way = [s.stage for s in execution.stages.values() if not s.done]
        stage = under_way[-1] if under_way else progress.stage if progress is not None else ""
        self.steps.set_parts(self._steps(stage))
        self.best.set_parts(self._best())
        if execution.cancelling:
            self.stage.setText("Cancelling…")
            self.now.setText("What was measured is kept.")
            return
        title = STAGE_TITLES.get(stage, "Starting")
        self.stage.setText(f"Stopping: {title.lower()}" if execution.stopping else title)
        if progress is None or progress.stage != stage or progress.total <= 0:
            self.bar.setRange(0, 0)
            self.counts.set_parts(())
            self.now.setText("")
            return
        self.bar.setRange(0, progress.total)
        self.bar.setValue(progress.done)
        self.counts.set_parts(progress_parts(progress, time.monotonic() - self._arrived))
        self.now.setText(self._now(progress))
        self.now.setToolTip(plain_tip(self.now.text()))

    def _now(self, progress: Progress) -> str:
        """Returns what is worked on: operators as the graph names them, else the engine's words."""
        graph = self._document.operators
        if graph is None or not progress.nodes:
            return progress.now
        return graph.label_with_name(progress.nodes)

    def _steps(self, now: str) -> list[tuple[str, int]]:
        """Returns ``✓ Candidates ✓ Whole models ▸ Measure · Search · Confirm``, with ranks.

        What is done now is the most important one, and its neighbours come next. A stage that was
        passed over, as in a quick confirmation, is not shown.
        """
        if not self._execution.running:
            return []
        stages, order = self._execution.stages, list(STEPS)
        begun = [at for at, stage in enumerate(order) if stage in stages]
        here = order.index(now) if now in order else max(begun, default=0)
        parts = []
        for at, (stage, title) in enumerate(STEPS.items()):
            known = stages.get(stage)
            if known is None and (stage not in USUAL or at < max(begun, default=0)):
                continue
            mark = "▸" if stage == now else "✓" if known is not None and known.done else "·"
            parts.append((f"{mark} {title}", 2 * abs(at - here) - (at > here)))
        return parts

    def _best(self) -> list[tuple[str, int]]:
        """Return a line such as ``Best so far: 16.8 ms measured · 1 partition, TVM``."""
        run = self._execution.provisional
        parts = []
        if run is not None and run.placement is not None:
            placement = run.placement
            parts.append((best_so_far(latency_text(placement)), 0))
            parts.append((toolchains_text(placement), 2))
        elif self._execution.running:
            parts.append(("No placement is timed yet", 0))
        shape, (number, count) = self._document.shapes.shown, self._document.shapes.place
        if shape is not None and count > 1 and self._execution.running:
            parts.insert(0, (f"{shape.choice.text}, shape {number} of {count}", 1))
        return parts


def progress_parts(progress: Progress, since_s: float = 0.0) -> list[tuple[str, int]]:
    """Returns ``21 of 436 · 2.9/s · 40 s left · 1 min of the budget left`` in parts.

    Args:
        progress: How far the stage under way is.
        since_s: Seconds since that was told; the times left are shorter by now.

    Returns:
        Texts with their ranks: the time left is the most important, the rate the least.
    """
    parts = [(f"{progress.done} of {progress.total}", 2)] if progress.total > 1 else []
    if progress.rate is not None and progress.rate >= LEAST_RATE:
        parts.append((f"{progress.rate:.1f}/s", 3))
    # A time that is over is not shown: what takes longer than was expected ends when it ends.
    if progress.left_s is not None and progress.left_s - since_s >= 1:
        parts.append((time_left(duration_text(progress.left_s - since_s)), 0))
    if progress.run_left_s is not None and progress.run_left_s - since_s >= 1:
        parts.append((f"{duration_text(progress.run_left_s - since_s)} of the budget left", 1))
    return parts


def time_left(time: str) -> str:
    """Returns the time that is left of a stage."""
    return f"{time} left"


def best_so_far(latency: str) -> str:
    """Returns the best placement that a run under way has found."""
    return f"{BEST_SO_FAR}: {latency}"
