"""Shows a run's progress in a strip below the graph, and what the engine reports in a log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

from PySide6.QtCore import QSize, Qt, QTime, QTimer
from PySide6.QtGui import QAction, QColor, QTextCharFormat
from PySide6.QtWidgets import (
    QHBoxLayout,
    QPlainTextEdit,
    QProgressBar,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from collage_engine.records.event import Progress
from collage_engine.wording.amounts import duration_text
from collage_engine.wording.figures import latency_text, toolchains_text
from collage_engine.wording.sentences import STAGE_TITLES
from collage_gui.document.document import Document
from collage_gui.engine_client import EngineRequests
from collage_gui.theme import FLOW_MS, KEPT, UNIT, Theme
from collage_gui.widgets import ElidedLabel, action_button, lay_out, letters_px, named, plain_tip


class LogPanel(QPlainTextEdit):
    """Shows a document's log, and follows its end."""

    def __init__(self, requests: EngineRequests, theme: Theme) -> None:
        super().__init__()
        self.theme = theme
        self._lines: deque[tuple[str, str]] = deque(maxlen=KEPT)
        """Level and text of each line."""
        named(self, "logPanel", "Log")
        self.setReadOnly(True)
        self.setMaximumBlockCount(KEPT)
        self.setFrameShape(QPlainTextEdit.Shape.NoFrame)
        self.setPlaceholderText("What the engine reports appears here.")
        self.setFont(theme.mono())
        theme.changed.connect(self._follow_theme)
        requests.logged.connect(self.add)

    def sizeHint(self) -> QSize:
        """Return the size of a terminal, of 80 × 24 letters."""
        return QSize(letters_px(self, 80), 24 * self.fontMetrics().lineSpacing())

    def add(self, level: str, text: str) -> None:
        """Append a line in the colour of its level."""
        bar = self.verticalScrollBar()
        at_end = bar.value() >= bar.maximum() - 4
        mark = {"warning": "Warning: ", "error": "Error: "}.get(level, "")
        line = level, f"{QTime.currentTime().toString('HH:mm:ss')}  {mark}{text}"
        self._lines.append(line)
        self._write(*line)
        if at_end:
            bar.setValue(bar.maximum())

    def _write(self, level: str, line: str) -> None:
        """Append a line in the colour that its level has in the theme of now."""
        colours, form = self.theme.colours, QTextCharFormat()
        tint = {"warning": colours.bad, "error": colours.bad, "engine": colours.quiet}
        form.setForeground(QColor(tint.get(level, colours.text)))
        self.setCurrentCharFormat(form)
        self.appendPlainText(line)

    def _follow_theme(self) -> None:
        """Write the lines that are there in the theme's font and colours."""
        self.setFont(self.theme.mono())
        self.clear()
        for line in self._lines:
            self._write(*line)


BEHIND = ("import", "threads", "build", "export")
"""The stages that a user can do nothing about: the row of stages leaves them out."""
USUAL = ("enumerate", "whole-models", "measure", "search", "confirm")
"""The stages that every run has: they stand in the row before they begin."""


