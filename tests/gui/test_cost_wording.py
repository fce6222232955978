"""Isolated costs, in-model costs and times of the confirmed run: how they are told apart."""

from __future__ import annotations

import msgspec
from PySide6.QtCore import Qt

from collage_engine.wording.figures import isolated_us


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
    row = next(row for row, at in enumerate(model.order) if model.rows[at].id == chosen)
    cells = [model.index(row, at).data() for at in (expected, isolated)]
    assert float(cells[0]) > 2.9 * float(cells[1]) > 0
    others = {model.index(r, isolated).data() for r in range(model.rowCount()) if r != row}
    assert any(float(text) > 0 for text in others - {"–"}), "isolated costs stand for all"
    parts = page.panels.partitions.model
    at = [column.title for column in parts.columns].index("Time")
    assert "isolated cost" in parts.headerData(at, horizontal, tip)
