"""Windows on recorded data, and fixtures that fail a test which leaves something behind."""

# ruff: noqa: E402 — the environment and the path are set before Qt and the helpers load

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import pytest

pytest.importorskip("PySide6.QtWidgets")
pytest.importorskip("pytestqt")

from PySide6.QtCore import QMimeData, QPoint, QPointF, QProcess, Qt, QThread, QTimer, QUrl
from PySide6.QtGui import QDropEvent, QWheelEvent
from PySide6.QtWidgets import QApplication, QWidget

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from collage_gui.document_window.window import DocumentWindow
from collage_gui.engine_client import Connection
from collage_gui.main_window.window import MainWindow
from collage_gui.messages import Banner
from collage_gui.panels.run_settings import ToolchainList
from collage_gui.preferences import Preferences
from collage_gui.theme import Theme

LIMIT_MS = 100_000


def played(*options: str) -> Connection:
    """A connection to the real service on recorded data."""
    return Connection(
        "command", " ".join([sys.executable, str(HERE / "recorded_engine.py"), *options])
    )


def check(toolchains: ToolchainList, *names: str) -> None:
    """Check these toolchains, where they can be checked, and no others."""
    for at in range(toolchains.count()):
        item = toolchains.item(at)
        if item.flags() & Qt.ItemFlag.ItemIsUserCheckable:
            on = item.data(Qt.ItemDataRole.UserRole) in names
            item.setCheckState(Qt.CheckState.Checked if on else Qt.CheckState.Unchecked)


def turn_wheel(widget: QWidget, degrees: int = 15) -> None:
    """Turn the wheel up in the middle of a widget."""
    middle = QPointF(widget.rect().center())
    turned, none = QPoint(0, 8 * degrees), QPoint()
    buttons = Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase
    event = QWheelEvent(middle, widget.mapToGlobal(middle), none, turned, *buttons, False)
    QApplication.sendEvent(widget, event)


class Driver:
    """The real window, and short words for what a person does with it."""

    def __init__(self, qtbot, folder: Path, connection: Connection) -> None:
        self.qtbot, self.folder = qtbot, folder
        self.preferences = Preferences(str(folder / "settings.ini"))
        self.preferences.set("theme", "light")
        self.theme = Theme(self.preferences)
        self.window = MainWindow(self.preferences, self.theme, connection)
        self.window.resize(1400, 900)
        self.window.show()

    @property
    def banner(self) -> Banner:
        """The banner that is seen: that of the page in front, or the welcome page's."""
        page = self.window.documents.current
        return page.banner if page is not None else self.window.banner

    def start(self, ready: bool = True) -> Driver:
        self.window.engine.start()
        if ready:
            self.until(lambda: bool(self.window.engine.states))
        return self

    def until(self, ready: Callable[[], object], limit_ms: int = LIMIT_MS) -> None:
        self.qtbot.waitUntil(lambda: bool(ready()), timeout=limit_ms)

    def model(self, name: str = "small.onnx") -> str:
        path = self.folder / name
        if not path.exists():
            path.write_bytes(b"not read by an engine that plays")
        return str(path)

    def open(self, name: str = "small.onnx") -> DocumentWindow:
        page = self.window.documents.open_path(self.model(name))
        self.until(lambda: page.picture.drawn.rectangles)
        return page

    def drop(self, *paths: str) -> None:
        """Drop files onto the window."""
        mime = QMimeData()
        mime.setUrls([QUrl.fromLocalFile(path) for path in paths])
        how = Qt.DropAction.CopyAction, mime, Qt.MouseButton.LeftButton
        self.window.dropEvent(QDropEvent(QPoint(20, 20), *how, Qt.KeyboardModifier.NoModifier))

    def run(self, page: DocumentWindow) -> None:
        """Run and wait for its end; what was asked before, as a search, is answered first."""
        document = page.document
        self.until(lambda: not document.client._pending)
        before = len(document.runs.all)
        page.runs.start()
        self.until(
            lambda: (
                not document.execution.running
                and len(document.runs.all) > before
                and document.placement.shown is not None
                and document.placement.shown.run == document.runs.all[-1].id
            )
        )

    def question(self, page: DocumentWindow, operators) -> None:
        page.document.selection.select(operators)
        self.until(lambda: page.document.questions.explanation is not None)

    def trigger(self, action: str) -> None:
        self.window.refresh()
        found = self.window.action_set.by_id[action]
        assert found.isEnabled(), f"{action} is not enabled"
        found.trigger()

    def close(self) -> None:
        self.window.closing = True
        self.window.close()
        self.window.deleteLater()
        QApplication.processEvents()


@pytest.fixture
def drive(qtbot, tmp_path, monkeypatch) -> Iterator[Callable[..., Driver]]:
    """``drive("--slow", "0.1")``: a window with an engine that plays with these options."""
    monkeypatch.setenv("COLLAGE_EXPLORER_RECOVERY", str(tmp_path / "recovery"))
    made: list[Driver] = []

    def make(*options: str, start: bool = True, ready: bool = True) -> Driver:
        driver = Driver(qtbot, tmp_path, played(*options))
        made.append(driver)
        return driver.start(ready) if start else driver

    yield make
    for driver in made:
        driver.close()


@pytest.fixture
def opened(drive) -> tuple[Driver, DocumentWindow]:
    """A window, and its page with a small model."""
    driver = drive()
    return driver, driver.open()


@pytest.fixture
def placed(opened) -> tuple[Driver, DocumentWindow]:
    """A window, and its page with a small model that a run has placed."""
    driver, page = opened
    driver.run(page)
    return driver, page


@pytest.fixture(autouse=True)
def nothing_left_behind(request) -> Iterator[None]:
    """No process, thread, running timer or top-level window may outlive a test."""
    yield
    app = QApplication.instance()
    if app is None:
        return
    for _ in range(4):
        app.sendPostedEvents(None, 52)  # DeferredDelete
        app.processEvents()
    windows = [w for w in app.topLevelWidgets() if isinstance(w, MainWindow) and w.isVisible()]
    assert not windows, f"windows left open: {windows}"
    for window in [w for w in app.topLevelWidgets() if isinstance(w, MainWindow)]:
        processes = [
            p
            for p in window.findChildren(QProcess)
            if p.state() != QProcess.ProcessState.NotRunning
        ]
        threads = [t for t in window.findChildren(QThread) if t.isRunning()]
        timers = [t for t in window.findChildren(QTimer) if t.isActive() and not t.isSingleShot()]
        assert not processes and not threads, f"left running: {processes} {threads}"
        assert not timers, f"timers left running: {timers}"
