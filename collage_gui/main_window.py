"""The main window: documents in tabs, opening and closing them."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from PySide6.QtCore import QByteArray, QFileSystemWatcher, Qt, QTimer
from PySide6.QtGui import QAction
from PySide6.QtWidgets import (
    QFileDialog,
    QLabel,
    QMessageBox,
    QStackedWidget,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from collage_gui import recovery
from collage_gui.assets import asset
from collage_gui.banner import Banner
from collage_gui.connections import Connection, parse_connection
from collage_gui.document_window import DocumentWindow
from collage_gui.engine_client import EngineClient
from collage_gui.palette import CommandPalette, ShortcutsPage
from collage_gui.preferences import Preferences
from collage_gui.preferences_page import PreferencesPage
from collage_gui.session import Document
from collage_gui.theme import Theme
from collage_gui.welcome import WelcomePage
from collage_gui.window_engine import WindowEngine

KINDS = "Models and sessions (*.onnx *.collage);;All files (*)"


class MainWindow(WindowEngine):
    """Everything of the desktop; ``start_engine`` brings it to life."""

    def __init__(
        self, preferences: Preferences, theme: Theme, connection: Connection | None = None
    ) -> None:
        super().__init__()
        self.preferences, self.theme = preferences, theme
        self.setObjectName("mainWindow")
        self.setWindowTitle("Collage Explorer")
        self.setAcceptDrops(True)
        self.resize(1480, 940)
        stored = str(preferences.store.value("connection", "local"))
        try:
            self.connection = connection or parse_connection(stored)
        except ValueError:
            self.connection = Connection()
        self.client = EngineClient(self.connection, self)
        self.states: tuple = ()
        self.closing = False
        self._copies: dict[str, recovery.Copy] = {}
        self._palette: CommandPalette | None = None
        self._old_session: bytes | None = None

        self.banner = Banner("banner")
        self.welcome = WelcomePage(preferences, theme)
        self.tabs = QTabWidget(documentMode=True, tabsClosable=True, movable=True)
        self.tabs.setObjectName("documents")
        self.tabs.tabCloseRequested.connect(self.close_document)
        self.tabs.currentChanged.connect(self._tab_changed)
        self.stack = QStackedWidget()
        self.stack.addWidget(self.welcome)
        self.stack.addWidget(self.tabs)
        middle = QWidget()
        column = QVBoxLayout(middle)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self.banner)
        column.addWidget(self.stack, 1)
        self.setCentralWidget(middle)

        self.actions_by_id: dict[str, QAction] = {}
        self._make_actions()
        self._make_menus()
        self._make_toolbar()
        self.device = QLabel()
        self.device.setObjectName("device")
        self.selection_text = QLabel()
        self.statusBar().addWidget(self.selection_text, 1)
        self.statusBar().addPermanentWidget(self.device)
        self.statusBar().setSizeGripEnabled(False)

        self.welcome.open_wanted.connect(self.open_dialog)
        self.welcome.sample_wanted.connect(self.open_sample)
        self.welcome.file_wanted.connect(self.open_path)
        self.welcome.recover_wanted.connect(self.recover)
        self.welcome.discard_wanted.connect(self._discard_lost)
        self.client.ready.connect(self._engine_ready)
        self.client.stopped.connect(self._engine_stopped)
        self.client.unresponsive.connect(self._engine_unresponsive)
        self.client.logged.connect(self._engine_logged)
        preferences.changed.connect(self._preference)
        theme.changed.connect(self._themed)
        self._watcher = QFileSystemWatcher(self)
        self._watcher.fileChanged.connect(self._file_changed)
        self._autosave = QTimer(self, interval=20_000)
        self._autosave.timeout.connect(self.autosave)
        self._autosave.start()
        geometry = preferences.store.value("window/geometry")
        if isinstance(geometry, QByteArray):
            self.restoreGeometry(geometry)
        self.welcome.show_lost(recovery.left_behind())
        self._update()
        self._show_device()

    # -- documents ---------------------------------------------------------------------

    def open_dialog(self) -> None:
        paths, _ = QFileDialog.getOpenFileNames(self, "Open", "", KINDS)
        for path in paths:
            self.open_path(path)

    def open_sample(self) -> None:
        found = next(
            (
                p
                for name in ("mnist.onnx", "mnist-12.onnx")
                if (p := asset(f"models/{name}")).exists()
            ),
            None,
        )
        if found is None:
            found = next(iter(sorted(asset("models").glob("*.onnx"))), None)
        if found is None:
            self.banner.say("The sample model is not installed.", "error")
        else:
            self.open_path(str(found))

    def open_path(self, path: str, copy: recovery.Copy | None = None) -> DocumentWindow:
        """Open a model or a session in a new tab; a failure is said, what is open stays."""
        path = os.path.abspath(path)
        for page in self.pages:
            if path in (page.document.path, page.document.session_path) and copy is None:
                self.tabs.setCurrentWidget(page)
                return page
        document = Document(self.client, self)
        page = DocumentWindow(document, self.theme, self.preferences)
        page.show_toolchains(self.states)
        page.run_settings.show_device(self._device_text())
        document.opened.connect(lambda: self._document_opened(page))
        document.title_changed.connect(self._titles)
        for signal in (document.running_changed, document.runs_changed, document.pins_changed,
                       document.placement_changed, document.selection_changed,
                       document.graph_changed, document.reference_changed):  # fmt: skip
            signal.connect(self._update)
        page.mode_changed.connect(self._update)
        document.run_finished.connect(lambda *_: self._save_copy(page))
        document.pins_changed.connect(lambda: self._save_later(page))
        page.run_settings.threads.valueChanged.connect(lambda _: self._update())
        page.run_settings.budget.valueChanged.connect(lambda _: self._update())
        if copy is not None:
            document.path, document.session_path = copy.source, copy.saved_as
            document.open_session(str(copy.session), recovered=True)
        elif path.endswith(".collage"):
            document.open_session(path)
        else:
            document.open_model(path)
        failed = partial(self._open_failed, page)
        document.failed.connect(failed)
        document.opened.connect(
            lambda: document.failed.disconnect(failed) if self._unhook(page) else None
        )
        self.tabs.addTab(page, document.title)
        self.stack.setCurrentWidget(self.tabs)
        self.tabs.setCurrentWidget(page)
        self._update()
        return page

    def _unhook(self, page: DocumentWindow) -> bool:
        """True the first time a page has opened: later failures belong to its own banner."""
        first = not page.property("opened")
        page.setProperty("opened", True)
        return first

    def _open_failed(self, page: DocumentWindow, reason: str) -> None:
        """The page goes; the previous work stays; the window says why."""
        if page.property("opened") or page not in self.pages:
            return
        self._remove(page)
        if self.client.state == "stopped":
            self.banner.say(reason, "error", "Restart the engine", self.restart_engine, "engine")
        else:
            self.banner.say(reason, "error", topic="open")
        self.preferences.changed.emit("recent")

    def _document_opened(self, page: DocumentWindow) -> None:
        document = page.document
        path = document.session_path or document.path
        self.banner.clear("open")
        if os.path.exists(path):
            self.preferences.remember(path)
        if document.path and os.path.exists(document.path):
            self._watcher.addPath(document.path)
        page.run_settings.show_device(self._device_text())
        self._titles()

    def recover(self, copy: recovery.Copy) -> None:
        page = self.open_path(copy.source or str(copy.session), copy)

        def restored() -> None:
            page.document.mark_unsaved()
            recovery.discard(copy)
            self.welcome.show_lost(recovery.left_behind())

        page.document.opened.connect(restored)

    def _discard_lost(self, copy: recovery.Copy) -> None:
        recovery.discard(copy)
        self.welcome.show_lost(recovery.left_behind())

    def reload(self) -> None:
        """F5: import the file again; pins and settings stay."""
        page = self.current
        if page is not None and page.document.path:
            self.banner.clear("changed")
            if page.document.path.endswith(".collage"):
                page.document.open_session(page.document.path)
            else:
                page.document.open_model(page.document.path)

    def _file_changed(self, path: str) -> None:
        for page in self.pages:
            if page.document.path == path:
                name = os.path.basename(path)
                self.banner.say(f"{name} has changed on disk.", "warning", "Reload (F5)",
                                partial(self._reload_page, page), topic="changed")  # fmt: skip
        if os.path.exists(path):
            self._watcher.addPath(path)

    def _reload_page(self, page: DocumentWindow) -> None:
        self.tabs.setCurrentWidget(page)
        self.reload()

    def save(self) -> None:
        page = self.current
        if page is not None:
            path = page.document.session_path
            if path:
                page.document.save(path, partial(self._saved, page))
            else:
                self.save_as()

    def save_as(self) -> None:
        page = self.current
        if page is None:
            return
        name = os.path.splitext(page.document.path)[0] + ".collage"
        path, _ = QFileDialog.getSaveFileName(self, "Save session", name, "Sessions (*.collage)")
        if path:
            if not path.endswith(".collage"):
                path += ".collage"
            page.document.save(path, partial(self._saved, page))

    def _saved(self, page: DocumentWindow) -> None:
        where = page.document.session_path
        if self.connection.is_remote:
            page.banner.say(f"Saved on {self.connection.target}: {where}", "info")
            return
        self.preferences.remember(where)
        recovery.discard(self._copies.pop(page.document.key, None))
        page.banner.say(f"Saved: {page.document.session_path}", "info")

    def close_current(self) -> None:
        self.close_document(self.tabs.currentIndex())

    def close_document(self, at: int) -> None:
        page = self.tabs.widget(at)
        if isinstance(page, DocumentWindow) and self._may_close([page]):
            self._remove(page)

    def _remove(self, page: DocumentWindow) -> None:
        if page.document.running:
            page.document.cancel_run()
        page.shut()
        recovery.discard(self._copies.pop(page.document.key, None))
        self.tabs.removeTab(self.tabs.indexOf(page))
        page.document.deleteLater()
        page.deleteLater()
        if not self.tabs.count():
            self.stack.setCurrentWidget(self.welcome)
        self._update()

    def _may_close(self, pages: list[DocumentWindow]) -> bool:
        """Ask only when something would be lost: a run under way, pins or runs not saved."""
        lost = [p for p in pages if p.document.unsaved or p.document.running]
        if not lost or not self.preferences.get("ask_on_close"):
            return True
        names = ", ".join(p.document.title.rstrip(" •") for p in lost)
        return self.ask_discard(names)

    def ask_discard(self, names: str) -> bool:
        answer = QMessageBox.question(
            self, "Close", f"{names}: pins, runs and notes are not saved. Close anyway?\n"
            "Measurements are in the store and stay.",
            QMessageBox.StandardButton.Discard | QMessageBox.StandardButton.Cancel,
        )  # fmt: skip
        return answer == QMessageBox.StandardButton.Discard

    def closeEvent(self, event) -> None:
        if not self.closing and not self._may_close(self.pages):
            event.ignore()
            return
        self.closing = True
        self.preferences.store.setValue("window/geometry", self.saveGeometry())
        self.preferences.store.setValue("connection", self.connection.text)
        self._autosave.stop()
        for page in self.pages:
            self._remove(page)
        self.client.shutdown()
        self.preferences.store.sync()
        event.accept()

    # -- actions of the window ---------------------------------------------------------

    def undo(self) -> None:
        if self.current is not None:
            self.current.document.undo.undo()

    def redo(self) -> None:
        if self.current is not None:
            self.current.document.undo.redo()

    def toggle_minimap(self) -> None:
        self.preferences.set("minimap", not self.preferences.get("minimap"))

    def toggle_orientation(self) -> None:
        now = self.preferences.get("orientation")
        self.preferences.set("orientation", "horizontal" if now == "vertical" else "vertical")

    def toggle_fold(self) -> None:
        self.preferences.set("fold", not self.preferences.get("fold"))

    def set_theme(self, name: str) -> None:
        self.preferences.set("theme", name)

    def _step_text(self, by: int) -> None:
        steps = [0.85, 1.0, 1.2, 1.45]
        at = steps.index(self.preferences.get("text_scale")) + by
        self.preferences.set("text_scale", steps[max(0, min(at, len(steps) - 1))])

    def text_larger(self) -> None:
        self._step_text(1)

    def text_smaller(self) -> None:
        self._step_text(-1)

    def show_preferences(self) -> None:
        page = PreferencesPage(self.preferences, self)
        page.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        page.show()

    def show_palette(self) -> None:
        if self._palette is None:
            self._palette = CommandPalette(self.actions_by_id, self)
        self._palette.text.clear()
        self._palette.refresh()
        self._palette.open_over(self)

    def show_shortcuts(self) -> None:
        page = ShortcutsPage(self)
        page.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        page.show()

    def show_about(self) -> None:
        from collage_engine import __version__

        hello = self.client.hello
        engine = f"Engine {hello.engine} on {hello.host}" if hello else "No engine"
        box = QMessageBox(self)
        box.setWindowTitle("About")
        box.setText(
            f"Collage Explorer {__version__}\n{engine}\n\n"
            "After Collage (Jeon et al., PACT 2022) and TVM RFC 0062.\n"
            "Font: Inter, SIL Open Font License 1.1."
        )
        box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        box.open()

    # -- drag and drop -----------------------------------------------------------------

    def dragEnterEvent(self, event) -> None:
        if any(self._droppable(url.toLocalFile()) for url in event.mimeData().urls()):
            event.acceptProposedAction()

    def dropEvent(self, event) -> None:
        paths = [
            u.toLocalFile() for u in event.mimeData().urls() if self._droppable(u.toLocalFile())
        ]
        for path in paths:
            self.open_path(path)
        event.acceptProposedAction()

    @staticmethod
    def _droppable(path: str) -> bool:
        return Path(path).suffix.lower() in (".onnx", ".collage")
