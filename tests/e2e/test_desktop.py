"""The desktop with the real engine."""

from __future__ import annotations

import os

import onnx
import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
pytest.importorskip("PySide6.QtWidgets")
pytest.importorskip("tvm", reason="the real engine needs TVM")

from tests.support.caches import fresh_cache
from tests.support.toolchain_models import convolutions

SOME = ("onnxruntime", "onednn")
"""Toolchains of runs whose point is not the whole catalog."""


@pytest.mark.slow
def test_the_real_engine_killed_while_measuring_goes_on_after_a_restart(
    qtbot, tmp_path, monkeypatch
) -> None:
    import signal

    from collage_gui.engine_client import Connection
    from collage_gui.main_window.window import MainWindow
    from collage_gui.preferences import Preferences
    from collage_gui.theme import Theme
    from tests.gui.conftest import check

    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(fresh_cache(tmp_path / "cache")))
    monkeypatch.setenv("COLLAGE_EXPLORER_RECOVERY", str(tmp_path / "recovery"))
    preferences = Preferences(str(tmp_path / "settings.ini"))
    window = MainWindow(preferences, Theme(preferences), Connection())
    window.show()
    try:
        window.engine.start()
        qtbot.waitUntil(lambda: bool(window.engine.states), timeout=60_000)
        onnx.save(convolutions(), tmp_path / "model.onnx")
        page = window.documents.open_path(str(tmp_path / "model.onnx"))
        document = page.document
        qtbot.waitUntil(lambda: page.picture.drawn is not None, timeout=60_000)
        document.selection.select([0])
        page.pins.pin_to("onednn")
        page.panels.run_settings.threads.setValue(1)
        page.panels.run_settings.budget.setValue(60)
        check(page.panels.run_settings.toolchains, *SOME)
        page.runs.start()
        qtbot.waitUntil(lambda: len(document.costs.by_candidate) >= 5, timeout=120_000)
        os.kill(window.client._process.processId(), signal.SIGKILL)
        qtbot.waitUntil(lambda: page.banner.isVisible(), timeout=60_000)
        assert "What was measured is kept" in page.banner.label.text()
        page.banner.action.click()
        qtbot.waitUntil(lambda: document.handle != "", timeout=60_000)
        assert [pin.toolchain for pin in document.pins.current] == ["onednn"]
        page.runs.start()
        qtbot.waitUntil(
            lambda: bool(document.runs.visible) and not document.execution.running,
            timeout=200_000,
        )
        run = document.runs.find(document.placement.shown.run)
        assert run.candidates.from_store >= 5, "what was measured before the kill is used"
        assert document.placement.partition_of(0).toolchain == "onednn"
        assert run.pins[0].state == "honoured"
    finally:
        window.closing = True
        window.close()
        window.deleteLater()
