"""Isolated costs, in-model costs and times of the confirmed run: how they are told apart."""

from __future__ import annotations

import msgspec
from PySide6.QtCore import Qt

from collage_engine.records.candidate import Cost, invalid
from collage_engine.records.placement import Partition, Placement
from collage_engine.wording.figures import isolated_us
from collage_gui.panels.candidates import cost_tip, partition_text

ISOLATED = Cost(state="measured", median_us=10.0, low_us=9.0, high_us=12.0, count=1)
IN_MODEL = msgspec.structs.replace(ISOLATED, in_model_us=15.0, in_model="seen")
PARTITION = Partition(
    id="p0",
    candidate="c",
    toolchain="tvm",
    config={},
    nodes=(0,),
    onnx_nodes=("n",),
    estimated_us=15.0,
)


def test_tips_tell_isolated_costs_from_in_model_costs() -> None:
    assert cost_tip(ISOLATED).startswith("10.0 µs isolated, the median of 1 repeat\n")
    lines = cost_tip(IN_MODEL).splitlines()
    assert lines[0] == "15.0 µs expected in this model, measured in whole placements"
    assert lines[1] == "10.0 µs isolated, the median of 1 repeat"
    assert "predicted from them" in cost_tip(
        msgspec.structs.replace(IN_MODEL, in_model="predicted")
    )
    assert cost_tip(invalid("it crashed")) == "Invalid: it crashed"
    assert (isolated_us(ISOLATED), isolated_us(IN_MODEL)) == (10.0, 10.0)


def test_a_partition_tells_its_estimate_and_its_time_in_the_run() -> None:
    whole = Placement(partitions=(PARTITION,), estimated_us=15.0)
    assert partition_text(whole, PARTITION, ISOLATED) == "15.0 µs expected in this model", (
        "its cost is another by now"
    )
    untimed = msgspec.structs.replace(PARTITION, estimated_us=None)
    assert partition_text(whole, untimed, Cost(state="unknown")) == "", "no dash stands for a time"
    text = "15.0 µs expected in this model (10.0 µs isolated)"
    assert partition_text(whole, PARTITION, IN_MODEL) == text
    run = msgspec.structs.replace(PARTITION, in_place_us=22.8)
    whole = Placement(partitions=(run,), estimated_us=26.6, measured_us=29.7)
    assert partition_text(whole, run, IN_MODEL) == "29.7 µs measured", "one part, one figure"


def test_isolated_costs_have_a_column_of_their_own(placed) -> None:
    d, page = placed
    panel = page.panels.node.candidates
    model, header = panel.model, panel.model.headerData
    horizontal, tip = Qt.Orientation.Horizontal, Qt.ItemDataRole.ToolTipRole
    titles = [column.title for column in model.columns]
    expected, isolated = titles.index("Here"), titles.index("Isolated")
    assert panel.table.isColumnHidden(isolated)
    assert "by itself" in header(isolated, horizontal, tip)
    document = page.document
    chosen = document.placement.shown.placement.partitions[0].candidate
    d.until(lambda: document.costs.of(chosen).usable)
    cost = document.costs.of(chosen)
    document.costs.by_candidate[chosen] = msgspec.structs.replace(
        cost, in_model_us=3 * isolated_us(cost), in_model="seen"
    )
    document.costs.changed.emit()
    panel.table.horizontalHeader().actions()[0].trigger()
    assert not panel.table.isColumnHidden(isolated)
    row = model.place_of(lambda r: r.id == chosen)
    cells = [model.index(row, at).data() for at in (expected, isolated)]
    assert float(cells[0]) > 2.9 * float(cells[1]) > 0
    others = {model.index(r, isolated).data() for r in range(model.rowCount()) if r != row}
    assert any(float(text) > 0 for text in others - {"–"}), "isolated costs stand for all"
    parts = page.panels.partitions.model
    at = [column.title for column in parts.columns].index("Time")
    assert "isolated cost" in parts.headerData(at, horizontal, tip)
