"""The roofline and the memory of the shown placement: as colours of the graph and as tables."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction

from collage_engine.drawing.formatting import bytes_text
from collage_engine.drawing.memory_figures import partition_memory
from collage_engine.drawing.roofline import partition_roofs
from collage_gui import words
from collage_gui.document_window.mode_refusal import mode_refusal


def test_the_roofline_table_and_the_colours_show_the_same_figures(drive) -> None:
    d = drive()
    page = d.open()
    assert mode_refusal(page.document, "roofline"), "there is no placement yet"
    d.run(page)
    document, panel = page.document, page.panels.runs.roofline
    d.until(lambda: not mode_refusal(document, "roofline"))
    page.panels.runs.tabs.setCurrentWidget(panel)
    roofs = partition_roofs(
        document.graph, document.placement.shown.placement, document.costs.candidates.values()
    )
    assert [row.left_us for row in panel.model.rows] == [roof.left_us for roof in roofs]
    order = [panel.model.rows[at].left_us for at in panel.model.order]
    assert order == sorted(order, reverse=True), "the most to win first"
    assert "are above what the best rates seen" in panel.summary.text()
    d.trigger("colour_roofline")
    most = max(roofs, key=lambda roof: roof.left_us)
    box = page.picture.drawn.scene.display.box_of[most.partition.nodes[0]]
    assert page.picture.drawn.styles[box].value.endswith(" left")
    assert " of " in page.picture.drawn.styles[box].entry


def test_memory_is_counted_for_partitions_and_not_measured_without_a_run(drive) -> None:
    d = drive()
    page = d.open()
    d.run(page)
    panel = page.panels.runs.memory
    page.panels.runs.tabs.setCurrentWidget(panel)
    model = panel.by_toolchain
    column = [c.title for c in model.columns].index("Held, packed")
    assert model.data(model.index(0, column)) == "not measured"
    assert "No run has measured the memory" in panel.summary.text()
    counted = partition_memory(page.document.graph, page.document.placement.shown.placement)
    assert [row.weights for row in panel.by_partition.rows] == [each.weights for each in counted]
    d.trigger("colour_memory")
    most = max(counted, key=lambda each: each.weights)
    box = page.picture.drawn.scene.display.box_of[most.partition.nodes[0]]
    assert page.picture.drawn.styles[box].value == bytes_text(most.weights)


def test_keys_do_not_colour_by_what_would_say_nothing(drive) -> None:
    d = drive()
    page = d.open()
    changes = d.window.findChild(QAction, "action-colour_changes")
    cost = d.window.findChild(QAction, "action-colour_cost")
    assert not cost.isEnabled() and cost.statusTip() == words.NO_PLACEMENT
    page.view.setFocus()
    d.qtbot.keyClick(page.view, Qt.Key.Key_7)
    assert page.picture.mode == "toolchain"
    d.run(page)
    assert cost.isEnabled() and not cost.statusTip()
    assert not changes.isEnabled() and changes.statusTip() == words.NO_OTHER_RUN
