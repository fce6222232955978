"""Rates and bytes of the shown placement, as columns of the partitions."""

from __future__ import annotations

from collage_engine.wording.layers import partition_figures


def _ask_for_columns(page, *titles: str) -> None:
    menu = page.panels.partitions.columns.menu()
    for action in menu.actions():
        if action.text() in titles:
            action.trigger()


def _values(page, title: str) -> list:
    model = page.panels.partitions.model
    column = next(column for column in model.columns if column.title == title)
    return [column.value(row) for row in model.rows]


def test_columns_of_rates_and_bytes_are_shown_where_they_are_asked_for(placed) -> None:
    _, page = placed
    document, table = page.document, page.panels.partitions.table
    titles = [column.title for column in page.panels.partitions.model.columns]
    assert table.isColumnHidden(titles.index("Weights"))
    _ask_for_columns(page, "GFLOP/s", "Weights")
    document.placement.show(document.placement.shown)  # the rows are new, the columns stay
    figures = partition_figures(document.graph, document.placement.shown.placement)
    assert _values(page, "GFLOP/s") == [each.gflops for each in figures]
    assert _values(page, "Weights") == [each.weights for each in figures]
    assert not table.isColumnHidden(titles.index("Weights"))
    assert table.isColumnHidden(titles.index("Inside"))
