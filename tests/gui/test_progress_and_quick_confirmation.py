"""A run while it goes on: stages, the best placement so far, stopping, quick confirmation."""

from __future__ import annotations

import msgspec
from PySide6.QtCore import Qt

from collage_engine.records.event import Progress, Stage
from collage_engine.records.placement import CandidateCounts
from collage_engine.wording.amounts import time_text
from collage_engine.wording.sentences import NO_TURN, RUN_GOES_ON
from collage_gui.panels.progress import progress_text
from tests.support.recorded import recorded

FIRST_US = next(b.measured_us for b in recorded("resnet").runs[0].baselines if b.name == "tvm")
"""The first answer of a run of ``resnet``."""


def test_the_best_placement_so_far_is_shown_and_kept_when_the_run_is_stopped(drive) -> None:
    d = drive("--slow", "0.05", "--provisional")
    page = d.open("resnet50.onnx")
    page.runs.start()
    execution = page.document.execution
    d.until(lambda: page.document.runs.provisional is not None)
    shown = page.document.placement.shown
    assert shown.placement.measured_us == FIRST_US and shown.title == "Best so far"
    assert (
        f"Best so far: {time_text(FIRST_US)} measured · 1 partition, TVM" in page.strip.best.text()
    )
    bars = {bar.label: bar for bar in page.panels.runs.chart.bars}
    assert bars["Best so far"].value == FIRST_US and bars["Best so far"].strong
    d.until(lambda: "▸ Measuring" in page.strip.steps.text())
    steps = page.strip.steps.text()
    assert "✓ Timing whole models" in steps and "· Confirming end to end" in steps
    assert page.strip.keep.isEnabled() and page.strip.cancel.isEnabled()
    d.qtbot.mouseClick(page.strip.keep, Qt.MouseButton.LeftButton)
    assert execution.stopping and not page.strip.keep.isEnabled()
    d.until(lambda: not execution.running and page.document.runs.visible)
    run = page.document.runs.visible[-1]
    assert run.ended == "stopped"
    assert "The run was stopped" in page.panels.runs.remark.text()
    assert "Best so far" not in {bar.label for bar in page.panels.runs.chart.bars}
    assert "Measuring began" in page.panels.log.toPlainText()


def test_a_pin_that_is_redone_after_the_run_brings_nothing_back_that_was_found_on_the_way(drive):
    d = drive("--slow", "0.05", "--provisional")
    page = d.open("resnet50.onnx")
    document = page.document
    document.selection.select([1])
    page.pins.pin_to("tvm")
    page.runs.start()
    d.until(lambda: document.runs.provisional is not None)
    assert document.placement.shown.title == "Best so far"
    document.undo.undo()
    d.until(lambda: not document.execution.running and document.runs.visible)
    document.undo.redo()
    d.until(lambda: document.placement.shown.pins == document.pins.written)
    assert document.placement.shown.title in ("Run 1", "Search on stored costs")


def test_a_faster_run_stays_on_the_screen_until_the_next_one_has_ended(drive) -> None:
    d = drive("--slow", "0.05", "--provisional")
    page = d.open("resnet50.onnx")
    d.run(page)
    document, panel = page.document, page.panels.runs
    d.until(lambda: document.placement.shown.title == "Run 1")
    first = document.placement.shown
    assert first.placement.measured_us < FIRST_US
    during = []

    def note() -> None:
        bars = {bar.label: bar.strong for bar in panel.chart.bars}
        if "Best so far" in bars:
            during.append((document.placement.shown.run, page.strip.best.text(), bars))

    document.execution.progress_changed.connect(note)  # the next stage comes after the answer
    page.runs.start()
    d.until(lambda: not document.execution.running and len(document.runs.visible) == 2)
    d.until(lambda: document.placement.shown.title == "Run 2")
    assert len(during) > 1, "stages came after the answer"
    for run, best, bars in during:
        assert run == first.run, "what takes longer is no better"
        assert f"Best so far: {time_text(FIRST_US)} measured" in best
        assert bars["Run 1"] and not bars["Best so far"]


def test_a_cancelled_run_leaves_its_best_placement_on_the_screen(drive) -> None:
    d = drive("--slow", "0.05", "--provisional")
    page = d.open("resnet50.onnx")
    page.runs.start()
    d.until(lambda: page.document.runs.provisional is not None)
    panel = page.panels.runs
    assert panel.remark.text() == RUN_GOES_ON, "nothing is said of a search that has not ended"
    page.runs.cancel()
    d.until(lambda: not page.document.execution.running)
    shown = page.document.placement.shown
    assert shown.placement.measured_us == FIRST_US and shown.title == "Cancelled run"
    assert panel.remark.text().startswith("The run was cancelled.")
    assert "Cancelled run" in {bar.label for bar in panel.chart.bars}
    assert not panel.delete.isVisible(), "it is not kept, so there is nothing to delete"
    assert page.document.runs.visible == []


