"""Times within the model, alone and in the confirmed run: which is which, as a person reads it."""

from __future__ import annotations

import msgspec
from PySide6.QtCore import Qt

from collage_engine.records.cost import Cost, invalid
from collage_engine.records.placement import Partition
from collage_gui.panels.candidates import ALONE_COLUMN, COST_COLUMN, rival_title
from collage_gui.panels.cost_words import alone_us, cost_tip, partition_words

ALONE = Cost(state="measured", median_us=10.0, low_us=9.0, high_us=12.0, count=1, threads=1)
WITHIN = ALONE.in_model(15.0, "seen")
PARTITION = Partition(
    id="p0",
    candidate="c",
    toolchain="tvm",
    config={},
    nodes=(0,),
    onnx_nodes=("n",),
    estimated_us=15.0,
)


def test_tips_tell_what_was_timed_alone_and_what_within_the_model() -> None:
    assert cost_tip(ALONE).startswith("Median 10.0 µs of 1 repeat, alone\n")
    assert "1 thread, device" in cost_tip(ALONE)
    lines = cost_tip(WITHIN).splitlines()
    assert lines[0] == "15.0 µs within the model, as seen in covers that were run"
    assert lines[1] == "Median 10.0 µs of 1 repeat, alone"
    assert "as predicted" in cost_tip(ALONE.in_model(15.0, "predicted"))
    assert cost_tip(invalid("it crashed")) == "Invalid: it crashed"
    assert (alone_us(ALONE), alone_us(WITHIN)) == (None, 10.0)


def test_a_partition_tells_its_estimate_and_its_time_in_the_run() -> None:
    assert partition_words(PARTITION, ALONE) == "estimated 15.0 µs", "its cost is another by now"
    run = msgspec.structs.replace(PARTITION, in_place_us=16.0)
    assert partition_words(run, WITHIN) == (
        "estimated 15.0 µs within the model, as seen in covers that were run (alone 10.0 µs), "
        "in place 16.0 µs"
    )


def test_candidates_have_a_column_of_times_alone_where_costs_are_others(drive) -> None:
    d = drive()
    page = d.open()
    d.run(page)
    panel = page.candidates
    model, header = panel.model, panel.model.headerData
    horizontal, tip = Qt.Orientation.Horizontal, Qt.ItemDataRole.ToolTipRole
    assert model.columns[ALONE_COLUMN].title == "Alone"
    assert panel.table.isColumnHidden(ALONE_COLUMN)
    assert "alone" in header(ALONE_COLUMN, horizontal, tip)
    document = page.document
    chosen = document.shown.placement.partitions[0].candidate
    d.until(lambda: document.cost(chosen).usable)
    cost = document.cost(chosen)
    document.costs[chosen] = cost.in_model(2 * cost.median_us, "seen")
    document.costs_changed.emit()
    assert not panel.table.isColumnHidden(ALONE_COLUMN)
    row = model.place_of(lambda r: r.id == chosen)
    cells = [model.index(row, at).data() for at in (COST_COLUMN, ALONE_COLUMN)]
    assert float(cells[0]) > 1.9 * float(cells[1]) > 0
    others = {model.index(r, ALONE_COLUMN).data() for r in range(model.rowCount()) if r != row}
    assert others == {"–"}
    page.runs.refresh()
    assert "alone" in page.runs.in_place.rows_model.headerData(3, horizontal, tip)


def test_rivals_of_one_toolchain_in_two_formats_have_two_names() -> None:
    from collage_engine.records.candidate import CandidateRecord
    from collage_engine.records.toolchain import ToolchainInstance

    plain = CandidateRecord(
        id="c",
        nodes=(0,),
        instance=ToolchainInstance(toolchain="onednn"),
        label="nn.conv2d",
        rule="",
        key="k",
    )
    nhwc = msgspec.structs.replace(plain, takes={0: "nhwc"}, gives={1: "nhwc"})
    assert rival_title(plain) == "oneDNN"
    assert rival_title(nhwc) == "oneDNN · nhwc"
    assert rival_title(msgspec.structs.replace(plain, gives={1: "nhwc"})) == "oneDNN · gives nhwc"
