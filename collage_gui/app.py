"""Starts the program: arguments, application, window."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collage_gui.main_window.window import MainWindow


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    from collage_engine import __version__

    made = argparse.ArgumentParser(
        prog="collage-explorer",
        description="See, question, pin, re-run, compare and export placements of a model.",
    )
    made.add_argument("files", nargs="*", metavar="MODEL|SESSION")
    made.add_argument(
        "--engine",
        metavar="CONNECTION",
        help="local, ssh:HOST or command:…",
    )
    made.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return made


def start_with_files(window: MainWindow, paths: Sequence[str]) -> None:
    """Start the engine, then open the files of the command line.

    The order matters: a request that is made before the engine starts fails, while one that is
    made during its start waits for it.
    """
    from PySide6.QtCore import QTimer

    from collage_gui.theme import INSTANT_MS

    window.engine.start()
    for path in paths:
        window.documents.open_path(path)
    QTimer.singleShot(INSTANT_MS, window, load_documents)  # the window is painted then


def load_documents() -> None:
    """Load what draws graphs and charts while the engine starts: no file need wait for it."""
    for module in ("collage_gui.document_window.window", "networkx", "pyqtgraph"):
        importlib.import_module(module)


def main(arguments: list[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: The command line without the program's name; the process's own by default.

    Returns:
        The exit status.
    """
    made = parser()
    options = made.parse_args(arguments)
    from collage_gui.engine_client import parse_connection

    connection = None
    if options.engine:
        try:
            connection = parse_connection(options.engine)
        except ValueError as error:
            made.error(str(error))
    displays = map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"))
    if sys.platform.startswith("linux") and not any(displays):
        print("collage-explorer: there is no display", file=sys.stderr)
        return 1
    import faulthandler
    import signal

    faulthandler.enable()
    from PySide6.QtCore import QMargins, QTimer
    from PySide6.QtWidgets import QApplication, QStyle

    from collage_gui.main_window.window import MainWindow
    from collage_gui.preferences import Preferences
    from collage_gui.theme import Theme

    app = QApplication.instance() or QApplication(sys.argv[:1])
    assert isinstance(app, QApplication)
    app.setApplicationName("Collage Explorer")
    app.setDesktopFileName("collage-explorer")
    preferences = Preferences()
    theme = Theme(preferences)
    window = MainWindow(preferences, theme, connection)
    signal.signal(signal.SIGINT, lambda *_: QApplication.exit(130))
    # Python handles signals only between its own instructions, so that it is given some.
    ticker = QTimer(interval=250)
    ticker.timeout.connect(lambda: None)
    ticker.start()
    # The window manager's own frame is not known before the window is shown.
    title_px = app.style().pixelMetric(QStyle.PixelMetric.PM_TitleBarHeight)
    available = window.screen().availableSize().shrunkBy(QMargins(0, 0, 0, title_px))
    if window.size().boundedTo(available) != window.size():
        window.resize(window.size().boundedTo(available))
        window.showMaximized()
    else:
        window.show()
    QTimer.singleShot(0, window, lambda: start_with_files(window, options.files))
    status = app.exec()
    window.closing = True
    window.close()
    return status


if __name__ == "__main__":
    raise SystemExit(main())