def test_one_key_confirms_a_pin_quickly(placed) -> None:
    d, page = placed
    page.document.selection.select([0])
    page.pins.pin_never("tvm")
    d.until(lambda: not page.document.client._pending)
    page.view.setFocus()
    d.qtbot.keyClick(page.view, Qt.Key.Key_C)
    d.until(lambda: len(page.document.runs.visible) == 2 and not page.document.execution.running)
    assert page.document.runs.visible[-1].confirmation == "quick"
    assert "confirmed quickly" in page.panels.runs.remark.text()
    assert page.panels.run_settings.settings().confirmation == "full", "the next run is a full one"
    page.document.execution.restore_settings(page.document.runs.visible[-1])
    assert page.panels.run_settings.settings().confirmation == "full", "also in a reopened session"


def test_the_time_left_is_that_of_stage_and_budget_and_runs_on_without_news(opened) -> None:
    progress = Progress(stage="measure", done=21, total=436, left_s=143.0)
    assert progress_text(progress) == "2 min 23 s left · 21 of 436"
    late = Progress(stage="measure", done=21, total=436, left_s=40.0, run_left_s=60.0)
    assert progress_text(late) == "40 s left · 21 of 436 · 1 min of the budget left"
    assert progress_text(late, 15.2) == "25 s left · 21 of 436 · 45 s of the budget left"
    assert progress_text(late, 90.0) == "21 of 436"
    _, page = opened
    execution = page.document.execution
    execution.running = True
    execution.show_stage(Stage(stage="measure"))
    execution.show_progress(late)
    strip = page.strip
    assert "40 s left" in strip.counts.text() and strip._clock.isActive()
    execution.running_changed.emit()
    strip._arrived -= 10.0
    strip._clock.timeout.emit()
    assert "30 s left" in strip.counts.text()
    execution.running = False
    execution.running_changed.emit()
    assert not strip._clock.isActive()


def test_a_second_run_waits_for_the_first_and_tabs_say_which_one_runs(drive) -> None:
    d = drive("--slow", "0.05")
    first, second = d.open(), d.open("second-small.onnx")
    tabs = d.window.documents.tabs
    first.runs.start()
    d.until(lambda: first.document.running)
    assert tabs.tabText(0) == "▶ small.onnx"
    second.runs.confirm_quickly()
    assert not second.document.running and tabs.tabText(1).startswith("… ")
    assert second.banner.topic == "waiting" and "small.onnx" in second.banner.label.text()
    second.runs.cancel()
    assert second.banner.topic != "waiting" and tabs.tabText(1) == "second-small.onnx"
    second.runs.start()
    d.until(lambda: second.document.running)
    assert not first.document.running and second.banner.topic != "waiting"
    d.until(lambda: not second.document.running)


def test_what_is_shown_stays_while_it_is_confirmed(drive) -> None:
    d = drive("--provisional", "--slow", "0.1")
    page = d.open()
    d.run(page)
    page.document.selection.select([0])
    page.pins.pin_never("tvm")
    d.until(lambda: page.document.costs.prices and not page.document.client._pending)
    shown, verdicts = page.document.placement.shown, page.document.pins.verdicts
    prices = dict(page.document.costs.prices)
    seen = []
    page.document.placement.changed.connect(lambda: seen.append(page.document.execution.running))
    page.view.setFocus()
    d.qtbot.keyClick(page.view, Qt.Key.Key_C)
    d.until(lambda: "confirm" in page.document.execution.stages)
    assert page.document.placement.shown is shown and page.document.pins.verdicts == verdicts
    assert prices and prices.items() <= page.document.costs.prices.items() and not any(seen)
    d.until(lambda: not page.document.execution.running)
    d.until(lambda: page.document.runs.visible[-1].settings["budget_s"] == 20.0)


def test_a_run_in_which_most_toolchains_had_no_turn_says_so(placed, monkeypatch) -> None:
    d, page = placed
    run = page.document.runs.all[0]
    late = [
        msgspec.structs.replace(b, measured_us=None, reason=NO_TURN) if b.name == "tvm" else b
        for b in run.baselines
        if b.name in ("tvm", "onednn")
    ]
    counts = CandidateCounts(enumerated=2923, distinct=2923, skipped=2923, unreached=2923)
    few = msgspec.structs.replace(
        run, id="run-2", baselines=late, candidates=counts, seconds={}, warnings=["it was busy"]
    )
    page.document.runs._take((run, few))
    page.document.runs.show(few.id)
    took = time_text(next(b for b in run.baselines if b.name == "tvm").measured_us)
    text = f"the only one of 2 toolchains that was timed; TVM took {took} in another run"
    assert page.answer.text.text().endswith(text)
    assert d.banner.isVisible() and d.banner.topic == "few measured"
    said = d.banner.label.text()
    assert said.startswith("The only one of 2 toolchains") and "Only 0 of 2,923" in said
    assert said.endswith("It was busy.") and d.banner.action.text() == "Continue"
    started = []
    monkeypatch.setattr(page.document.execution, "start", lambda *_, **mine: started.append(mine))
    d.qtbot.mouseClick(d.banner.action, Qt.MouseButton.LeftButton)
    assert len(started) == 1, "it goes on with the same budget"
