"""Operators are called by their ONNX type and name on every face; internal names come after."""

from __future__ import annotations

import msgspec
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication

from collage_gui.document.pin_prices import measure_text


def test_every_table_names_operators_by_onnx_type_and_name(placed) -> None:
    d, page = placed
    panels = page.panels
    for model_ in (
        panels.partitions.model,
        panels.node.candidates.model,
    ):
        column = next(c for c in model_.columns if c.title == "Operators")
        texts = [column.value(row) for row in model_.rows]
        assert any(text.startswith("Conv") and " · " in text for text in texts)
        assert not [text for text in texts if "conv2d" in text or "nn." in text]
    page.document.selection.select([0])
    d.trigger("outline")
    item = panels.outline._items[0]
    assert panels.outline.headerItem().text(0) == "Type and name"
    assert item.text(0) == page.document.operators.label_with_name([0])


def test_a_run_that_measured_too_little_offers_a_run_that_measures_enough(placed) -> None:
    d, page = placed
    run = page.document.runs.visible[-1]
    run.candidates = msgspec.convert(
        {"enumerated": 3960, "distinct": 1980, "measured": 5, "skipped": 1975, "unreached": 1500},
        type(run.candidates),
    )
    run.seconds = {"measure": 5.0, "confirm": 20.0, "total": 25.0}
    page.document.runs.changed.emit()
    assert page.banner.isVisible() and "Only 5 of 1,980" in page.banner.label.text()
    # 1,500 candidates that could matter at a second each, and the run's own 25 s.
    assert page.banner.action.text() == "Run for 26 min"
    d.qtbot.mouseClick(page.banner.action, Qt.MouseButton.LeftButton)
    assert page.panels.run_settings.budget.value() == 26 * 60
    d.until(lambda: not page.document.execution.running)


def test_the_button_says_how_many_candidates_it_measures_and_how_long_that_takes(placed) -> None:
    d, page = placed
    d.question(page, [2])
    d.until(lambda: page.document.questions.candidates and not page.document.client._pending)
    document = page.document
    run = document.runs.visible[-1]
    run.candidates = msgspec.convert({"measured": 10}, type(run.candidates))
    run.seconds = {"measure": 40.0}
    alone = next(c for c in document.questions.candidates if c.nodes == (2,))
    document.costs.by_candidate.pop(alone.id)
    document.costs.candidates.pop(alone.id)
    assert measure_text(document) == "Measure 1 unmeasured candidate of exactly these (about 4 s)"
    document.costs.changed.emit()
    panel = page.panels.node.candidates
    button = panel.measure
    page.tabs.setCurrentWidget(page.panels.node)
    QApplication.processEvents()
    panel.resize(600, panel.height())
    assert button.text() == "Measure 1 more (about 4 s)"
    assert button.toolTip() == measure_text(document)
