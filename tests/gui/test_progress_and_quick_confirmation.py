"""A run while it goes on: stages, the best placement so far, stopping, quick confirmation."""

from __future__ import annotations

from PySide6.QtCore import Qt

from collage_engine.records.event import Progress
from collage_gui.panels.progress import progress_text


def test_the_best_placement_so_far_is_shown_and_kept_when_the_run_is_stopped(drive) -> None:
    d = drive("--slow", "0.05", "--model", "resnet", "--provisional")
    page = d.open("resnet50.onnx")
    page.runs.start()
    execution = page.document.execution
    d.until(lambda: execution.provisional is not None)
    shown = page.document.placement.shown
    assert shown.placement.measured_us == 5000.0 and shown.title == "Best so far"
    assert "Best so far: 5.00 ms measured (1 partition, TVM)" in page.strip.best.text()
    bars = {bar.label: bar for bar in page.panels.runs.chart.bars}
    assert bars["Best so far"].value == 5000.0 and bars["Best so far"].strong
    d.until(lambda: "▸ Measure" in page.strip.steps.text())
    assert "✓ Whole models" in page.strip.steps.text() and "· Confirm" in page.strip.steps.text()
    assert page.strip.keep.isEnabled() and page.strip.cancel.isEnabled()
    d.qtbot.mouseClick(page.strip.keep, Qt.MouseButton.LeftButton)
    assert execution.stopping and not page.strip.keep.isEnabled()
    d.until(lambda: not execution.running and page.document.runs.visible)
    run = page.document.runs.visible[-1]
    assert run.ended == "stopped"
    assert "The run was stopped" in page.panels.runs.remark.text()
    assert "Best so far" not in {bar.label for bar in page.panels.runs.chart.bars}
    assert any("Measuring began" in line for _, line in page.document.log.lines)


def test_a_cancelled_run_leaves_its_best_placement_on_the_screen(drive) -> None:
    d = drive("--slow", "0.05", "--model", "resnet", "--provisional")
    page = d.open("resnet50.onnx")
    page.runs.start()
    d.until(lambda: page.document.execution.provisional is not None)
    page.runs.cancel()
    d.until(lambda: not page.document.execution.running)
    assert page.document.placement.shown.placement.measured_us == 5000.0
    assert page.document.runs.visible == []


def test_one_key_confirms_a_pin_quickly(drive) -> None:
    d = drive()
    page = d.open()
    d.run(page)
    page.document.selection.select([0])
    page.pins.pin_never("tvm")
    d.until(lambda: not page.document.execution.searching)
    page.view.setFocus()
    d.qtbot.keyClick(page.view, Qt.Key.Key_C)
    d.until(lambda: len(page.document.runs.visible) == 2 and not page.document.execution.running)
    assert page.document.runs.visible[-1].confirmation == "quick"
    assert "confirmed quickly" in page.panels.runs.remark.text()
    assert page.panels.run_settings.settings().confirmation == "full", "the next run is a full one"


def test_the_time_left_is_that_of_the_stage_and_of_the_budget() -> None:
    progress = Progress(stage="measure", done=21, total=436, rate=2.9, left_s=143.0)
    assert progress_text(progress) == "21 of 436 · 2.9/s · 2 min 23 s left"
    late = Progress(stage="measure", done=21, total=436, left_s=40.0, run_left_s=60.0)
    assert progress_text(late) == "21 of 436 · 40 s left, 1 min of the run's budget"
