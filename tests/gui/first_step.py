"""Starts the program as a user does, and prints what its window shows: one JSON line.

``python first_step.py LIMIT_S TABS ARGUMENT…``: ends when TABS documents are drawn, when a message
is shown and nothing is opened any more, or after LIMIT_S seconds. The program's own ``main`` runs;
nothing of it is replaced.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

from collage_gui.app import main
from collage_gui.main_window.window import MainWindow


def look(window: MainWindow) -> dict[str, object]:
    pages, page = window.documents.pages, window.documents.current
    banner = page.banner if page is not None else window.banner
    return {
        "tabs": [page.document.title for page in pages],
        "drawn": sum(bool(page.picture.drawn.rectangles) for page in pages),
        "placements": sum(page.document.placement.shown is not None for page in pages),
        "operators": [page.document.operators.count for page in pages],
        "banner": banner.label.text() if banner.isVisible() else "",
        "welcome": window.stack.currentWidget() is window.welcome,
        "engine": window.client.state,
        "platform": QApplication.platformName(),
        "size": [window.width(), window.height()],
    }


def run(limit_s: float, tabs: int, arguments: list[str]) -> int:
    app = QApplication(["collage-explorer"])
    begin = time.monotonic()
    timer = QTimer(interval=50)

    def check() -> None:
        found = [w for w in app.topLevelWidgets() if isinstance(w, MainWindow)]
        if not found:
            return
        window = found[0]
        state = look(window)
        done = state["drawn"] == tabs and len(state["tabs"]) == tabs
        if tabs == 0:
            done = bool(state["banner"]) and window.client.state == "ready"
        if state["placements"] < state["drawn"] and any(t.endswith(".collage") for t in arguments):
            done = False
        if done or time.monotonic() - begin > limit_s:
            timer.stop()
            print(json.dumps(state), flush=True)
            window.closing = True
            window.close()
            QTimer.singleShot(0, app.quit)

    timer.timeout.connect(check)
    timer.start()
    return main(arguments)


if __name__ == "__main__":
    raise SystemExit(run(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
