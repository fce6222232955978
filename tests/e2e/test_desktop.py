"""The desktop without a person, against the scripted engine and the real one."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
pytest.importorskip("PySide6.QtWidgets")
pytest.importorskip("tvm", reason="the real engine needs TVM")

from tests.support.caches import fresh_cache
from tests.support.toolchain_models import convolutions

ROOT = Path(__file__).resolve().parents[2]
SOME = ("onnxruntime", "onednn")
"""Toolchains of runs whose point is not the whole menu."""
SCRIPTED = f"command:{sys.executable} {ROOT / 'tests' / 'gui' / 'scripted_engine.py'}"


def explorer(folder: Path, *arguments: str, limit_s: int = 120) -> subprocess.CompletedProcess[str]:
    environment = dict(
        os.environ,
        QT_QPA_PLATFORM="offscreen",
        COLLAGE_EXPLORER_RECOVERY=str(folder / "recovery"),
        PYTHONPATH=str(ROOT),
    )
    return subprocess.run(
        [sys.executable, "-m", "tests.support.drive_desktop", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit_s,
        cwd=folder,
        check=False,
    )


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", head[16:24])
    return width, height


@pytest.mark.slow
def test_the_real_engine_places_a_model_headless(tmp_path, monkeypatch) -> None:
    """The real engine gives pictures, an artifact and a report; exit 0."""
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(fresh_cache(tmp_path / "cache")))
    shots, out = tmp_path / "shots", tmp_path / "out"
    onnx.save(convolutions(), tmp_path / "model.onnx")
    done = explorer(
        tmp_path,
        str(tmp_path / "model.onnx"),
        "--run",
        "--budget",
        "10",
        "--toolchains",
        ",".join(SOME),
        "--screenshot",
        str(shots),
        "--export",
        str(out),
        limit_s=280,
    )
    assert done.returncode == 0, done.stderr
    assert png_size(shots / "overview.png") >= (1280, 800)
    assert (out / "artifact" / "manifest.json").exists()
    assert (out / "artifact" / "model.so").exists()
    assert b"<svg" in (out / "report.html").read_bytes()


@pytest.mark.slow
def test_the_real_engine_killed_while_measuring_goes_on_after_a_restart(
    qtbot, tmp_path, monkeypatch
) -> None:
    import signal

    from collage_gui.connections import Connection
    from collage_gui.main_window.window import MainWindow
    from collage_gui.preferences import Preferences
    from collage_gui.theme import Theme

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
        assert page.panels.run_settings.choose(SOME) == []
        page.runs.start()
        qtbot.waitUntil(lambda: len(document.costs.by_candidate) >= 5, timeout=120_000)
        os.kill(window.client.process_id, signal.SIGKILL)
        qtbot.waitUntil(lambda: window.banner.isVisible(), timeout=10_000)
        assert "What was measured is kept" in window.banner.label.text()
        window.banner.action.click()
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
