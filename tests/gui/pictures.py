"""Pictures of the desktop in every state: the README's, and what a designer looks at.

``QT_QPA_PLATFORM=offscreen python tests/gui/pictures.py DIR [--real MODEL]``. With ``--real``
the true engine runs the model; otherwise it plays a recorded run.
"""

# ruff: noqa: E402 — the environment and the path are set before Qt and the helpers load

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from PySide6.QtWidgets import QApplication

from collage_gui.engine_client import Connection
from collage_gui.main_window.window import MainWindow
from collage_gui.preferences import Preferences
from collage_gui.theme import Theme

SIZE = (1600, 1000)


def played(*options: str) -> Connection:
    return Connection(
        "command", " ".join([sys.executable, str(HERE / "recorded_engine.py"), *options])
    )


class Story:
    """A window and the means to wait for it."""

    def __init__(self, folder: Path, theme: str, connection: Connection, settings: str) -> None:
        self.app = QApplication.instance() or QApplication([])
        self.folder, self.theme_name = folder, theme
        preferences = Preferences(settings)
        preferences.set("theme", theme)
        self.theme = Theme(preferences)
        self.window = MainWindow(preferences, self.theme, connection)
        self.window.resize(*SIZE)
        self.window.show()
        self.window.engine.start()

    def until(self, ready, limit_s: float = 60.0) -> None:
        end = time.monotonic() + limit_s
        while not ready():
            self.app.processEvents()
            time.sleep(0.005)
            if time.monotonic() > end:
                raise TimeoutError(f"waited {limit_s} s")

    def rest(self, seconds: float = 0.5) -> None:
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > end, seconds + 5)

    def shoot(self, name: str) -> None:
        self.rest()
        path = self.folder / f"{name}-{self.theme_name}.png"
        self.window.grab().save(str(path))
        print(path, flush=True)

    def open(self, path: str):
        page = self.window.documents.open_path(path)
        self.until(lambda: page.picture.drawn is not None)
        self.rest(0.3)
        return page

    def close(self) -> None:
        self.window.closing = True
        self.window.close()
        self.window.deleteLater()
        self.rest(0.2)


def tell(folder: Path, theme: str, real: str | None, limit_s: float) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["COLLAGE_EXPLORER_RECOVERY"] = scratch + "/recovery"
        connection = Connection() if real else played("--slow", "0.05")
        model = real or scratch + "/resnet50.onnx"
        large = scratch + "/large-10k.onnx"
        for path in (model, large):
            if not os.path.exists(path):
                Path(path).write_bytes(b"")
        story = Story(folder, theme, connection, scratch + "/settings.ini")
        window = story.window
        story.until(lambda: bool(window.engine.states))
        story.shoot("1-welcome")
        page = story.open(model)
        document = page.document
        story.shoot("2-opened")
        page.runs.start()
        story.until(
            lambda: (
                (document.execution.progress is not None and document.execution.progress.done > 100)
                or not document.execution.running
            ),
            limit_s,
        )
        story.shoot("3-running")
        story.until(lambda: not document.execution.running, limit_s)
        story.rest(1.0)
        if document.placement.shown is None:
            raise RuntimeError(f"the run gave nothing: {page.banner.label.text()}")
        story.shoot("4-placed")
        parts = document.placement.shown.placement.partitions
        dear = max(parts, key=lambda p: p.estimated_us or 0)
        document.selection.select(dear.nodes, dear.nodes[0])
        page.picture.zoom_to_selection()
        story.until(lambda: document.questions.explanation is not None)
        page.tabs.setCurrentWidget(page.panels.node)
        story.rest(1.0)
        story.shoot("5-questioned")
        others = [n for n in ("tvm", "onnxruntime", "onednn") if n != dear.toolchain]
        page.pins.pin_to(others[0])
        document.selection.select(parts[len(parts) // 3].nodes)
        page.pins.pin_never(parts[len(parts) // 3].toolchain)
        story.rest(1.0)
        story.until(lambda: not document.client._pending)
        page.tabs.setCurrentWidget(page.panels.pins)
        page.view.fit()
        story.shoot("6-pins")
        page.runs.start()
        story.until(lambda: not document.execution.running, limit_s)
        story.rest(1.0)
        page.tabs.setCurrentWidget(page.panels.runs)
        page.split.open()
        story.shoot("7-compare")
        page.split.close()
        page.picture.set_mode("cost")
        page.show_settings()
        story.shoot("8-cost")
        page.settings_window.grab().save(str(folder / f"9-settings-{theme}.png"))
        page.settings_window.close()
        if not real:
            wide = story.open(large)
            story.shoot("10-large-opened")
            wide.picture.expand_all()
            story.rest(0.5)
            wide.runs.start()
            story.until(lambda: not wide.document.execution.running, limit_s * 4)
            story.rest(1.0)
            story.shoot("11-large")
        story.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--real")
    parser.add_argument("--themes", default="light,dark")
    parser.add_argument("--limit", type=float, default=120.0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for theme in options.themes.split(","):
        tell(options.folder, theme, options.real, options.limit)


if __name__ == "__main__":
    main()
