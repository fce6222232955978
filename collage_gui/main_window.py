"""The main window: what it is made of, its own actions, what is dropped on it."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QByteArray, QFileSystemWatcher, Qt, QTimer
from PySide6.QtGui import QAction
from PySide6.QtWidgets import (
    QLabel,
    QMessageBox,
    QStackedWidget,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from collage_gui import recovery
from collage_gui.banner import Banner
from collage_gui.connections import Connection, parse_connection
from collage_gui.engine_client import EngineClient
from collage_gui.palette import CommandPalette, ShortcutsPage
from collage_gui.preferences import Preferences
from collage_gui.preferences_page import PreferencesPage
from collage_gui.theme import Theme
from collage_gui.welcome import WelcomePage
from collage_gui.window_documents import WindowDocuments


class MainWindow(WindowDocuments):
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

    # -- closing -----------------------------------------------------------------------

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