class ProgressStrip(QWidget):
    """Shows the stages, how far the run is, the best placement so far, and ends the run.

    It is hidden while nothing runs. Its buttons never move: every text takes the room that is
    left, and is cut where that is too little.
    """

    def __init__(self, document: Document, actions: Mapping[str, QAction]) -> None:
        super().__init__()
        self._document = document
        self._execution = execution = document.execution
        self.setObjectName("progressStrip")
        self.stage = ElidedLabel("heading")
        self.bar = named(QProgressBar(textVisible=False), "progressBar", "Progress")
        self.bar.setFixedWidth(10 * UNIT)
        self._arrived = time.monotonic()
        """When the news of the progress arrived that is shown."""
        self._clock = QTimer(self, interval=FLOW_MS)
        self._clock.timeout.connect(self._count_down)
        self.counts = named(ElidedLabel(), "progressCounts")
        self.now = ElidedLabel("quiet")
        self.steps = named(ElidedLabel("small"), "progressSteps")
        self.best = named(ElidedLabel("small"), "bestSoFar")
        self.keep = action_button(actions["stop_and_keep"], name="stopAndKeep")
        self.cancel = action_button(actions["cancel"], name="cancelRun")
        for label in (self.stage, self.counts, self.best):
            # As wide as its text where there is room for it; less where there is not.
            label.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        bar = (self.bar, 0, Qt.AlignmentFlag.AlignVCenter)
        first = lay_out(QHBoxLayout(), self.stage, bar, self.counts, (self.now, 1), None, gap=2)
        second = lay_out(QHBoxLayout(), self.best, (self.steps, 1), gap=1)
        lines = lay_out(QVBoxLayout(), first, second, gap=0)
        parts = ((lines, 1), self.keep, self.cancel)
        lay_out(QHBoxLayout(self), *parts, edge=1, gap=1)
        execution.running_changed.connect(self.refresh)
        execution.progress_changed.connect(self._take_news)
        self.refresh()

    def _take_news(self) -> None:
        self._arrived = time.monotonic()
        self.refresh()

    def _count_down(self) -> None:
        """Show the time left now: what takes long may tell nothing for a minute."""
        progress = self._execution.progress
        if progress is not None and self.counts.text():
            self.counts.setText(progress_text(progress, time.monotonic() - self._arrived))

    def refresh(self) -> None:
        """Show the stage under way, how far it is, and what the run has found."""
        execution = self._execution
        progress = execution.progress
        self.setVisible(execution.running or progress is not None)
        self.keep.setVisible(execution.running)
        (self._clock.start if execution.running else self._clock.stop)()
        under_way = [s.stage for s in execution.stages.values() if not s.done]
        stage = under_way[-1] if under_way else progress.stage if progress is not None else ""
        self.steps.setText(self._steps(stage))
        self.best.setText(self._best())
        titles = map(self.stage.fontMetrics().horizontalAdvance, STAGE_TITLES.values())
        self.stage.setMinimumWidth(max(titles) + 4)
        if execution.cancelling:
            self.stage.setText("Cancelling…")
            self.now.setText("What was measured is kept.")
            return
        title = STAGE_TITLES.get(stage, "Starting")
        self.stage.setText(f"Stopping: {title.lower()}" if execution.stopping else title)
        if progress is None or progress.stage != stage or progress.total <= 0:
            self.bar.setRange(0, 0)
            self.counts.setText("")
            self.now.setText("")
            return
        self.bar.setRange(0, progress.total)
        self.bar.setValue(progress.done)
        self.counts.setText(progress_text(progress, time.monotonic() - self._arrived))
        self.now.setText(self._now(progress))
        self.now.setToolTip(plain_tip(self.now.text()))

    def _now(self, progress: Progress) -> str:
        """Return what is worked on: operators as the graph names them, else the engine's words."""
        if not progress.nodes:
            return progress.now
        return self._document.operators.label_with_name(progress.nodes)

    def _steps(self, now: str) -> str:
        """Return ``✓ Finding candidates  ▸ Measuring  · Searching  · Confirming end to end``.

        A stage that was passed over, as in a quick confirmation, is not shown.
        """
        if not self._execution.running:
            return ""
        stages = self._execution.stages
        shown = {name: title for name, title in STAGE_TITLES.items() if name not in BEHIND}
        last = max((at for at, stage in enumerate(shown) if stage in stages), default=0)
        parts = []
        for at, (stage, title) in enumerate(shown.items()):
            state = stages.get(stage)
            if state is None and (stage not in USUAL or at < last):
                continue
            mark = "▸" if stage == now else "✓" if state is not None and state.done else "·"
            parts.append(f"{mark} {title}")
        return "  ".join(parts)

    def _best(self) -> str:
        """Return a line such as ``Best so far: 16.8 ms measured · 1 partition, TVM``."""
        run = self._document.runs.provisional
        if not self._execution.running:
            return ""
        if run is None or run.placement is None:
            return "No placement is timed yet"
        return f"Best so far: {latency_text(run.placement)} · {toolchains_text(run.placement)}"


def progress_text(progress: Progress, since_s: float = 0.0) -> str:
    """Return ``40 s left · 21 of 436 · 1 min of the budget left``.

    Args:
        progress: How far the stage under way is.
        since_s: Seconds since that was told; the times left are shorter by now.
    """
    parts = []
    # A time that is over is not shown: what takes longer than was expected ends when it ends.
    if progress.left_s is not None and progress.left_s - since_s >= 1:
        parts.append(f"{duration_text(progress.left_s - since_s)} left")
    if progress.total > 1:
        parts.append(f"{progress.done} of {progress.total}")
    if progress.run_left_s is not None and progress.run_left_s - since_s >= 1:
        parts.append(f"{duration_text(progress.run_left_s - since_s)} of the budget left")
    return " · ".join(parts)
