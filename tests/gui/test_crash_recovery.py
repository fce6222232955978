"""Crashes, hangs, floods, versions, recovery, themes, and an engine on another machine."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QMessageBox, QPushButton

from collage_engine.records import protocol
from collage_gui import recovery
from collage_gui.engine_client import Connection, parse_connection
from collage_gui.theme import KEPT


def test_an_engine_that_crashes_gives_a_banner_and_a_restart_that_goes_on(drive, tmp_path) -> None:
    d = drive(
        "--crash-after",
        "100",
        "--once",
        str(tmp_path / "crashed"),
        "--slow",
        "0.02",
    )
    page = d.open("resnet50.onnx")
    boxes = len(page.picture.drawn.rectangles)
    page.runs.start()
    d.until(lambda: d.banner.isVisible())
    text = d.banner.label.text()
    assert "The engine crashed" in text and "under way: " in text
    assert "What was measured is kept" in text
    assert not page.document.execution.running and not page.strip.isVisible()
    assert len(page.picture.drawn.rectangles) == boxes, "the picture stays"
    kept = len(page.document.costs.by_candidate)
    assert kept >= 60
    d.banner.action.click()
    d.until(lambda: page.document.handle != "")
    assert not d.banner.isVisible()
    d.run(page)
    assert page.document.placement.shown.placement.measured_us is not None


def test_an_engine_that_does_not_answer_at_all_is_noticed(opened, monkeypatch) -> None:
    from collage_gui import engine_client

    monkeypatch.setattr(engine_client, "SILENCE_S", 0.3)
    d, page = opened
    os.kill(d.window.client._process.processId(), signal.SIGSTOP)
    d.window.client.request(protocol.ToolchainsList(), print, print)
    d.until(lambda: d.banner.isVisible())
    assert "does not answer" in d.banner.label.text()
    d.banner.action.click()
    d.until(lambda: page.document.handle != "")


def test_a_flood_of_messages_leaves_the_window_responsive(drive) -> None:
    d = drive("--flood", "5000")
    page = d.open("resnet50.onnx")
    shown: list[int] = []
    timer = QTimer(interval=0)
    timer.timeout.connect(lambda: shown.append(len(shown)))
    timer.start()
    d.run(page)
    timer.stop()
    assert len(shown) > 3, "the window has its turns during the run"
    assert page.panels.log.blockCount() <= KEPT


def test_an_engine_of_another_version_is_refused_with_a_sentence(drive) -> None:
    d = drive("--speaks", "99", ready=False)
    d.until(lambda: d.banner.isVisible())
    assert "version 99" in d.banner.label.text()
    assert d.window.client.state == "stopped"


def test_noise_between_messages_goes_to_the_log(drive) -> None:
    d = drive("--noise")
    page = d.open()
    d.run(page)
    assert page.document.placement.shown is not None


def test_a_program_that_does_not_exist_is_named(drive) -> None:
    d = drive(start=False)
    d.window.client.connection = Connection("command", "/no/such/engine")
    d.window.engine.start()
    d.until(lambda: d.banner.isVisible())
    assert "/no/such/engine not found" in d.banner.label.text()
    d.window.documents.open_path(d.model())
    d.until(lambda: d.window.documents.pages == [])
    assert d.banner.isVisible() and "restart it" in d.banner.label.text()


def test_a_session_is_saved_opened_and_unsaved_work_asks(placed, monkeypatch) -> None:
    d, page = placed
    page.document.selection.select([0])
    page.pins.pin_never("tvm")
    assert page.document.unsaved and d.window.documents.tabs.tabText(0).endswith("•")
    asked = []
    monkeypatch.setattr(
        d.window.documents, "ask_save", lambda names, _: asked.append(names) or "cancel"
    )
    d.window.documents.close(0)
    assert asked == ["small.onnx"] and d.window.documents.pages == [page]
    path = str(d.folder / "mine.collage")
    page.document.session_path = path
    d.trigger("save")
    d.until(lambda: not page.document.unsaved)
    d.window.documents.close(0)
    assert len(asked) == 1 and d.window.documents.pages == []
    again = d.window.documents.open_path(path)
    d.until(lambda: again.document.placement.shown is not None)
    assert [p.kind for p in again.document.pins.current] == ["never"]


def test_nothing_is_asked_when_nothing_would_be_lost(drive, monkeypatch) -> None:
    d = drive()
    d.open()
    monkeypatch.setattr(QMessageBox, "question", lambda *a: pytest.fail("asked"))
    d.window.documents.close(0)
    assert d.window.documents.pages == []


def test_work_lost_in_a_crash_is_offered_back(opened, monkeypatch) -> None:
    d, page = opened
    page.document.selection.select([0])
    page.pins.pin_never("tvm")
    d.window.recovery.save_all()
    copies = list(d.window.recovery.copies.values())
    d.until(lambda: copies and copies[0].exists())
    assert recovery.left_behind() == [], "this window lives"
    # As if it had died: the kernel lets go of its locks.
    monkeypatch.setattr(recovery, "is_locked", lambda path: False)
    d.window.recovery.copies.clear()
    found = recovery.left_behind()
    assert [recovery.name_of(copy) for copy in found] == ["small.onnx"]
    d.window.documents.remove(page)
    d.window.welcome.show_lost(found)
    d.window.welcome.findChild(QPushButton, "restore").click()
    again = d.window.documents.current
    d.until(lambda: again.document.pins.current != ())
    assert again.document.pins.current[0].kind == "never" and again.document.unsaved
    assert again.document.path == page.document.path and not again.document.session_path
    d.until(lambda: recovery.left_behind() == [])


def test_autosave_follows_a_pin(opened) -> None:
    d, page = opened
    page.document.selection.select([0])
    page.pins.pin_never("tvm")
    d.until(lambda: d.window.recovery.copy_of(page.document) is not None)
    copy = d.window.recovery.copies[page.document]
    saved = copy.stat().st_mtime_ns
    page.pins.pin_never("onednn")
    d.until(lambda: copy.stat().st_mtime_ns > saved and not page.document.client._pending)
    d.window.documents.remove(page)
    assert not copy.exists()


def test_themes_and_text_sizes_change_the_window(drive) -> None:
    d = drive()
    d.open()
    sheets = set()
    for name in ("light", "dark", "contrast"):
        d.trigger(f"theme_{name}")
        assert d.theme.colours.name == name
        sheets.add(d.window.palette().window().color().name())
    assert len(sheets) == 3
    before = d.theme.font().pixelSize()
    d.trigger("bigger")
    assert d.theme.font().pixelSize() > before
    d.preferences.set("theme", "system")
    assert d.theme.colours.name in ("light", "dark", "contrast")


def test_text_stands_out_from_its_background_in_every_theme() -> None:
    from collage_engine.drawing.palette import CONTRAST, DARK, LIGHT

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def ratio(a: str, b: str) -> float:
        one, two = sorted((luminance(a), luminance(b)), reverse=True)
        return (one + 0.05) / (two + 0.05)

    for c in (LIGHT, DARK, CONTRAST):
        for back in (c.window, c.panel, c.canvas, c.raised):
            assert ratio(c.text, back) >= 7, (c.name, "text", back)
            assert ratio(c.quiet, back) >= 4.5, (c.name, "quiet", back)
            assert ratio(c.focus, back) >= 3, (c.name, "focus", back)
        red, green, blue = (int(c.focus[at : at + 2], 16) for at in (1, 3, 5))
        assert red <= max(green, blue), "what is selected does not look like an error"
        assert ratio(c.warning_text, c.warning) >= 4.5
        assert ratio(c.error_text, c.error) >= 4.5


def test_every_action_is_in_a_menu_and_with_its_keys_in_the_palette(opened) -> None:
    from collage_gui.actions import ACTIONS
    from collage_gui.main_window.action_set import GESTURES

    d, page = opened
    in_menus = set()
    for menu in d.window.menuBar().actions():
        in_menus |= {a.objectName() for a in menu.menu().actions()}
        for inner in filter(None, (action.menu() for action in menu.menu().actions())):
            in_menus |= {a.objectName() for a in inner.actions()}
    keys: dict[str, str] = {}
    for spec in ACTIONS:
        assert f"action-{spec.id}" in in_menus
        for key in spec.keys:
            assert key not in keys, f"{key}: {spec.id} and {keys.get(key)}"
            keys[key] = spec.id
    d.window.show_palette()
    palette = d.window._palette
    assert palette.list.count() == len(ACTIONS) - 1 + len(GESTURES)
    listed = "\n".join(palette.list.item(row).text() for row in range(palette.list.count()))
    for spec in ACTIONS:
        assert spec.id == "palette" or all(key in listed for key in spec.keys)
    palette.text.setText("zoom")
    assert "In the graph: Zoom to an area    Ctrl+drag" in [
        palette.list.item(row).text() for row in range(palette.list.count())
    ]
    palette.text.setText("theme")
    assert palette.list.count() >= 3, "choices are found by the title of their menu"
    palette.text.setText("fit")
    assert "Fit the graph" in palette.list.item(0).text()
    page.view.zoom(3.0)
    QTest.keyClick(palette.text, Qt.Key.Key_Return)
    assert page.view.visible_area().contains(page.picture.drawn.bounds.adjusted(5, 5, -5, -5))


@pytest.mark.parametrize(
    "text, command",
    [
        ("local", [sys.executable, "-P", "-m", "collage_engine", "serve"]),
        ("command:python -m engine", ["python", "-m", "engine"]),
    ],
)
def test_connections_name_their_command(text, command) -> None:
    assert parse_connection(text).command == command


@pytest.mark.parametrize("text", ["", "ssh:", "python:/x", "ssh:-oProxyCommand=x"])
def test_a_connection_that_is_none_is_refused(text) -> None:
    with pytest.raises(ValueError):
        parse_connection(text)


def test_an_engine_over_ssh_gets_the_model_by_value(drive, tmp_path, monkeypatch) -> None:
    fake = tmp_path / "bin" / "ssh"
    fake.parent.mkdir()
    engine = Path(__file__).with_name("recorded_engine.py")
    fake.write_text(f"#!/bin/sh\nexec {sys.executable} {engine}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    d = drive(start=False)
    d.window.client.connection = parse_connection("ssh:elsewhere")
    d.window.engine.start()
    d.until(lambda: bool(d.window.engine.states))
    page = d.open()
    assert Path(page.document.model.path).name == "small.onnx"
    assert page.document.model.path != page.document.path, "a copy of the engine's own"
    assert "ssh elsewhere" in d.window.device.text()


def test_keys_of_one_letter_leave_fields_lists_and_buttons_alone(placed) -> None:
    from PySide6.QtCore import Qt

    d, page = placed
    page.show_settings()
    listing = page.panels.run_settings.toolchains
    listing.setCurrentRow(0)
    listing.setFocus()
    before = page.document.placement.shown
    d.until(lambda: not page.document.client._pending)
    d.qtbot.keyClick(listing, Qt.Key.Key_Space)
    assert listing.item(0).checkState() == Qt.CheckState.Unchecked
    assert page.document.placement.shown is before and not page.document.client._pending
    page.panels.node.candidates.filter.setFocus()
    d.qtbot.keyClicks(page.panels.node.candidates.filter, "kfp 1")
    assert page.panels.node.candidates.filter.text() == "kfp 1" and page.document.pins.current == ()
    page.view.setFocus()
    page.document.selection.select([0])
    d.window.refresh()
    d.qtbot.keyClick(page.view, Qt.Key.Key_2)
    assert page.picture.mode == "cost"
    d.qtbot.keyClick(page.view, Qt.Key.Key_K)
    assert [p.kind for p in page.document.pins.current] == ["exactly"]
    d.qtbot.keyClick(page.view, Qt.Key.Key_Delete)
    assert page.document.pins.current == ()
    d.until(lambda: not page.document.client._pending)
    shown = page.document.placement.shown
    d.qtbot.keyClick(page.view, Qt.Key.Key_Space)
    d.until(lambda: page.document.placement.shown is not shown)
