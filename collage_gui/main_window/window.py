"""Makes the main window: its parts, its own actions, and what is dropped on it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QByteArray, Qt
from PySide6.QtGui import (
    QCloseEvent,
    QContextMenuEvent,
    QDragEnterEvent,
    QDropEvent,
    QKeyEvent,
)
from PySide6.QtWidgets import (
    QApplication,
    QMainWindow,
    QMessageBox,
    QStackedWidget,
    QToolButton,
    QWidget,
)

from collage_engine import __version__
from collage_engine.support.text import counted
from collage_gui import recovery
from collage_gui.actions import ACTIONS
from collage_gui.engine_client import Connection, EngineClient
from collage_gui.main_window.action_set import ActionSet, CommandPalette, Menus, Toolbar
from collage_gui.main_window.documents import Documents
from collage_gui.main_window.engine import Engine
from collage_gui.messages import Banner, Messages
from collage_gui.preferences import Preferences
from collage_gui.recovery import RecoveryCopies
from collage_gui.theme import Theme
from collage_gui.welcome import WelcomePage
from collage_gui.widgets import ElidedLabel, named, text_label

if TYPE_CHECKING:
    from collage_gui.document.document import Document

CREDITS = (
    "After Collage (Jeon et al., PACT 2022) and TVM RFC 0062.\n"
    "Font: Inter, SIL Open Font License 1.1."
)

FIRST_SIZE = (1480, 940)
"""Width and height of the first window, in pixels; chosen, so that it fits on a screen of full HD
beside other things."""


class MainWindow(QMainWindow):
    """Owns the parts of the desktop; ``engine.start`` brings it to life."""

    def __init__(
        self, preferences: Preferences, theme: Theme, connection: Connection | None = None
    ) -> None:
        super().__init__()
        self.preferences = preferences
        self.setObjectName("mainWindow")
        self.setWindowTitle("Collage Explorer")
        self.setAcceptDrops(True)
        self.resize(*FIRST_SIZE)
        self.closing = False
        """Whether the window closes without asking."""
        self.client = EngineClient(connection or Connection(), self)
        self.messages = Messages(self)
        """Messages that concern every document; the page in front shows them."""
        self.action_set = ActionSet(self, preferences)
        for spec in ACTIONS:
            self.action_set.by_id[spec.id].triggered.connect(partial(spec.trigger, self))
        actions = self.action_set.by_id
        self.recovery = RecoveryCopies(self.client, self)
        self.documents: Documents = Documents(
            self.client, theme, preferences, self.recovery, self.messages, actions, self
        )
        self.welcome = WelcomePage(preferences, self.documents, self._recover, self._discard_lost)
        self.engine: Engine = Engine(
            self.client, self.documents, self.welcome, self.recovery, self.messages, self
        )
        self.banner = Banner("welcomeBanner", self.welcome, self.messages)
        self.stack = QStackedWidget()
        self.stack.addWidget(self.welcome)
        self.stack.addWidget(self.documents.tabs)
        self.setCentralWidget(self.stack)
        self.menus = Menus(self.menuBar(), actions, preferences, self.documents.open_path)
        self.toolbar = Toolbar(actions, self.menus.submenus["Colour by"])
        self.addToolBar(self.toolbar)
        self.device = text_label(wraps=False)
        """Where the engine runs."""
        self.selection_text = ElidedLabel()
        log = named(QToolButton(), "showLog")
        log.setDefaultAction(actions["log"])
        log.setAutoRaise(True)
        self.statusBar().addWidget(self.selection_text, 1)
        self.statusBar().addPermanentWidget(log)
        self.statusBar().addPermanentWidget(self.device)
        self.statusBar().setSizeGripEnabled(False)
        self._palette: CommandPalette | None = None
        self._connect(theme)
        geometry = preferences.store.value("window/geometry")
        if isinstance(geometry, QByteArray):
            self.restoreGeometry(geometry)
        self.welcome.show_lost(recovery.left_behind())
        self.refresh()
        self._engine_changed()

    def _connect(self, theme: Theme) -> None:
        self.documents.changed.connect(self.refresh)
        self.engine.changed.connect(self._engine_changed)
        self.engine.changed.connect(self.refresh)
        self.preferences.changed.connect(self._preference_changed)
        theme.changed.connect(self.refresh)

    # -- state -------------------------------------------------------------------------

    def refresh(self) -> None:
        """Enable what can be done now, and show the current document in the toolbar."""
        page = self.documents.current
        document = page.document if page is not None else None
        self.action_set.refresh(document, page.picture.mode if page is not None else "")
        checked = {
            "collapse_partitions": page is not None and page.picture.partitions_collapsed,
            "split": page is not None and page.split.is_open,
            "outline": page is not None and not page.panels.outline.isHidden(),
            "timeline": page is not None and not page.panels.timeline.isHidden(),
        }
        for name, is_on in checked.items():
            self.action_set.by_id[name].setChecked(is_on)
        self.toolbar.show_page(page)
        self.stack.setCurrentIndex(0 if page is None else 1)
        self.selection_text.setText(selection_text(document))

    def _engine_changed(self) -> None:
        device, engine = self.engine.device_text, self.client.connection.title
        self.device.setText(f"{device} · {engine}")

    def _preference_changed(self, key: str) -> None:
        if key == "recent":
            self.menus.fill_recent()
        self.action_set.check_preferences()

    # -- actions -----------------------------------------------------------------------

    def show_palette(self) -> None:
        """Open the command palette."""
        if self._palette is None:
            self._palette = CommandPalette(self.action_set.by_id, self)
        self._palette.open_over(self)

    def show_about(self) -> None:
        """Open the versions and credits."""
        hello = self.client.hello
        engine = f"Engine {hello.engine} on {hello.host}" if hello else "No engine"
        box = QMessageBox(self)
        box.setWindowTitle("About")
        box.setTextFormat(Qt.TextFormat.PlainText)
        box.setText(f"Collage Explorer {__version__}\n{engine}\n\n{CREDITS}")
        box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        box.open()

    # -- what a crash left behind ------------------------------------------------------

    def _recover(self, copy: Path) -> None:
        document = self.documents.open_path(str(copy), recovered=True).document
        document.opened.connect(document.mark_unsaved)
        document.opened.connect(lambda: self._discard_lost(copy))

    def _discard_lost(self, copy: Path) -> None:
        copy.unlink(missing_ok=True)
        self.welcome.show_lost(recovery.left_behind())

    # -- events ------------------------------------------------------------------------

    def closeEvent(self, event: QCloseEvent) -> None:
        """Asks about unsaved work, then ends the documents and the engine."""
        pages = self.documents.pages
        if not self.closing and not self.documents.may_close(pages, self._close_now):
            event.ignore()
            return
        self.closing = True
        self.preferences.store.setValue("window/geometry", self.saveGeometry())
        for page in pages:
            self.documents.remove(page)
        self.client.shutdown()
        self.preferences.store.sync()
        event.accept()

    def _close_now(self) -> None:
        self.closing = True
        self.close()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Carries out actions of one key that the focused widget did not want."""
        shift = event.modifiers() == Qt.KeyboardModifier.ShiftModifier
        if event.key() == Qt.Key.Key_F10 and shift:
            _open_context_menu(self.focusWidget())
        elif not self.action_set.press(event):
            super().keyPressEvent(event)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """Accept files."""
        if event.mimeData().hasUrls():
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        """Open the dropped files; each that is no model and no session has its message."""
        for url in event.mimeData().urls():
            self.documents.open_path(url.toLocalFile())
        event.acceptProposedAction()


def _open_context_menu(widget: QWidget | None) -> None:
    """Ask a widget for its context menu, as the Menu key does; Qt leaves Shift+F10 out on X11."""
    if widget is None:
        return
    point = widget.rect().center()
    keyboard = QContextMenuEvent.Reason.Keyboard
    QApplication.sendEvent(widget, QContextMenuEvent(keyboard, point, widget.mapToGlobal(point)))


def selection_text(document: Document | None) -> str:
    """Return what the status bar says about the selection, or about the graph without one."""
    if document is None or not document.is_open:
        return ""
    graph, selection = document.operators, document.selection
    if selection.primary is None:
        folded = len(document.model.folded) if document.model is not None else 0
        more = f" · {counted(folded, 'ONNX node')} folded" if folded else ""
        return f"{counted(graph.count_nodes(range(graph.count)), 'node')}{more}"
    others = graph.count_nodes(selection.operators) - 1
    return graph.names[selection.primary] + (f" and {others} more" if others else "")
