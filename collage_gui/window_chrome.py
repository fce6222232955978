"""The main window around its documents: actions, menus, toolbar, what is enabled."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QAction, QActionGroup, QKeyEvent, QKeySequence, QResizeEvent
from PySide6.QtWidgets import (
    QComboBox,
    QLabel,
    QLineEdit,
    QMainWindow,
    QMenu,
    QSizePolicy,
    QSpinBox,
    QStackedWidget,
    QTabWidget,
    QToolBar,
    QToolButton,
    QWidget,
)

from collage_engine.drawing.looks import MODES
from collage_engine.drawing.words import counted
from collage_engine.records.toolchain import ToolchainState
from collage_gui.actions import ACTIONS, MENUS, ActionSpec, is_single
from collage_gui.banner import Banner
from collage_gui.connections import Connection
from collage_gui.document_window import DocumentWindow
from collage_gui.engine_client import EngineClient
from collage_gui.panels.run_bars import baseline_title
from collage_gui.preferences import Preferences
from collage_gui.session import Document, Reference
from collage_gui.theme import Theme, inset
from collage_gui.welcome import WelcomePage


class WindowChrome(QMainWindow):
    """Actions, menus and toolbar. Attributes are set by ``MainWindow``."""

    preferences: Preferences
    theme: Theme
    connection: Connection
    client: EngineClient
    tabs: QTabWidget
    stack: QStackedWidget
    banner: Banner
    welcome: WelcomePage
    states: tuple[ToolchainState, ...]
    actions_by_id: dict[str, QAction]
    selection_text: QLabel
    open_path: Callable[..., DocumentWindow]
    choose_connection: Callable[[], None]
    device: QLabel

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
            if any(is_single(keys) for keys in spec.keys):
                # A shortcut of one key would be taken from buttons, lists and fields. Such keys
                # are shown in the menus, and act when nothing with the focus wants them.
                action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
            if spec.checkable and spec.argument:
                group = groups.setdefault(spec.group, QActionGroup(self))
                group.addAction(action)
            self.actions_by_id[spec.id] = action
            self.addAction(action)
        self._sync_checks()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Keys that the focused widget did not want: the actions of one key."""
        pressed = QKeySequence(event.keyCombination())
        for spec in ACTIONS:
            if any(is_single(keys) and QKeySequence(keys) == pressed for keys in spec.keys):
                action = self.actions_by_id[spec.id]
                if action.isEnabled():
                    action.trigger()
                    return
        super().keyPressEvent(event)

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
        self._spare: list[QAction] = []
        """What is left out of a toolbar that is too narrow, in this order; menus and the panel of
        run settings have it all."""
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
            self._spare += [bar.addWidget(text), bar.addWidget(field)]
            inset(field)
        self.threads.valueChanged.connect(partial(self._setting, "threads"))
        self.budget.valueChanged.connect(partial(self._setting, "budget"))
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
        self.colour.activated.connect(self._colour_chosen)
        for label, combo in (("Compared with", self.baseline), ("Colour by", self.colour)):
            text = QLabel(label)
            text.setProperty("quiet", True)
            text.setContentsMargins(6, 0, 2, 0)
            self._spare.insert(0, bar.addWidget(text))
            bar.addWidget(combo)
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

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.fit_toolbar()

    def fit_toolbar(self) -> None:
        """Leave out what can be missed until the rest fits."""
        for action in self._spare:
            action.setVisible(True)
        for action in self._spare:
            if self.toolbar.sizeHint().width() <= self.width():
                break
            action.setVisible(False)

    def _setting(self, name: str, value: int) -> None:
        if self.current is not None:
            getattr(self.current.run_settings, name).setValue(value)

    def _colour_chosen(self) -> None:
        if self.current is not None:
            self.current.set_mode(self.colour.currentData())
            self._update()

    def _toolbar_search(self) -> None:
        window = self.current
        if window is not None and window.document.operators is not None:
            window.find_bar.show()
            window.find_bar.text.setText(self.search.text())
            window.find_bar.search()
            window.find_bar.step(1)

    def _themed(self) -> None:
        self._update()
        self.fit_toolbar()

    # -- documents ---------------------------------------------------------------------

    @property
    def current(self) -> DocumentWindow | None:
        page = self.tabs.currentWidget()
        return page if isinstance(page, DocumentWindow) else None

    @property
    def pages(self) -> list[DocumentWindow]:
        found = (self.tabs.widget(at) for at in range(self.tabs.count()))
        return [page for page in found if isinstance(page, DocumentWindow)]

    # -- state -------------------------------------------------------------------------

    def _tab_changed(self, at: int) -> None:
        self._titles()
        self._update()

    def _titles(self) -> None:
        for each in self.pages:
            at = self.tabs.indexOf(each)
            self.tabs.setTabText(at, each.document.title)
            self.tabs.setTabToolTip(at, each.document.session_path or each.document.path)
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
            "still": document is not None and not document.running,
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
            return f"{counted(graph.count, 'operator')}{folded}"
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
        for name, value in (
            ("minimap", get("minimap")),
            ("fold", get("fold")),
            ("horizontal", get("orientation") == "horizontal"),
        ):
            self.actions_by_id[name].setChecked(bool(value))
        self.actions_by_id[f"theme_{get('theme')}"].setChecked(True)
