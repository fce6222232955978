"""Operators are called by their ONNX type and name on every face; internal names come after."""

from __future__ import annotations

import msgspec
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication

from collage_engine.records.graph import Node
from collage_engine.records.operators import NodeTitles, short_name
from collage_gui.document.pin_prices import measure_text
from tests.support.graphs import operator


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


def test_what_a_node_was_lowered_to_is_one_node_and_long_lists_say_how_many_there_are() -> None:
    def call(op: str, node: int, type: str = "") -> Node:
        return operator(0, op, onnx_node=node, onnx_type=type)

    swish = [call(op, 1, "HardSwish") for op in ("add", "clip", "multiply", "divide")]
    titles = NodeTitles([call("nn.conv2d", 0), call("add", 0, "Conv"), *swish])
    assert titles.joined(range(6)) == "Conv+HardSwish"
    assert titles.lowered(1) == "nn.conv2d, add"
    long = NodeTitles([call("erf", number) for number in range(6)])
    assert long.joined(range(6)) == "Erf+Erf+Erf+Erf+… (6 nodes)"
    assert short_name("/layer1/layer1.0/conv1/Conv") == "layer1.0/conv1"
    assert short_name("/Flatten_1") == "Flatten_1" and short_name("n_relu_26") == "n_relu_26"


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
