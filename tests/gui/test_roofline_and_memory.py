"""The roofline and the memory of the shown placement: as colours of the graph and as columns."""

from __future__ import annotations

from collage_engine.drawing.formatting import bytes_text
from collage_engine.drawing.memory_figures import partition_memory
from collage_engine.drawing.roofline import partition_roofs
from collage_gui.main_window.action_set import mode_refusal


def _ask_for_columns(page, *titles: str) -> None:
    menu = page.panels.partitions.columns.menu()
    for action in menu.actions():
        if action.text() in titles:
            action.trigger()


def _values(page, title: str) -> list:
    model = page.panels.partitions.model
    column = next(column for column in model.columns if column.title == title)
    return [column.value(row) for row in model.rows]


def test_the_columns_of_rates_and_the_colours_show_the_same_figures(drive) -> None:
    d = drive()
    page = d.open()
    assert mode_refusal(page.document, "roofline"), "there is no placement yet"
    d.run(page)
    document = page.document
    d.until(lambda: not mode_refusal(document, "roofline"))
    assert set(_values(page, "Left to win")) == {None}, "it is not made before it is asked for"
    _ask_for_columns(page, "Left to win")
    roofs = partition_roofs(
        document.graph, document.placement.shown.placement, document.costs.candidates.values()
    )
    assert _values(page, "Left to win") == [roof.left_us for roof in roofs]
    d.trigger("colour_roofline")
    most = max(roofs, key=lambda roof: roof.left_us)
    box = page.picture.drawn.scene.display.box_of[most.partition.nodes[0]]
    assert page.picture.drawn.styles[box].value.endswith(" left")
    assert " of " in page.picture.drawn.styles[box].entry


def test_the_columns_of_bytes_and_the_colours_show_the_same_figures(drive) -> None:
    d = drive()
    page = d.open()
    d.run(page)
    _ask_for_columns(page, "Weights")
    counted = partition_memory(page.document.graph, page.document.placement.shown.placement)
    assert _values(page, "Weights") == [each.weights for each in counted]
    titles = [column.title for column in page.panels.partitions.model.columns]
    assert not page.panels.partitions.table.isColumnHidden(titles.index("Weights"))
    d.trigger("colour_memory")
    most = max(counted, key=lambda each: each.weights)
    box = page.picture.drawn.scene.display.box_of[most.partition.nodes[0]]
    assert page.picture.drawn.styles[box].value == bytes_text(most.weights)
