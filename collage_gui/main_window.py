"""The main window: tabs of documents, toolbar, menus, the engine's state, the banner."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from PySide6.QtCore import QByteArray, QFileSystemWatcher, QSize, Qt, QTimer
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import (
    QComboBox,
    QFileDialog,
    QInputDialog,
    QLabel,
    QLineEdit,
    QMainWindow,
    QMenu,
    QMessageBox,
    QSizePolicy,
    QSpinBox,
    QStackedWidget,
    QTabWidget,
    QToolBar,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from collage_engine.drawing.looks import MODES
from collage_engine.service import protocol
from collage_gui import recovery
from collage_gui.actions import ACTIONS, MENUS, ActionSpec
from collage_gui.assets import asset
from collage_gui.banner import Banner
from collage_gui.connections import Connection, parse_connection
from collage_gui.document_window import DocumentWindow
from collage_gui.engine_client import EngineClient
from collage_gui.palette import CommandPalette, ShortcutsPage
from collage_gui.panels.runs import baseline_title
from collage_gui.preferences import Preferences
from collage_gui.preferences_page import PreferencesPage
from collage_gui.session import Document, Reference
from collage_gui.theme import Theme
from collage_gui.welcome import WelcomePage

KINDS = "Models and sessions (*.onnx *.collage);;All files (*)"


class MainWindow(QMainWindow):
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
        theme.changed.connect(self._icons)
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

    # -- actions -----------------------------------------------------------------------

    def _make_actions(self) -> None:
        groups: dict[str, QActionGroup] = {}
        for spec in ACTIONS:
            action = QAction(spec.title, self)
            action.setObjectName(f"action-{spec.id}")
            action.setShortcuts([QKeySequence(keys) for keys in spec.keys])
            tip = f"{spec.title.rstrip('…')}{': ' + spec.tip if spec.tip else ''}"
            if spec.keys:
                tip += f" ({spec.keys[0]})"
            action.setToolTip(tip)
            action.setStatusTip(spec.tip)
            action.setCheckable(spec.checkable)
            action.triggered.connect(partial(self._run, spec))
            if (len(spec.keys) and len(spec.keys[0]) == 1) or spec.id in (
                "search",
                "free",
                "never_menu",
            ):
                # Single keys must not be taken from text fields and lists.
                action.setShortcutContext(Qt.ShortcutContext.WindowShortcut)
            if spec.checkable and spec.argument:
                group = groups.setdefault(spec.group, QActionGroup(self))
                group.addAction(action)
            self.actions_by_id[spec.id] = action
            self.addAction(action)
        self._sync_checks()

    def _run(self, spec: ActionSpec, *_: object) -> None:
        owner: object = self
        name = spec.run
        if name.startswith("."):
            owner, name = self.current, name[1:]
            if owner is None:
                return
        method = getattr(owner, name)
        method(spec.argument) if spec.argument else method()
        self._update()

    def _make_menus(self) -> None:
        self.recent_menu = QMenu("Open recent", self)
        self.recent_menu.setObjectName("recentMenu")
        for title in MENUS:
            menu = self.menuBar().addMenu(title)
            last = None
            for spec in ACTIONS:
                if spec.menu != title:
                    continue
                if last is not None and spec.group != last:
                    menu.addSeparator()
                last = spec.group
                menu.addAction(self.actions_by_id[spec.id])
                if spec.id == "open":
                    menu.addMenu(self.recent_menu)
            if title == "View":
                self.panels_menu = menu.addMenu("Panels")
                self.panels_menu.aboutToShow.connect(self._fill_panels)
        self._fill_recent()

    def _fill_recent(self) -> None:
        self.recent_menu.clear()
        for number, path in enumerate(self.preferences.recent(), 1):
            action = self.recent_menu.addAction(f"&{number}  {os.path.basename(path)}")
            action.setToolTip(path)
            action.triggered.connect(lambda _=False, p=path: self.open_path(p))
        if self.preferences.recent():
            self.recent_menu.addSeparator()
            self.recent_menu.addAction("Forget these", self.preferences.forget_recent)
        self.recent_menu.setEnabled(bool(self.preferences.recent()))

    def _fill_panels(self) -> None:
        self.panels_menu.clear()
        if self.current is not None:
            for dock in self.current.docks.values():
                self.panels_menu.addAction(dock.toggleViewAction())

    def _make_toolbar(self) -> None:
        bar = QToolBar("Toolbar")
        bar.setObjectName("toolbar")
        bar.setMovable(False)
        bar.setIconSize(QSize(16, 16))
        bar.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        self.addToolBar(bar)
        bar.addAction(self.actions_by_id["open"])
        self.run_button = QToolButton()
        self.run_button.setObjectName("runButton")
        self.run_button.clicked.connect(self._run_or_stop)
        bar.addWidget(self.run_button)
        bar.addSeparator()
        self.device_button = QToolButton()
        self.device_button.setObjectName("deviceButton")
        self.device_button.setToolTip("Where the engine runs. Click to connect elsewhere.")
        self.device_button.clicked.connect(self.choose_connection)
        bar.addWidget(self.device_button)
        self.threads = QSpinBox(minimum=0, maximum=256)
        self.threads.setSpecialValueText("auto")
        self.threads.setObjectName("toolbarThreads")
        self.threads.setAccessibleName("Threads")
        self.budget = QSpinBox(minimum=1, maximum=600, suffix=" min")
        self.budget.setObjectName("toolbarBudget")
        self.budget.setAccessibleName("Budget")
        for label, field in (("Threads", self.threads), ("Budget", self.budget)):
            text = QLabel(label)
            text.setProperty("quiet", True)
            text.setContentsMargins(6, 0, 2, 0)
            bar.addWidget(text)
            bar.addWidget(field)
        self.threads.valueChanged.connect(
            lambda n: self.current and self.current.run_settings.threads.setValue(n)
        )
        self.budget.valueChanged.connect(
            lambda n: self.current and self.current.run_settings.budget.setValue(n)
        )
        bar.addSeparator()
        self.baseline = QComboBox()
        self.baseline.setObjectName("baseline")
        self.baseline.setAccessibleName("Compare with")
        self.baseline.setMinimumContentsLength(16)
        self.baseline.activated.connect(self._baseline_chosen)
        self.colour = QComboBox()
        self.colour.setObjectName("colourBy")
        self.colour.setAccessibleName("Colour by")
        for mode, title in MODES.items():
            self.colour.addItem(title, mode)
        self.colour.activated.connect(
            lambda _: self.current and self.current.set_mode(self.colour.currentData())
        )
        self.colour.activated.connect(lambda _: self._update())
        for label, field in (("Compared with", self.baseline), ("Colour by", self.colour)):
            text = QLabel(label)
            text.setProperty("quiet", True)
            text.setContentsMargins(6, 0, 2, 0)
            bar.addWidget(text)
            bar.addWidget(field)
        spacer = QWidget()
        spacer.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        bar.addWidget(spacer)
        self.search = QLineEdit(
            placeholderText="Find in the graph  (Ctrl+F)", clearButtonEnabled=True
        )
        self.search.setObjectName("toolbarSearch")
        self.search.setAccessibleName("Find in the graph")
        self.search.setMaximumWidth(240)
        self.search.setMinimumWidth(210)
        self.search.returnPressed.connect(self._toolbar_search)
        bar.addWidget(self.search)
        self.toolbar = bar

    def _toolbar_search(self) -> None:
        window = self.current
        if window is not None and window.document.operators is not None:
            window.find_bar.show()
            window.find_bar.text.setText(self.search.text())
            window.find_bar.search()
            window.find_bar.step(1)

    def _icons(self) -> None:
        self._update()

    # -- documents ---------------------------------------------------------------------

    @property
    def current(self) -> DocumentWindow | None:
        page = self.tabs.currentWidget()
        return page if isinstance(page, DocumentWindow) else None

    @property
    def pages(self) -> list[DocumentWindow]:
        found = (self.tabs.widget(at) for at in range(self.tabs.count()))
        return [page for page in found if isinstance(page, DocumentWindow)]

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
        if page.property("opened") or self.client.state == "stopped":
            return
        self._remove(page)
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
        self.preferences.remember(page.document.session_path)
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

    # -- recovery ----------------------------------------------------------------------

    def autosave(self) -> None:
        for page in self.pages:
            if page.document.unsaved:
                self._save_copy(page)

    def _save_later(self, page: DocumentWindow) -> None:
        if page.document.unsaved and not page.property("copying"):
            page.setProperty("copying", True)
            QTimer.singleShot(1500, page, lambda: self._save_copy(page))

    def _save_copy(self, page: DocumentWindow) -> None:
        page.setProperty("copying", False)
        document = page.document
        if (
            not self.preferences.get("autosave") or not document.handle or document.read_only
            or self.connection.is_remote or self.client.state != "ready" or self.closing
        ):  # fmt: skip
            return
        try:
            copy = self._copies.get(document.key)
            if copy is None:
                copy = recovery.new_copy(document.path, document.session_path)
                self._copies[document.key] = copy
        except OSError as error:
            document.add_log("warning", f"no recovery copy: {error}")
            return
        document.autosave(str(copy.session), lambda: None)

    # -- the engine --------------------------------------------------------------------

    def start_engine(self) -> None:
        self.client.start()

    def _engine_ready(self, hello: protocol.HelloAnswer) -> None:
        self.banner.clear("engine")
        self._show_device()
        self.client.request("toolchains.list", None, self._toolchains_arrived,
                            lambda reason: self.banner.say(reason, "error"))  # fmt: skip
        for page in self.pages:
            page.run_settings.show_device(self._device_text())
            if not page.document.handle and page.property("opened"):
                self._reopen(page)
        self._update()

    def _reopen(self, page: DocumentWindow) -> None:
        """After a restart: the document as it was last kept, then its pins."""
        document = page.document
        copy = self._copies.get(document.key)
        if copy is not None and copy.session.exists():
            document.open_session(str(copy.session), recovered=True)
        elif document.session_path and os.path.exists(document.session_path):
            document.open_session(document.session_path)
        else:
            document.open_model(document.path)

    def _toolchains_arrived(self, answer: protocol.Toolchains) -> None:
        self.states = answer.toolchains
        hello = self.client.hello
        self.welcome.show_engine(hello.host if hello else "", self.states)
        for page in self.pages:
            page.show_toolchains(self.states)

    def _engine_stopped(self, reason: str) -> None:
        doing = next((p.document.progress.now for p in self.pages if p.document.progress), "")
        for page in self.pages:
            if not page.property("opened"):
                self._remove(page)
            else:
                page.document.engine_lost()
        text = reason + (f" while measuring {doing}" if doing else "")
        self.banner.say(f"{text}. What was measured is kept.", "error", "Restart the engine",
                        self.restart_engine, topic="engine")  # fmt: skip
        self.welcome.show_engine_trouble(reason)
        self._show_device()
        self._update()

    def _engine_unresponsive(self, silent: bool) -> None:
        if silent:
            self.banner.say("The engine does not answer. What was measured is kept.", "warning",
                            "Restart the engine", self.restart_engine, topic="engine")  # fmt: skip
        else:
            self.banner.clear("engine")

    def restart_engine(self) -> None:
        for page in self.pages:
            page.document.engine_lost()
        self.banner.clear("engine")
        self.client.restart()
        self._show_device()

    def choose_connection(self) -> None:
        text, accepted = QInputDialog.getText(
            self, "Connection",
            "Where the engine runs:\nlocal, ssh:HOST, or python:/path/to/python",
            QLineEdit.EchoMode.Normal, self.connection.text,
        )  # fmt: skip
        if accepted:
            self.connect_to(text)

    def connect_to(self, text: str) -> None:
        """Use another engine; open documents are opened there anew."""
        try:
            connection = parse_connection(text)
        except ValueError as error:
            self.banner.say(str(error), "error")
            return
        self.connection = self.client.connection = connection
        for page in self.pages:
            page.document.engine_lost()
        self.client.restart()
        self._show_device()

    def _engine_logged(self, text: str) -> None:
        for page in self.pages:
            page.document.add_log("engine", text)

    def _device_text(self) -> str:
        hello = self.client.hello if self.client.state == "ready" else None
        if hello is None:
            return {"starting": "starting the engine…", "stopped": "no engine"}.get(
                self.client.state, "no engine"
            )
        where = f" on {hello.host}" if self.connection.kind == "ssh" else ""
        text = hello.device.description or hello.device.name
        for mark in ("(R)", "(TM)", " Processor", " CPU"):
            text = text.replace(mark, "")
        return f"{text}{where}"

    def _show_device(self) -> None:
        text = self._device_text()
        self.device.setText(f"{text} · {self.connection.title}")
        short = text if len(text) < 34 else text[:32] + "…"
        self.device_button.setText(short)
        self.device_button.setToolTip(
            f"{text}\nEngine: {self.connection.title}\nClick to connect elsewhere."
        )

    # -- state of the chrome -----------------------------------------------------------

    def _tab_changed(self, at: int) -> None:
        self._titles()
        self._update()

    def _titles(self) -> None:
        for at, page in enumerate(self.pages):
            self.tabs.setTabText(self.tabs.indexOf(page), page.document.title)
            self.tabs.setTabToolTip(at, page.document.session_path or page.document.path)
        page = self.current
        self.setWindowTitle(
            f"{page.document.title} – Collage Explorer" if page else "Collage Explorer"
        )

    def _update(self) -> None:
        """Enable what can be done now; fill the toolbar for the current document."""
        page = self.current
        document = page.document if page else None
        graph = document is not None and document.operators is not None
        ready = graph and bool(document and document.handle)
        has = {
            "nothing": True,
            "document": document is not None,
            "graph": graph,
            "selection": graph and bool(document and document.selection),
            "placement": graph and bool(document and document.shown),
            "idle": ready and not (document and document.running),
            "running": bool(document and document.running),
            "pins": bool(document and document.pins),
            "run": bool(document and document.visible_runs),
        }
        for spec in ACTIONS:
            self.actions_by_id[spec.id].setEnabled(bool(has[spec.needs]))
        undo = document.undo if document else None
        self.actions_by_id["undo"].setEnabled(bool(undo and undo.canUndo()))
        self.actions_by_id["redo"].setEnabled(bool(undo and undo.canRedo()))
        self.actions_by_id["undo"].setText(f"Undo {undo.undoText()}".strip() if undo else "Undo")
        self.actions_by_id["redo"].setText(f"Redo {undo.redoText()}".strip() if undo else "Redo")
        running = bool(document and document.running)
        self.run_button.setText("■  Stop" if running else "▶  Run")
        self.run_button.setEnabled(bool(has["idle"] or has["running"]))
        self.run_button.setAccessibleName("Stop the run" if running else "Run")
        for field, own in ((self.threads, "threads"), (self.budget, "budget")):
            field.setEnabled(bool(graph))
            if page is not None:
                field.blockSignals(True)
                field.setValue(getattr(page.run_settings, own).value())
                field.blockSignals(False)
            else:
                field.setValue(
                    self.preferences.get("threads" if own == "threads" else "budget_min")
                )
        self.colour.setEnabled(bool(graph))
        self.search.setEnabled(bool(graph))
        if page is not None:
            self.colour.setCurrentIndex(self.colour.findData(page.mode))
            checked = self.actions_by_id.get(f"colour_{page.mode.replace('-', '_')}")
            if checked is not None:
                checked.setChecked(True)
        self._fill_baseline(document)
        self.selection_text.setText(self._selection_words(document))

    def _selection_words(self, document: Document | None) -> str:
        if document is None or document.operators is None:
            return ""
        graph = document.operators
        model = document.model
        if document.primary is None:
            folded = f" · {len(model.folded)} ONNX nodes folded" if model and model.folded else ""
            return f"{graph.count} operators{folded}"
        name = graph.name(document.primary)
        more = len(document.selection) - 1
        return name + (f" and {more} more" if more else "")

    def _fill_baseline(self, document: Document | None) -> None:
        self.baseline.blockSignals(True)
        self.baseline.clear()
        self.baseline.addItem("Best baseline", ("best", ""))
        if document is not None and document.visible_runs:
            run = document.run_of(document.shown.run if document.shown else None)
            run = run or document.visible_runs[-1]
            for each in run.baselines:
                if each.measured_us is not None:
                    self.baseline.addItem(baseline_title(each), ("baseline", each.name))
            for other in document.visible_runs:
                self.baseline.addItem(document.run_title(other), ("run", other.id))
            wanted = (document.reference.kind, document.reference.name)
            for at in range(self.baseline.count()):
                if tuple(self.baseline.itemData(at)) == wanted:
                    self.baseline.setCurrentIndex(at)
        self.baseline.setEnabled(self.baseline.count() > 1)
        self.baseline.blockSignals(False)

    def _baseline_chosen(self) -> None:
        if self.current is not None:
            kind, name = self.baseline.currentData()
            self.current.document.set_reference(Reference(kind, name))

    def _run_or_stop(self) -> None:
        if self.current is not None:
            if self.current.document.running:
                self.current.cancel()
            else:
                self.current.run()

    def _preference(self, key: str) -> None:
        if key == "recent":
            self._fill_recent()
        self._sync_checks()

    def _sync_checks(self) -> None:
        get = self.preferences.get
        for name, value in (("minimap", get("minimap")), ("fold", get("fold")),
                            ("horizontal", get("orientation") == "horizontal")):  # fmt: skip
            self.actions_by_id[name].setChecked(bool(value))
        self.actions_by_id[f"theme_{get('theme')}"].setChecked(True)

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
