"""Running, comparing runs and exporting."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ElementTree

import msgspec
from pyqtgraph import BarGraphItem
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QFileDialog

from collage_engine.wording.amounts import time_text
from collage_engine.wording.figures import latency_text, winner_title
from collage_gui.document.runs import Reference
from collage_gui.document_window.export_controller import new_name
from collage_gui.panels.bar_chart import Bar, BarChart, axis_end
from tests.gui.conftest import check
from tests.support.recorded import recorded


def test_progress_and_costs_arrive_while_the_engine_measures(drive) -> None:
    d = drive("--slow", "0.03")
    page = d.open("resnet50.onnx")
    run = d.window.toolbar.widgetForAction(d.window.action_set.by_id["run"])
    d.qtbot.mouseClick(run, Qt.MouseButton.LeftButton)
    d.until(
        lambda: (
            page.document.execution.progress is not None
            and page.document.execution.progress.done > 40
        )
    )
    assert page.strip.isVisible()
    assert page.strip.stage.text() == "Measuring"
    known = [c for c in recorded("resnet").candidates if c.cost.state != "unknown"]
    assert f" of {len(known)}" in page.strip.counts.text()
    assert " · " in page.strip.now.text(), "operators by type and name"
    d.until(lambda: any(c.usable for c in page.document.costs.by_candidate.values()))
    assert not run.isEnabled(), "the strip below the graph ends a run"
    d.until(lambda: not page.document.execution.running)
    d.until(lambda: not page.strip.isVisible())


def test_cancel_is_answered_and_keeps_what_was_measured(drive) -> None:
    d = drive("--slow", "0.05")
    page = d.open("resnet50.onnx")
    page.runs.start()
    d.until(lambda: len(page.document.costs.by_candidate) > 20)
    d.qtbot.mouseClick(page.strip.cancel, Qt.MouseButton.LeftButton)
    assert page.strip.stage.text() == "Cancelling…"
    d.until(lambda: not page.document.execution.running)
    assert len(page.document.costs.by_candidate) > 20
    assert "what was measured is kept" in page.banner.label.text()
    before = len(page.document.costs.by_candidate)
    d.run(page)
    assert len(page.document.costs.by_candidate) > before


def test_a_second_run_shows_an_estimate_before_it_is_confirmed(drive) -> None:
    d = drive("--slow", "0.15")
    page = d.open()
    d.run(page)
    for operator, toolchain in ((0, "onednn"), (18, "tvm")):  # no measured placement has both
        page.document.selection.select([operator])
        page.pins.pin_to(toolchain)
    page.runs.start()
    d.until(lambda: page.document.placement.shown.run is None and not page.document.stale)
    assert page.document.execution.running and page.document.placement.shown.estimated
    assert not d.window.action_set.by_id["reload"].isEnabled(), (
        "nobody would hear how the run ended"
    )
    d.until(lambda: len(page.document.runs.visible) == 2)
    second = page.document.runs.visible[1].id
    d.until(lambda: page.document.placement.shown.run == second)
    assert not page.document.placement.shown.estimated and not page.document.execution.running
    assert d.window.action_set.by_id["reload"].isEnabled()


def test_an_opened_session_goes_on_with_the_settings_of_its_newest_run(placed) -> None:
    d, page = placed
    check(page.panels.run_settings.toolchains, "onednn", "tvm")
    page.panels.run_settings.threads.setValue(3)
    page.panels.run_settings.budget.setValue(420)
    page.panels.run_settings.tune.setValue(120)
    page.document.execution.settings = msgspec.structs.replace(
        page.document.execution.settings,
        shapes={"input": (1, 3, 32, 32)},
        placements=({"/fc/Gemm": "tvm"},),
    )
    page.panels.run_settings.tolerance.setValue(1.5)
    page.panels.run_settings.precision.setCurrentText("bf16")
    d.run(page)
    path = str(d.folder / "kept.collage")
    page.document.save(path)
    d.until(lambda: not page.document.unsaved)
    wanted = page.panels.run_settings.settings()

    elsewhere = shutil.copy(path, d.folder / "copied.collage")
    again = d.window.documents.open_path(str(elsewhere))
    assert again is not page
    d.until(lambda: again.document.placement.shown is not None)
    assert again.panels.run_settings.settings() == wanted
    assert again.panels.run_settings.precision.currentText() == "bf16"
    assert wanted.shapes and wanted.placements and wanted.threads == 3
    assert "3 threads, 7 min" in d.window.toolbar.settings.iconText()
    again.panels.run_settings.threads.setValue(5)
    arrived = []
    again.document.runs.changed.connect(lambda: arrived.append(1))
    d.trigger("restart")
    d.until(lambda: arrived)
    assert again.panels.run_settings.settings().threads == 5, (
        "a restart keeps what was chosen since"
    )


def test_representative_inputs_must_be_an_npz_file(opened) -> None:
    d, page = opened
    wrong = d.folder / "x.npz"
    wrong.write_bytes(b"nothing")
    page.panels.run_settings.load_inputs(str(wrong))
    assert "not an .npz file" in page.panels.run_settings.error.text()
    right = d.folder / "y.npz"
    right.write_bytes(b"PK\x03\x04rest")
    page.panels.run_settings.load_inputs(str(right))
    assert page.panels.run_settings.settings().inputs_npz == b"PK\x03\x04rest"


def test_runs_are_kept_named_noted_and_deleted_with_undo(placed) -> None:
    d, page = placed
    d.run(page)
    first, second = page.document.runs.visible
    assert [page.document.runs.title_of(r) for r in (first, second)] == ["Run 1", "Run 2"]
    page.panels.runs.name.setText("all toolchains")
    page.panels.runs.name.editingFinished.emit()
    d.until(lambda: page.document.runs.find(second.id).name == "all toolchains")
    page.panels.runs.note.setText("quiet machine")
    page.panels.runs.note.editingFinished.emit()
    d.until(lambda: page.document.runs.find(second.id).note == "quiet machine")
    d.trigger("undo")
    d.until(lambda: page.document.runs.find(second.id).note == "")
    page.panels.runs.delete.click()
    assert [r.id for r in page.document.runs.visible] == [first.id]
    d.trigger("undo")
    assert [r.id for r in page.document.runs.visible] == [first.id, second.id]


def test_bars_show_runs_and_every_baseline_with_reasons(placed) -> None:
    _, page = placed
    bars = {bar.label: bar for bar in page.panels.runs.chart.bars}
    assert bars["Run 1"].strong
    assert bars["ONNX Runtime only"].value > bars["Run 1"].value
    assert page.answer.isVisible()
    assert page.answer.text.text() == (
        "TVM + oneDNN, 29.8 µs · 4.6 % faster than oneDNN (31.2 µs), the best alone"
    )


def test_one_huge_bar_or_whisker_does_not_squeeze_the_others(drive) -> None:
    d = drive()
    chart = BarChart(d.theme)
    d.qtbot.addWidget(chart)
    usual = [Bar("Run 1", 100.0, 98.0, 105.0, key="run:1"), Bar("A", 140.0)]
    assert axis_end(usual) == 140.0, "nothing is cut without need"
    # A whisker of 60 ms, a baseline 3000 times slower.
    shown = [
        *usual,
        Bar("B", 120.0, 110.0, 60_000.0),
        Bar("C", 300_000.0, 299_000.0, 310_000.0),
    ]
    chart.show_bars(shown)
    assert axis_end(shown) == 480.0
    assert [bar.text(480.0) for bar in shown] == ["100 µs", "140 µs", "120 µs", "→ 300 ms"]
    assert "C 300 ms" in chart.accessibleDescription()
    chart.resize(900, chart.height())
    chart.show()
    (left, right), _ = chart.plot.viewRange()
    assert left == 0 and right < 2000, "the bar of 100 µs keeps a length that can be seen"
    (drawn_bars,) = (item for item in chart.plot.items() if isinstance(item, BarGraphItem))
    assert list(drawn_bars.opts["width"]) == [100.0, 140.0, 120.0, 480.0]
    drawn = chart.plot.items()
    chart.show_bars([*shown])
    assert chart.plot.items() == drawn, "equal bars are not drawn again"
    row = chart.height() // len(shown)
    chosen = []
    chart.chosen.connect(chosen.append)
    view = chart.plot.viewport()
    d.qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=QPoint(200, row // 2))
    d.qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=QPoint(200, 2 * row))
    assert chosen == ["run:1"], "a bar without a key is nothing to choose"


def test_any_run_or_baseline_is_the_reference_of_all_numbers(placed) -> None:
    d, page = placed
    d.window.toolbar.reference.setCurrentIndex(2)
    d.window.toolbar.reference.activated.emit(2)
    assert page.document.comparison.reference == Reference("baseline", "tvm")
    run = page.document.runs.visible[0]
    tvm = next(b.measured_us for b in run.baselines if b.name == "tvm")
    assert page.document.comparison.reference_time() == ("TVM only", tvm)
    assert f"% faster than TVM only ({time_text(tvm)})" in page.answer.text.text()
    shown = page.document.placement.shown
    page.panels.runs.chart.chosen.emit(
        "baseline:onednn"
    )  # a click shows, and compares with nothing
    assert page.document.comparison.reference == Reference("baseline", "tvm")
    assert page.document.placement.shown is shown


def test_compare_says_why_it_is_not_offered(placed) -> None:
    d, page = placed
    document, compare = page.document, page.answer.buttons["split"]
    action = d.window.action_set.by_id["split"]
    usual = compare.toolTip()
    assert compare.isEnabled() and "compared with" in usual
    document.comparison.set_reference(Reference("run", document.runs.visible[-1].id))
    assert not compare.isEnabled() and "choose another" in compare.toolTip()
    assert action.toolTip() == action.statusTip() == compare.toolTip()
    document.comparison.set_reference(Reference())
    assert compare.isEnabled() and compare.toolTip() == action.toolTip() == usual


def test_two_runs_are_compared_in_the_graph_and_in_tables(placed) -> None:
    d, page = placed
    before = page.document.placement.partition_of(0).toolchain
    page.document.selection.select([0])
    page.pins.pin_never(before)
    d.run(page)
    page.document.comparison.set_reference(Reference("run", page.document.runs.visible[0].id))
    d.until(lambda: page.document.comparison.result is not None)
    d.trigger("colour_changes")
    d.until(lambda: 0 in {row.node for row in page.panels.runs.changes.model.rows})
    look = page.picture.drawn.styles[page.picture.drawn.scene.display.box_of[0]]
    assert look.tag == "↔", "the runs had no common rounds: nothing is said to be gained or lost"
    assert {entry.label for entry in page.picture.drawn.legend} >= {"same"}
    assert "moved" in page.panels.runs.changes.note.text()


def test_exports_write_pictures_tables_report_and_artifact(placed, monkeypatch) -> None:
    d, page = placed
    page.document.selection.select([0, 1])
    wanted: list[str] = []

    def ask(*_, **__):
        return wanted[-1], ""

    monkeypatch.setattr(QFileDialog, "getSaveFileName", ask)
    wanted.append(str(d.folder / "graph.png"))
    d.trigger("png")
    image = QImage(wanted[-1])
    assert image.width() > 100 and image.height() > 100
    wanted.append(str(d.folder / "graph.svg"))
    d.trigger("svg")
    assert ElementTree.parse(wanted[-1]).getroot().tag.endswith("svg")
    for action in ("csv", "json", "report"):
        wanted.append(str(d.folder / f"run.{action}"))
        d.trigger(action)
        d.until(lambda action=action: (d.folder / f"run.{action}").exists())
    wanted.append(str(d.folder / "artifact"))
    d.trigger("artifact")
    d.until(lambda: (d.folder / "artifact" / "manifest.json").exists())
    run = page.document.runs.shown_or_last()
    what = f"{winner_title(run)}, {latency_text(run.placement)}"
    d.until(lambda: what in page.banner.label.text())
    assert new_name(wanted[-1]) == f"{wanted[-1]}-2", "the dialog would open a folder that exists"
    assert new_name(f"{wanted[-1]}-2") == f"{wanted[-1]}-2"


def test_a_file_that_cannot_be_written_says_so(opened, monkeypatch) -> None:
    d, page = opened
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *a, **k: ("/proc/no/x.svg", ""))
    d.trigger("svg")
    assert "could not be written" in page.banner.label.text()
