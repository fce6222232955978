"""Times of the desktop on a large graph: first picture, frames of gestures, sharp pictures."""

# ruff: noqa: E402 — the environment and the path are set before Qt and the helpers load

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "gui")]

from canned import World
from PySide6.QtCore import QEventLoop, QPointF
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QApplication

from collage_engine.records.graph import ModelRecord
from collage_engine.service import protocol
from collage_gui.app import load_documents
from collage_gui.connections import Connection
from collage_gui.document.document import Document
from collage_gui.document.run_queue import RunQueue
from collage_gui.document.shown_placement import Shown
from collage_gui.document_window.window import DocumentWindow
from collage_gui.engine_client import EngineClient
from collage_gui.messages import Messages
from collage_gui.preferences import Preferences
from collage_gui.theme import Theme


def measure(named: str) -> dict[str, float]:
    """Seconds by name; percentiles of frames where there are many.

    Args:
        named: Name of a canned model, ``5k`` or ``large``.
    """
    app = QApplication.instance() or QApplication([])
    load_documents()  # as the program does before the first file is opened
    with tempfile.TemporaryDirectory() as folder:
        preferences = Preferences(folder + "/settings.ini")
        theme = Theme(preferences)
        world = World(named)
        world.enumerate()
        placement, _ = world.place(())
        assert placement is not None
        client = EngineClient(Connection())
        document = Document(client)
        page = DocumentWindow(
            document, theme, preferences, defaultdict(QAction), RunQueue(), Messages()
        )
        page.resize(1400, 900)
        page.show()
        app.processEvents()
        found: dict[str, float] = {"operators": len(world.calls)}

        def settle(begin: float) -> float:
            while page.picture.drawn is None:
                app.processEvents(QEventLoop.ProcessEventsFlag.WaitForMoreEvents, 20)
            page.view.viewport().repaint()
            return time.perf_counter() - begin

        document.model = ModelRecord(path="large.onnx", sha256="", nodes=len(world.calls))
        begin = time.perf_counter()
        document._graph_arrived(protocol.GraphAnswer(graph=world.graph))
        found["first picture, collapsed"] = settle(begin)
        begin = time.perf_counter()
        page.picture.expand_all()
        found["first picture, all nodes"] = settle(begin)
        assert page.picture.drawn is not None
        found["boxes"] = len(page.picture.drawn.rectangles)
        begin = time.perf_counter()
        document.placement.show(Shown(placement, "bench", None, False))
        page.view.viewport().repaint()
        found["colouring a placement"] = time.perf_counter() - begin

        def frames(step) -> list[float]:
            times = []
            for number in range(60):
                begin = time.perf_counter()
                step(number)
                page.view.viewport().repaint()
                times.append(time.perf_counter() - begin)
            return times

        view = page.view
        view.fit()
        view.viewport().repaint()
        middle = QPointF(view.viewport().rect().center())
        for name, start, step in (
            ("zoom from the whole", 0.0, lambda n: view.zoom(1.06, middle)),
            ("pan, whole in view", 0.0, lambda n: view.pan(QPointF(9, 5))),
            ("pan at 0.15", 0.15, lambda n: view.pan(QPointF(-12, 7))),
            ("pan at 0.5", 0.5, lambda n: view.pan(QPointF(-12, 7))),
            ("pan at 1.0", 1.0, lambda n: view.pan(QPointF(-12, 7))),
        ):
            view.fit()
            if start:
                view.zoom(start / view.scale, middle)
            view._hold = False
            view.viewport().repaint()
            rest = time.perf_counter() + 0.4
            while time.perf_counter() < rest:
                app.processEvents()
            times = sorted(frames(step))
            found[f"frame, {name}, median"] = statistics.median(times)
            found[f"frame, {name}, worst"] = times[-1]
            view._rest.stop()
            view._sharp = None
            begin = time.perf_counter()
            view._sharpen()
            view.viewport().repaint()
            found[f"sharp after {name}"] = time.perf_counter() - begin
        page.close_document()
        page.deleteLater()
        app.processEvents()
        return found
