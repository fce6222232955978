"""Pictures of the desktop as the README shows it, in each theme.

``QT_QPA_PLATFORM=offscreen python -m tests.gui.pictures DIR [--real MODEL]``. With ``--real`` the
true engine runs the model; otherwise it plays a recorded run.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PySide6.QtWidgets import QApplication

from collage_gui.engine_client import Connection
from tests.gui.conftest import Driver, played

SIZE = (1600, 1000)


class Story(Driver):
    """A window outside of a test, of which pictures are taken."""

    def until(self, ready: Callable[[], object], limit_ms: int = 120_000) -> None:
        end = time.monotonic() + limit_ms / 1000
        while not ready():
            QApplication.processEvents()
            time.sleep(0.005)
            if time.monotonic() > end:
                raise TimeoutError(f"waited {limit_ms} ms")

    def shoot(self, path: Path) -> None:
        rested = time.monotonic() + 1.0
        self.until(lambda: time.monotonic() > rested)
        self.window.grab().save(str(path))
        print(path, flush=True)


def tell(folder: Path, theme: str, real: str | None) -> None:
    """Run a model and ask about its dearest partition."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["COLLAGE_EXPLORER_RECOVERY"] = scratch + "/recovery"
        story = Story(None, Path(scratch), Connection() if real else played("--slow", "0.05"))
        story.preferences.set("theme", theme)
        story.window.resize(*SIZE)
        page = story.start().open(real or "resnet50.onnx")
        document = page.document
        story.run(page)
        parts = document.placement.shown.placement.partitions
        dear = max(parts, key=lambda part: part.estimated_us or 0)
        document.selection.select(dear.nodes, dear.nodes[0])
        page.picture.zoom_to_selection()
        story.until(lambda: document.questions.explanation is not None)
        page.tabs.setCurrentWidget(page.panels.node)
        story.shoot(folder / f"overview-{theme}.png")
        story.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--real")
    parser.add_argument("--themes", default="light,dark")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    app = QApplication.instance() or QApplication([])
    for theme in options.themes.split(","):
        tell(options.folder, theme, options.real)
    app.quit()


if __name__ == "__main__":
    main()
