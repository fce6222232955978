"""Holds the open documents, one tab each."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from PySide6.QtCore import QFileSystemWatcher, QObject, Qt, Signal
from PySide6.QtGui import QAction, QIcon
from PySide6.QtWidgets import QFileDialog, QMessageBox, QTabWidget, QWidget

from collage_engine.support.files import resource
from collage_gui.document_window.run_controller import RunQueue
from collage_gui.engine_client import EngineClient
from collage_gui.messages import Messages
from collage_gui.preferences import Preferences
from collage_gui.recovery import RecoveryCopies
from collage_gui.theme import Theme
from collage_gui.widgets import plain_tip

if TYPE_CHECKING:
    from collage_gui.document_window.window import DocumentWindow

RUN_WILL_BE_CANCELLED = "A run is under way: it will be cancelled."

RUNNING_MARK = "▶ "
"""Stands before the name of a document on its tab while a run is under way."""


class Documents(QObject):
    """The open documents: opens, saves, reloads and closes them, each independent of the others."""

    changed = Signal()
    """A signal that something of a document changed, or that another one is current."""
    page_added = Signal(object)
    """A signal with a new ``DocumentWindow``, whose document is not opened yet."""
    open_failed = Signal(str)
    """A signal with the reason why a document could not be opened; its page is gone."""

    def __init__(
        self,
        client: EngineClient,
        theme: Theme,
        preferences: Preferences,
        recovery_copies: RecoveryCopies,
        messages: Messages,
        actions: dict[str, QAction],
        window: QWidget,
    ) -> None:
        """Receives what documents need.

        Args:
            client: The engine that opens them.
            theme: Colours and fonts.
            preferences: Remember the recent files.
            recovery_copies: Keep copies of unsaved work.
            messages: The window's messages.
            actions: The window's actions by id.
            window: The parent of dialogs.
        """
        super().__init__(window)
        self._client, self._theme, self._preferences = client, theme, preferences
        self._copies, self._messages = recovery_copies, messages
        self._actions, self._window = actions, window
        self.tabs = QTabWidget(documentMode=True, tabsClosable=True, movable=True)
        self.tabs.setObjectName("documents")
        self.tabs.tabCloseRequested.connect(self.close)
        self.tabs.currentChanged.connect(self._show_titles)
        self.tabs.currentChanged.connect(self.changed)
        self.tabs.currentChanged.connect(self._focus_graph)
        self.queue = RunQueue(self)
        self.queue.changed.connect(self._show_titles)
        self._front: DocumentWindow | None = None
        """The opened page that was in front last: it returns where a file cannot be opened."""
        self._watcher = QFileSystemWatcher(self)
        self._watcher.fileChanged.connect(self._file_changed)

    @property
    def current(self) -> DocumentWindow | None:
        """Return the page in front."""
        return cast("DocumentWindow | None", self.tabs.currentWidget())

    @property
    def pages(self) -> list[DocumentWindow]:
        """Return all pages, from the left."""
        return [cast("DocumentWindow", self.tabs.widget(at)) for at in range(self.tabs.count())]

    # -- opening -----------------------------------------------------------------------

    def open_dialog(self) -> None:
        """Open files that the user chooses."""
        paths, _ = QFileDialog.getOpenFileNames(
            self._window, "Open", "", "Models and sessions (*.onnx *.collage);;All files (*)"
        )
        for path in paths:
            self.open_path(path)

    def open_sample(self) -> None:
        """Open the model that is packaged with the program."""
        self.open_path(str(resource("models/mnist.onnx")))

    def open_path(self, path: str, recovered: bool = False) -> DocumentWindow:
        """Open a model or a session in a new tab, or show the tab that it has already.

        Args:
            path: The file.
            recovered: Whether it is what a crash left behind, which saving must not write to.
        """
        self._messages.clear("open")  # about a file that was tried before; others may follow it
        path = os.path.abspath(path)
        for page in self.pages:
            if path in (page.document.path, page.document.session_path):
                self.tabs.setCurrentWidget(page)
                return page
        # Imported here: what draws graphs takes longer to load than the whole first window.
        from collage_gui.document.document import Document
        from collage_gui.document_window.window import DocumentWindow

        if self.current is not None and self.current.document.is_open:
            self._front = self.current
        document = Document(self._client, self)
        page = DocumentWindow(
            document, self._theme, self._preferences, self._actions, self.queue, self._messages
        )
        self._connect(page)
        self.page_added.emit(page)
        if path.endswith(".collage"):
            document.open_session(path, recovered)
        else:
            document.open_model(path)
        self.tabs.addTab(page, document.title)
        self.tabs.setCurrentWidget(page)
        self.changed.emit()
        return page

    def _connect(self, page: DocumentWindow) -> None:
        document = page.document
        document.opened.connect(lambda: self._opened(page))
        document.failed.connect(lambda reason: self._failed(page, reason))
        document.title_changed.connect(self._show_titles)
        document.execution.running_changed.connect(self._show_titles)
        for signal in (
            document.shapes.changed,
            document.runs.changed,
            document.costs.candidates_changed,
            document.pins.changed,
            document.placement.changed,
            document.selection.changed,
            document.comparison.reference_changed,
            page.picture.mode_changed,
            page.picture.groups_changed,
            page.split.changed,
            page.panels.run_settings.threads.valueChanged,
            page.panels.run_settings.budget.valueChanged,
        ):
            signal.connect(lambda *_: self.changed.emit())
        self._copies.watch(document)

    def _focus_graph(self) -> None:
        """Give the keys to the graph of the page that came to the front."""
        if self.current is not None:
            self.current.view.setFocus(Qt.FocusReason.OtherFocusReason)

    def _opened(self, page: DocumentWindow) -> None:
        document = page.document
        path = document.session_path or document.path
        if os.path.exists(path):
            self._preferences.remember(path)
        # A session that another program writes needs no watching: saving merges it.
        if not document.path.endswith(".collage") and os.path.exists(document.path):
            self._watcher.addPath(document.path)
        self._show_titles()

    def _failed(self, page: DocumentWindow, reason: str) -> None:
        """Remove a page that was never opened; later failures are for the page's own banner."""
        if not page.document.is_open and page in self.pages:
            was_in_front = page is self.current
            self.remove(page)
            if was_in_front and self._front in self.pages:
                self.tabs.setCurrentWidget(cast("DocumentWindow", self._front))
            self.open_failed.emit(reason)
            self._preferences.changed.emit("recent")

    # -- files that change -------------------------------------------------------------

    def reload(self, page: DocumentWindow | None = None) -> None:
        """Import a document's file again, by default the current one's; pins and settings stay."""
        page = page or self.current
        if page is None or not page.document.path:
            return
        self.tabs.setCurrentWidget(page)
        self._messages.clear("changed")
        document = page.document
        if document.running:
            # A new document in its place would never hear how the run ended.
            self._messages.show_message(
                "A run of the earlier file is under way. Cancel it, then reload.",
                "warning",
                topic="changed",
            )
        elif document.path.endswith(".collage"):
            document.open_session(document.path)
        else:
            document.open_model(document.path)

    def _file_changed(self, path: str) -> None:
        for page in self.pages:
            if page.document.path == path:
                self._messages.show_message(
                    f"{os.path.basename(path)} has changed on disk.",
                    "warning",
                    "Reload (F5)",
                    partial(self.reload, page),
                    topic="changed",
                )
        if os.path.exists(path):
            self._watcher.addPath(path)

    # -- saving ------------------------------------------------------------------------

    def save(self, elsewhere: bool = False) -> None:
        """Save the current document.

        Args:
            elsewhere: Whether to ask for a session file; without one it is asked for anyway.
        """
        page = self.current
        if page is None:
            return
        saved_path = "" if elsewhere else page.document.session_path
        path = saved_path or self._ask_session_path(page)
        if path:
            page.document.save(path, partial(self._saved, page))

    def _ask_session_path(self, page: DocumentWindow) -> str:
        """Ask for the session file of a page; empty when the user cancels."""
        name = f"{page.files.stem}.collage"
        path = page.files.ask_save("Save session", name, "Sessions (*.collage)")
        return path + ".collage" if path and not path.endswith(".collage") else path

    def _saved(self, page: DocumentWindow) -> None:
        path, where = page.document.session_path, ""
        if self._client.connection.is_remote:
            where = f" on {self._client.connection.target}"
        else:
            self._preferences.remember(path)
            self._copies.discard(page.document)
        page.messages.show_message(f"Saved{where}: {path}", "info")

    # -- closing -----------------------------------------------------------------------

    def close(self, number: int) -> None:
        """Close a page by its number, unless the user wants to keep unsaved work."""
        page = self.pages[number]
        if self.may_close([page], partial(self.remove, page)):
            self.remove(page)

    def remove(self, page: DocumentWindow) -> None:
        """Take a page away without asking."""
        document = page.document
        page.runs.cancel()
        page.picture.close()
        document.close()
        self._copies.forget(document)
        self.queue.end(document)
        self.tabs.removeTab(self.tabs.indexOf(page))
        document.deleteLater()
        page.deleteLater()
        self.changed.emit()

    def may_close(self, pages: list[DocumentWindow], saved: Callable[[], None]) -> bool:
        """Ask, but only when something would be lost: a run under way, pins or runs not saved.

        Args:
            pages: The pages that would go.
            saved: Called later, when the user had them saved first and that is done.

        Returns:
            Whether they may go at once.
        """
        lost = [p for p in pages if p.document.unsaved or p.document.running]
        if not lost:
            return True
        names = ", ".join(p.document.title.rstrip(" •") for p in lost)
        running = any(p.document.running for p in lost)
        answer = self.ask_save(names, running)
        if answer == "save":
            self._save_all(lost, saved)
        return answer == "discard"

    def ask_save(self, names: str, running: bool) -> str:
        """Ask what becomes of unsaved work.

        Args:
            names: The documents that have some.
            running: Whether a run is under way in one of them.

        Returns:
            ``save``, ``discard`` or ``cancel``.
        """
        kind, text = QMessageBox.StandardButton, f"Save the changes to {names}?"
        buttons = kind.Save | kind.Discard | kind.Cancel
        box = QMessageBox(QMessageBox.Icon.Question, "Close", text, buttons, self._window)
        box.setTextFormat(Qt.TextFormat.PlainText)
        box.setInformativeText(closing_sentence(running))
        box.setDefaultButton(kind.Save)
        for button in box.buttons():
            button.setIcon(QIcon())
        return {kind.Save: "save", kind.Discard: "discard"}.get(kind(box.exec()), "cancel")

    def _save_all(self, pages: list[DocumentWindow], then: Callable[[], None]) -> None:
        """Save pages; a path that is not given keeps everything as it is."""
        paths = {}
        for page in pages:
            paths[page] = page.document.session_path or self._ask_session_path(page)
            if not paths[page]:
                return
        left = set(pages)

        def saved(page: DocumentWindow) -> None:
            self._saved(page)
            left.discard(page)
            if not left:
                then()

        # The runs end only now: who dismisses the question for a path keeps them, too.
        for page, path in paths.items():
            page.runs.cancel()
            page.document.save(path, partial(saved, page))

    # -- titles ------------------------------------------------------------------------

    def _show_titles(self) -> None:
        for page in self.pages:
            at = self.tabs.indexOf(page)
            document = page.document
            waits = "… " if self.queue.waits(document) else ""
            mark = RUNNING_MARK if document.running else waits
            self.tabs.setTabText(at, f"{mark}{document.title}")
            self.tabs.setTabToolTip(at, plain_tip(page.document.session_path or page.document.path))
        current = self.current
        title = f"{current.document.title} – " if current is not None else ""
        self._window.setWindowTitle(f"{title}Collage Explorer")


def closing_sentence(running: bool) -> str:
    """Return a sentence on what closing without saving loses.

    Args:
        running: Whether a run is under way.
    """
    text = "Without saving, pins, runs and notes are lost; measurements stay in the store."
    return f"{RUN_WILL_BE_CANCELLED} {text}" if running else text
