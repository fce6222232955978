"""Drives the desktop without a person, for pictures and tests.

    python -m tests.support.drive_desktop MODEL|SESSION [--run] [--screenshot DIR] [--export DIR]

It opens the file, runs it, takes pictures, exports and ends: with status 0, or 1 and the reason.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, QTimer
from PySide6.QtWidgets import QApplication

from collage_gui.connections import parse_connection
from collage_gui.document_window.window import DocumentWindow
from collage_gui.main_window.window import MainWindow
from collage_gui.preferences import Preferences
from collage_gui.theme import Theme

SIZE = (1600, 1000)
"""Width and height of the window in pictures, in pixels; chosen."""


class Automation(QObject):
    """Opens, runs, takes pictures, exports and quits; the first failure ends it with status 1."""

    def __init__(
        self,
        window: MainWindow,
        *,
        path: str,
        run: bool,
        toolchains: tuple[str, ...],
        screenshots: str | None,
        export: str | None,
        limit_s: float,
        budget_s: int | None,
    ) -> None:
        super().__init__(window)
        self.window, self.path, self.run = window, path, run
        self.toolchains, self.screenshots, self.export = toolchains, screenshots, export
        self.budget_s = budget_s
        self.status = 0
        self._ended = False
        self._limit = QTimer(self, singleShot=True)
        self._limit.timeout.connect(lambda: self.fail(f"not done after {limit_s:g} s"))
        self._limit.start(int(limit_s * 1000))
        self.page: DocumentWindow | None = None

    def begin(self) -> None:
        """Open the document as soon as the engine is ready."""
        if self.screenshots:
            self.window.resize(*SIZE)
        self.window.client.stopped.connect(self.fail)
        if self.window.client.state == "ready":
            self._open()
        else:
            self.window.client.ready.connect(lambda _: QTimer.singleShot(0, self, self._open))

    def fail(self, reason: str) -> None:
        """End with status 1 and a reason on standard error."""
        if not self._ended:
            self._ended = True
            self.status = 1
            print(f"collage-explorer: {reason}", file=sys.stderr, flush=True)
            self._quit()

    def _open(self) -> None:
        self.page = self.window.documents.open_path(self.path)
        document = self.page.document
        document.failed.connect(self.fail)
        document.dimensions_wanted.connect(lambda _, reason: self.fail(reason))
        document.opened.connect(
            lambda: self._wait(lambda: bool(self.window.engine.states), self._opened)
        )

    def _opened(self) -> None:
        assert self.page is not None
        if self.budget_s:
            self.page.panels.run_settings.budget.setValue(self.budget_s)
        if self.toolchains:
            unknown = self.page.panels.run_settings.choose(self.toolchains)
            if unknown:
                known = ", ".join(s.name for s in self.window.engine.states if s.available)
                self.fail(f"no such toolchain here: {', '.join(unknown)} (here: {known})")
                return
        if not self.run:
            self._pictures()
            return
        shapes = self.page.document.shapes
        ended = shapes.finished if shapes.several else self.page.document.execution.finished
        ended.connect(self._finished)
        self.page.runs.start()

    def _finished(self, state: str, reason: str) -> None:
        if state != "finished":
            self.fail(reason or state)
        else:
            self._pictures()

    def _pictures(self) -> None:
        assert self.page is not None
        page, document = self.page, self.page.document

        def settled() -> bool:
            return page.picture.drawn is not None and not page.picture.busy

        if not self.screenshots:
            self._wait(settled, self._export)
            return
        folder = Path(self.screenshots)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.fail(f"{folder}: {error.strerror}")
            return

        def overview() -> None:
            page.view.fit()
            self._shoot(folder / "overview.png", then=question)

        def question() -> None:
            shown = document.placement.shown
            if shown is not None and shown.placement.partitions:
                dear = max(shown.placement.partitions, key=lambda p: p.estimated_us or 0.0)
                document.selection.select(dear.nodes, dear.nodes[0])
            else:
                document.selection.select([0], 0)
            page.navigation.zoom_to_selection()
            asked = document.questions.explanation_changed
            ready = {"done": False}
            asked.connect(lambda: ready.update(done=document.questions.explanation is not None))
            QTimer.singleShot(4000, self, lambda: ready.update(done=True))
            self._wait(
                lambda: ready["done"], lambda: self._shoot(folder / "candidates.png", compare)
            )

        def compare() -> None:
            document.selection.select(())
            page.view.fit()
            page.docks.reveal("runs")
            self.window.preferences.set("panels", "around")
            for dock in ("placement", "node"):
                page.docks.by_name[dock].setVisible(False)
            from PySide6.QtCore import Qt

            tall = round(page.height() * 0.6)
            page.resizeDocks([page.docks.by_name["runs"]], [tall], Qt.Orientation.Vertical)
            self._shoot(folder / "compare.png", self._export)

        self._wait(settled, overview)

    def _shoot(self, path: Path, then: Callable[[], None]) -> None:
        def take() -> None:
            if not self.window.grab().save(str(path)):
                self.fail(f"{path} cannot be written")
            else:
                then()

        # Two turns of the event loop: layouts settle in the first, pictures in the second.
        QTimer.singleShot(250, self, lambda: QTimer.singleShot(250, self, take))

    def _export(self) -> None:
        if not self.export:
            self._done()
            return
        assert self.page is not None
        page = self.page
        folder = self.export
        os.makedirs(folder, exist_ok=True)

        from collage_gui.document_window.export_controller import save_svg

        if page.picture.drawn is not None:
            stem = Path(self.path).stem
            save_svg(page.picture.drawn, os.path.join(folder, "graph.svg"), stem, False)
        report = os.path.join(folder, "report.html")

        def documents() -> None:
            if page.document.runs.visible:
                artifact = os.path.join(folder, "artifact")
                page.export.report_to(report, lambda: page.export.artifact_to(artifact, self._done))
            else:
                page.export.report_to(report, self._done)

        page.export.csv_to(os.path.join(folder, "tables"), documents)

    def _done(self) -> None:
        if not self._ended:
            self._ended = True
            self._quit()

    def _quit(self) -> None:
        self._limit.stop()
        self.window.closing = True
        self.window.close()
        QTimer.singleShot(0, QApplication.instance(), lambda: QApplication.exit(self.status))

    def _wait(self, ready: Callable[[], bool], then: Callable[[], None]) -> None:
        if self._ended:
            return
        if ready():
            then()
        else:
            QTimer.singleShot(40, self, lambda: self._wait(ready, then))


def main() -> int:
    """Drive the desktop as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--engine", default="local")
    parser.add_argument("--theme", default="light")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--toolchains", default="", metavar="NAME,…")
    parser.add_argument("--budget", type=int, metavar="SECONDS")
    parser.add_argument("--screenshot", metavar="DIR")
    parser.add_argument("--export", metavar="DIR")
    parser.add_argument("--limit", type=float, default=3600.0, metavar="SECONDS")
    options = parser.parse_args()
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    QApplication(sys.argv[:1])
    with tempfile.TemporaryDirectory(prefix="collage-explorer-") as folder:
        # Pictures must not depend on how somebody arranged their window, nor rearrange it.
        preferences = Preferences(os.path.join(folder, "settings.ini"))
        theme = Theme(preferences)
        theme.forced = options.theme
        theme.apply()
        window = MainWindow(preferences, theme, parse_connection(options.engine))
        window.show()
        automation = Automation(
            window,
            path=options.file,
            run=options.run,
            toolchains=tuple(name for name in options.toolchains.split(",") if name),
            screenshots=options.screenshot,
            export=options.export,
            limit_s=options.limit,
            budget_s=options.budget,
        )
        QTimer.singleShot(0, automation, automation.begin)
        QTimer.singleShot(0, window, window.engine.start)
        status = QApplication.exec()
        return automation.status or status


if __name__ == "__main__":
    raise SystemExit(main())
