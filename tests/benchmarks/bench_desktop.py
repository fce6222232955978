"""Times that a user of the desktop feels, with the real engine and real files.

``xvfb-run -a python tests/benchmarks/bench_desktop.py [MODEL.onnx] [SESSION.collage]`` measures
from the start of the program to its window, from a file to its picture, from a click on a node
to the prices of pinning it, and from a pin to its price.
Without a session nothing is priced; without a model the sample model is opened.
"""

# ruff: noqa: E402 — the path is set before the helpers load

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "gui"), str(ROOT / "tests" / "benchmarks")]

from PySide6.QtCore import QEventLoop
from PySide6.QtWidgets import QApplication

STARTS = 5
"""Starts of the program that the median is taken of; chosen."""
CLICKS = 15
"""Nodes that are clicked; chosen."""
LAYERS, PARTS, FRAMES = 2_000, 400, 120
"""Layers and partitions of a long run, and frames in which it pans and zooms; chosen."""
LIMIT_S = 120.0
"""Seconds after which a wait is given up; chosen."""


def wait(ready) -> None:
    """Let the program work until something holds."""
    end = time.perf_counter() + LIMIT_S
    while not ready():
        QApplication.processEvents(QEventLoop.ProcessEventsFlag.AllEvents, 5)
        if time.perf_counter() > end:
            raise TimeoutError


def start_child() -> None:
    """Start the program and print when its window was painted for the first time."""
    from PySide6.QtCore import QTimer

    from collage_gui.app import main
    from collage_gui.main_window.window import MainWindow

    app = QApplication(["collage-explorer"])
    timer = QTimer(interval=2)

    def look() -> None:
        windows = [w for w in app.topLevelWidgets() if isinstance(w, MainWindow)]
        if windows and windows[0].isVisible() and windows[0].windowHandle().isExposed():
            timer.stop()
            windows[0].repaint()
            print(time.time(), flush=True)
            windows[0].closing = True
            windows[0].close()
            QTimer.singleShot(0, app.quit)

    timer.timeout.connect(look)
    timer.start()
    main([])


def start_times() -> list[float]:
    """Seconds from the start of the process to the painted window, once for each start."""
    times = []
    for _ in range(STARTS):
        begin = time.time()
        done = subprocess.run(
            [sys.executable, __file__, "--start"], capture_output=True, text=True, timeout=LIMIT_S
        )
        times.append(float(done.stdout.strip().splitlines()[-1]) - begin)
    return times


def engine_times(model: str, session: str) -> dict[str, float]:
    """Seconds with the real engine: files to pictures, clicks to prices."""
    from collage_gui.document.pin_prices import pin_prices
    from collage_gui.engine_client import Connection
    from collage_gui.main_window.window import MainWindow
    from collage_gui.preferences import Preferences
    from collage_gui.theme import Theme

    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        preferences = Preferences(folder + "/settings.ini")
        theme = Theme(preferences)
        theme.apply()
        window = MainWindow(preferences, theme, Connection())
        window.resize(1400, 900)
        window.show()
        begin = time.perf_counter()
        window.engine.start()
        wait(lambda: bool(window.engine.states))
        found["start of the engine to its toolchains"] = time.perf_counter() - begin

        def opened(path: str):
            begin = time.perf_counter()
            page = window.documents.open_path(path)
            wait(lambda: page.picture.drawn is not None)
            page.view.viewport().repaint()
            return page, time.perf_counter() - begin

        page, found["model file to picture"] = opened(model)
        found["operators of the model"] = page.document.operators.count
        if session:
            page, found["session file to picture"] = opened(session)
            document = page.document
            wait(lambda: document.placement.shown is not None and document.costs.candidates)
            names = [state.name for state in window.engine.states if state.available]
            clicks = []
            step = max(1, document.operators.count // CLICKS)
            for operator in range(0, document.operators.count, step):
                begin = time.perf_counter()
                document.selection.select([operator], operator)
                wait(lambda: document.questions.explanation and document.questions.candidates)
                pin_prices(document, names)
                clicks.append(time.perf_counter() - begin)
            found["click to prices, median"] = statistics.median(clicks)
            found["click to prices, worst"] = max(clicks)
            other = next(
                price.toolchain
                for price in pin_prices(document, names)
                if not price.reason and not price.is_now
            )
            begin = time.perf_counter()
            page.pins.pin_to(other)
            wait(lambda: any(v.reason or v.state != "pending" for v in document.pins.verdicts))
            found["pin to its price"] = time.perf_counter() - begin
        window.closing = True
        window.close()
        QApplication.processEvents()
    return found


def timeline_times() -> dict[str, float]:
    """Seconds of a frame of a run of 2,000 layers in 400 partitions, while it pans and zooms."""
    import pyqtgraph

    from collage_engine.drawing.operators import operator_graph
    from collage_engine.drawing.timeline import timeline
    from collage_engine.records.placement import LayerTime, Partition, Placement
    from collage_gui.panels.time_bars import Bars, Ruler
    from collage_gui.preferences import Preferences
    from collage_gui.theme import Theme
    from tests.support.graphs import chain

    graph = operator_graph(chain(*["nn.relu"] * LAYERS).record)
    size = LAYERS // PARTS
    parts = tuple(
        Partition(
            id=f"p{k}",
            candidate="",
            toolchain=("tvm", "onednn", "openvino")[k % 3],
            config={},
            nodes=tuple(range(k * size, (k + 1) * size)),
            onnx_nodes=(),
            estimated_us=None,
        )
        for k in range(PARTS)
    )
    layers = tuple(
        LayerTime(name="k", us=1 + k % 7, gap_us=k % 5 / 4, partition=k // size, operators=(k,))
        for k in range(LAYERS)
    )
    shown = timeline(graph, Placement(partitions=parts, estimated_us=None, layers=layers))
    plot, bars = pyqtgraph.PlotWidget(axisItems={"top": Ruler("top")}), Bars()
    plot.addItem(bars)
    plot.resize(1400, 300)
    plot.show()
    wait(lambda: plot.windowHandle().isExposed())
    with tempfile.TemporaryDirectory() as folder:
        bars.show_bars(shown, Theme(Preferences(folder + "/settings.ini")))
    frames = []
    for k in range(FRAMES):
        width = shown.end_us * 0.97 ** min(k, FRAMES - k)
        plot.setXRange(k, k + width, padding=0)
        begin = time.perf_counter()
        plot.viewport().repaint()
        QApplication.processEvents()
        frames.append(time.perf_counter() - begin)
    plot.close()
    return {"timeline, a frame, median": statistics.median(frames), "worst": max(frames)}


def main() -> None:
    """Measure everything and print it as a table, and as JSON in the last line."""
    if "--start" in sys.argv:
        start_child()
        return
    starts = start_times()
    found = {"start to window, median": statistics.median(starts)}
    found["start to window, worst"] = max(starts)
    app = QApplication.instance() or QApplication([])
    found |= timeline_times()
    files = [each for each in sys.argv[1:] if not each.startswith("-")]
    model = files[0] if files else str(ROOT / "resources" / "models" / "mnist.onnx")
    found |= engine_times(model, files[1] if len(files) > 1 else "")
    for name, value in found.items():
        count = name.endswith(("operators", "boxes", "of the model"))
        print(f"{name:62} {value:>9.0f}" if count else f"{name:62} {value * 1e3:>9.1f} ms")
    print(json.dumps(found))
    app.quit()


if __name__ == "__main__":
    main()
