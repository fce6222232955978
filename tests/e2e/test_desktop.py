"""The desktop with the real engine."""

from __future__ import annotations

import os
import signal

import onnx
import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
pytest.importorskip("PySide6.QtWidgets")
pytest.importorskip("tvm", reason="the real engine needs TVM")

from collage_gui.engine_client import Connection
from tests.gui.conftest import Driver, check
from tests.support.caches import fresh_cache
from tests.support.toolchain_models import convolutions

SOME = ("onnxruntime", "onednn")
"""Toolchains of runs whose point is not the whole menu."""


@pytest.mark.slow
def test_the_real_engine_killed_while_measuring_goes_on_after_a_restart(
    qtbot, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(fresh_cache(tmp_path / "cache")))
    monkeypatch.setenv("COLLAGE_EXPLORER_RECOVERY", str(tmp_path / "recovery"))
    onnx.save(convolutions(), tmp_path / "model.onnx")
    d = Driver(qtbot, tmp_path, Connection())
    try:
        page = d.start().open("model.onnx")
        document = page.document
        document.selection.select([0])
        page.pins.pin_to("onednn")
        page.panels.run_settings.threads.setValue(1)
        page.panels.run_settings.budget.setValue(60)
        check(page.panels.run_settings.toolchains, *SOME)
        page.runs.start()
        d.until(lambda: len(document.costs.by_candidate) >= 5)
        os.kill(d.window.client._process.processId(), signal.SIGKILL)
        d.until(lambda: page.banner.isVisible())
        assert "What was measured is kept" in page.banner.label.text()
        page.banner.action.click()
        d.until(lambda: document.handle != "")
        assert [pin.toolchain for pin in document.pins.current] == ["onednn"]
        d.run(page)
        run = document.runs.find(document.placement.shown.run)
        assert run.candidates.from_store >= 5, "what was measured before the kill is used"
        assert document.placement.partition_of(0).toolchain == "onednn"
        assert run.pins[0].state == "honoured"
    finally:
        d.close()
