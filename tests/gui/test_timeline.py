"""The run over time: bars to scale, selected in step with the graph; the parts that cost most."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from PySide6.QtCore import QPointF, Qt

from collage_engine.drawing.timeline import against, bar_colour
from collage_engine.records.placement import LayerTime
from collage_engine.wording.titles import toolchain_title
from collage_gui.document.pin_prices import price_of_pin
from collage_gui.document.runs import Reference
from tests.gui.conftest import turn_wheel


@pytest.fixture
def profiled(drive):
    """A window whose shown placement has two layers in each partition, and its timeline."""
    d = drive()
    page = d.open()
    d.run(page)
    shown = page.document.placement.shown
    layers, parts = [], []
    for place, part in enumerate(shown.placement.partitions):
        first, rest = part.nodes[:1], part.nodes[1:]
        layers.append(LayerTime(name="a", us=4.0, gap_us=1.0, partition=place, operators=first))
        layers.append(LayerTime(name="b", us=2.0, partition=place, operators=rest))
        parts.append(msgspec.structs.replace(part, in_place_us=6.0))
    layers.append(LayerTime(name="to_nchw", us=3.0))
    placement = msgspec.structs.replace(
        shown.placement,
        layers=tuple(layers),
        partitions=tuple(parts),
        measured_us=3.0 + 7.0 * len(parts),
    )
    page.document.placement.show(dataclasses.replace(shown, placement=placement))
    d.trigger("timeline")
    assert d.window.action_set.by_id["timeline"].isChecked()
    panel = page.panels.timeline
    d.until(lambda: panel.plot is not None and panel.shown is not None)
    return d, page, panel


def time_another(page, first_us: float, others_us: float) -> str:
    """Compare with a whole model on a toolchain that does not run the first partition.

    Its layers, those of the partitions, take so long. Return its name.
    """
    document = page.document
    run, parts = document.runs.all[-1], document.placement.shown.placement.partitions
    place, whole = next(
        (place, base)
        for place, base in enumerate(run.baselines)
        if base.kind == "whole-model"
        and base.measured_us
        and base.candidates
        and base.name not in {part.toolchain for part in parts[:1]}
    )
    layers = tuple(
        LayerTime(name="l", us=others_us if k else first_us, partition=0, operators=part.nodes)
        for k, part in enumerate(parts)
    )
    run.baselines[place] = msgspec.structs.replace(whole, layers=layers)
    document.comparison.set_reference(Reference("baseline", whole.name))
    return whole.name


def click(d, panel, bar) -> None:
    """Click in the middle of a bar."""
    tall = {"partition": 0.3, "layer": 0.7, "between": 0.3}[bar.kind]
    middle = QPointF((bar.begin_us + bar.end_us) / 2, bar.row + tall)
    place = panel.plot.mapFromScene(panel.plot.getViewBox().mapViewToScene(middle))
    d.qtbot.mouseClick(panel.plot.viewport(), Qt.MouseButton.LeftButton, pos=place)


def test_bars_are_to_scale_and_fill_the_run(profiled) -> None:
    _, page, panel = profiled
    bars = panel.shown.bars
    parts = page.document.placement.shown.placement.partitions
    wholes = [bar for bar in bars if bar.kind == "partition"]
    assert [bar.us for bar in wholes] == [6.0] * len(parts)
    assert [bar.us for bar in bars if bar.kind == "layer"] == [4.0, 2.0] * len(parts)
    filled = sum(bar.us for bar in bars if bar.kind != "layer")
    assert filled == pytest.approx(panel.shown.end_us) == 3.0 + 7.0 * len(parts)
    assert panel.shown.rows[-1] == "Between" and panel.shown.transitions
    assert "outside of partitions" in panel.summary.text()


def test_what_is_selected_in_one_is_seen_in_the_other(profiled) -> None:
    d, page, panel = profiled
    selection = page.document.selection
    layers = [bar for bar in panel.shown.bars if bar.kind == "layer" and bar.operators]
    layer = max(layers, key=lambda bar: bar.begin_us)
    click(d, panel, layer)
    assert selection.operators == page.document.operators.whole_nodes(layer.operators)
    first = panel.shown.bars[0]
    selection.select(first.operators)
    marked = {panel.shown.bars[n] for n in panel.bars.marked["selected"]}
    assert first in marked and not any(bar.operators and layer == bar for bar in marked)
    page.find_bar.results.emit(list(layer.operators))
    assert layer in {panel.shown.bars[n] for n in panel.bars.marked["found"]}


def test_the_wheel_zooms_and_a_button_shows_all_again(profiled) -> None:
    _, _, panel = profiled
    whole = panel.plot.viewRange()[0]
    turn_wheel(panel.plot.viewport(), 150)
    near, rows = panel.plot.viewRange()
    assert near[1] - near[0] < 0.7 * (whole[1] - whole[0])
    assert rows == [0, len(panel.shown.rows)], "rows keep their height"
    panel.fit()
    assert panel.plot.viewRange()[0] == pytest.approx(whole)


def test_the_dearest_parts_stand_beside_it(profiled) -> None:
    _, page, panel = profiled
    rows = [panel.parts.row(panel.parts.index(n, 0)) for n in range(panel.parts.rowCount())]
    times = [row.us for row in rows]
    assert 1 < len(rows) <= 10 and times == sorted(times, reverse=True) and times[0] in (4.0, 6.0)
    panel.table.selectRow(0)
    held = page.document.operators.whole_nodes(rows[0].layer.nodes)
    assert page.document.selection.operators == held


def test_of_two_placements_over_each_other_layers_differ_in_colour(profiled) -> None:
    _, page, panel = profiled
    graph, placement = page.document.operators, page.document.placement.shown.placement
    first, *rest = placement.layers
    slower = msgspec.structs.replace(first, us=2 * first.us)
    parts = [msgspec.structs.replace(part, in_place_us=None) for part in placement.partitions]
    other = msgspec.structs.replace(
        placement, layers=(slower, *rest), partitions=tuple(parts), measured_us=90.0
    )
    shown = against(graph, placement, other)
    rows = len(panel.shown.rows)
    assert len(shown.rows) == 2 * rows and shown.rows[rows].endswith("compared")
    layers = [bar for bar in shown.bars if bar.kind == "layer" and bar.operators]
    above = [bar.ratio for bar in layers if bar.row < rows]
    below = [bar.ratio for bar in layers if bar.row >= rows]
    assert above[0] < 1.0 < below[0] and above[1:] == below[1:] == [1.0] * (len(above) - 1)
    fills = [bar_colour(bar, "#ffffff", "#888888") for bar in layers]
    assert len({fills[0], fills[len(above)], "#888888"}) == 3
    assert fills[1] == "#888888", "it takes the same in both"


def test_the_graph_shows_what_is_faster_than_in_a_baseline_whose_layers_were_timed(
    profiled,
) -> None:
    _, page, _ = profiled
    document = page.document
    time_another(page, 12.0, 3.0)
    assert document.compared is not None
    parts = document.placement.shown.placement.partitions
    page.picture.set_mode("changes")
    page.picture.expand_all()
    drawn = page.picture.drawn
    boxes = zip(drawn.scene.display.boxes, drawn.styles, strict=True)
    entries = {n: style.entry for box, style in boxes if box.is_work for n in box.members}
    assert {entries[n] for n in parts[0].nodes} == {"gained"}
    assert {entries[n] for part in parts[1:] for n in part.nodes} == {"lost"}
    assert document.comparison.reference.kind == "baseline", "the reference stays"


def test_what_was_faster_elsewhere_is_pinned_there_timed_and_priced_by_one_button(profiled) -> None:
    d, page, _ = profiled
    document, runs = page.document, len(page.document.runs.all)
    name = time_another(page, 3.0, 30.0)
    first, second = (part.nodes for part in document.placement.shown.placement.partitions[:2])
    button = page.answer.buttons["try_here"]
    document.selection.select(first)
    assert button.isHidden(), "the graph shows no differences"
    page.picture.set_mode("changes")
    assert not button.isHidden()
    document.selection.select(second)
    assert button.isHidden()
    document.selection.select(first)
    button.click()
    (pin,) = document.pins.current
    assert (pin.kind, pin.toolchain, pin.nodes) == ("on", name, tuple(sorted(first)))
    assert document.execution.is_quick and "20 s at most" in page.banner.label.text()
    d.until(lambda: page.banner.topic == "price")
    assert len(document.runs.all) == runs + 1
    text = page.banner.label.text()
    assert price_of_pin(document, 0) in text and toolchain_title(name) in text
    page.banner.action.click()
    assert not document.pins.current, "undone"


def test_equal_blocks_are_one_bar_that_takes_what_they_take(profiled, monkeypatch) -> None:
    _, page, panel = profiled
    parts = page.document.placement.shown.placement.partitions
    blocks = [[part.nodes for part in parts]]
    monkeypatch.setattr("collage_gui.panels.timeline.equal_blocks", lambda *_: blocks)
    before, end_us = len(panel.shown.bars), panel.shown.end_us
    panel.fold.click()
    (bar, *more) = [bar for bar in panel.shown.bars if bar.blocks > 1]
    assert {bar.blocks for bar in (bar, *more)} <= set(range(2, len(parts) + 1))
    assert f"{bar.blocks} equal blocks, 6.00 µs to 6.00 µs each" in bar.tip(end_us)
    assert len(panel.shown.bars) < before and panel.shown.end_us == pytest.approx(end_us)
    rows = [panel.parts.row(panel.parts.index(n, 0)) for n in range(panel.parts.rowCount())]
    assert rows[0].us == 6.0 * bar.blocks and panel._label(rows[0]) == bar.title
    panel.fold.click()
    assert len(panel.shown.bars) == before
