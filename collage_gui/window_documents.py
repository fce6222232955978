"""The documents of the main window: opening, saving, closing, recovering them."""

from __future__ import annotations

import os
from functools import partial

from PySide6.QtCore import QFileSystemWatcher
from PySide6.QtWidgets import QFileDialog, QMessageBox

from collage_gui import recovery
from collage_gui.assets import asset
from collage_gui.document_window import DocumentWindow
from collage_gui.session import Document
from collage_gui.window_engine import WindowEngine

KINDS = "Models and sessions (*.onnx *.collage);;All files (*)"


class WindowDocuments(WindowEngine):
    """Every document is a tab; a failure to open one leaves the others as they are."""

    _watcher: QFileSystemWatcher

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
        for signal in (
            document.running_changed,
            document.runs_changed,
            document.pins_changed,
            document.placement_changed,
            document.selection_changed,
            document.graph_changed,
            document.reference_changed,
        ):
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
            if page.document.running:
                # A new document in its place would never hear how the run ended.
                self.banner.say(
                    "A run of the file as it was is under way: stop it, then reload.",
                    "warning",
                    topic="changed",
                )
                return
            if page.document.path.endswith(".collage"):
                page.document.open_session(page.document.path)
            else:
                page.document.open_model(page.document.path)

    def _file_changed(self, path: str) -> None:
        for page in self.pages:
            if page.document.path == path:
                name = os.path.basename(path)
                self.banner.say(
                    f"{name} has changed on disk.",
                    "warning",
                    "Reload (F5)",
                    partial(self._reload_page, page),
                    topic="changed",
                )
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
            self,
            "Close",
            f"{names}: pins, runs and notes are not saved. Close anyway?\n"
            "Measurements are in the store and stay.",
            QMessageBox.StandardButton.Discard | QMessageBox.StandardButton.Cancel,
        )
        return answer == QMessageBox.StandardButton.Discard
