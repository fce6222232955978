"""Two placements of one graph side by side: the same place, the same selection, both figures."""

from __future__ import annotations

from PySide6.QtCore import QPointF

from collage_engine.wording.amounts import time_text
from collage_gui.document.runs import Reference


def compared(drive):
    """A window with two runs, the first of them under a pin, and the split open."""
    d = drive()
    page = d.open()
    d.run(page)
    d.until(lambda: len(page.document.runs.visible) == 1 and not page.document.execution.running)
    toolchain = page.document.placement.partition_of(0).toolchain
    page.document.selection.select([0])
    page.pins.pin_never(toolchain)
    d.until(lambda: page.document.placement.partition_of(0).toolchain != toolchain)
    d.run(page)
    d.until(lambda: len(page.document.runs.visible) == 2 and not page.document.execution.running)
    d.until(lambda: page.document.placement.shown.run == page.document.runs.visible[1].id)
    page.document.comparison.set_reference(Reference("run", page.document.runs.visible[0].id))
    d.trigger("split")
    d.until(lambda: page.split_widget.other.picture.rectangles)
    return d, page


def test_the_split_shows_another_run_beside_the_shown_one(drive) -> None:
    _, page = compared(drive)
    other = page.split_widget.other
    assert page.split.is_open and other.isVisible() and not other.legend.isVisible()
    first, second = page.document.runs.visible
    assert page.document.placement.shown.run == second.id
    assert page.split_widget.other_title.text() == "Run 1"
    assert page.split_widget.title.text() == "Run 2"
    assert "measured" in page.split_widget.about_other.text()
    assert other.picture.scene is page.picture.drawn.scene
    box = page.picture.drawn.scene.display.box_of[0]
    theirs = next(p for p in first.placement.partitions if 0 in p.nodes).toolchain
    ours = next(p for p in second.placement.partitions if 0 in p.nodes).toolchain
    assert other.picture.styles[box].entry == theirs
    assert page.view.picture.styles[box].entry == ours


def test_both_views_move_together_whichever_is_moved(drive) -> None:
    _, page = compared(drive)
    one, other = page.view, page.split_widget.other

    def place(view):
        middle = view.visible_area().center()
        return round(middle.x(), 3), round(middle.y(), 3), round(view.scale, 6)

    assert place(one) == place(other)
    one.zoom(1.7, QPointF(40, 60))
    one.pan(QPointF(33, -12))
    assert place(one) == place(other)
    other.zoom(0.6)
    other.pan(QPointF(-5, 80))
    assert place(one) == place(other)


def test_what_both_placements_have_is_dimmed_where_that_is_wanted(drive) -> None:
    _, page = compared(drive)
    first, second = page.document.runs.visible
    theirs = {p.candidate for p in first.placement.partitions}
    same = {n for p in second.placement.partitions if p.candidate in theirs for n in p.nodes}
    box_of = page.picture.drawn.scene.display.box_of
    assert 0 not in same and same
    assert page.view.marks.dimmed == page.split_widget.other.marks.dimmed
    assert page.view.marks.dimmed == {box_of[n] for n in same}
    page.split_widget.dim.setChecked(False)
    assert not page.view.marks.dimmed and not page.split_widget.other.marks.dimmed


def test_closing_the_split_leaves_the_shown_placement_as_it_was(drive) -> None:
    d, page = compared(drive)
    shown = page.document.placement.shown
    page.split_widget.close_button.click()
    assert not page.split.is_open and not page.split_widget.other.isVisible()
    assert page.document.placement.shown is shown and not page.view.marks.dimmed
    d.window.refresh()
    assert not d.window.action_set.by_id["split"].isChecked()
    scale = page.split_widget.other.scale
    page.view.zoom(1.3)
    assert page.split_widget.other.scale == scale
    places = list(page.picture.drawn.scene.layout.places)
    d.qtbot.wait(50)
    page.picture.lay_out()
    assert list(page.picture.drawn.scene.layout.places) == places, "it was laid out for this size"


def test_a_baseline_is_compared_with_the_placement(drive) -> None:
    _, page = compared(drive)
    run = page.document.runs.visible[1]
    page.document.comparison.set_reference(Reference("baseline", "onnxruntime"))
    assert page.split_widget.other_title.text() == "ONNX Runtime only"
    baseline = next(b for b in run.baselines if b.name == "onnxruntime")
    assert page.split_widget.about_other.text().startswith(
        f"{time_text(baseline.measured_us)} measured · 1.5 times slower than Run 2"
    )
    run.tied = ["onnxruntime"]
    page.document.runs.changed.emit()
    said = page.split_widget.about_other.text()
    assert "Run 2: not decided on this machine now" in said and "%" not in said
    styles = page.split_widget.other.picture.styles
    box_of = page.picture.drawn.scene.display.box_of
    assert {styles[box_of[n]].entry for n in (0, 3)} == {"onnxruntime"}


def test_a_single_placement_has_nothing_to_be_compared_with(opened) -> None:
    d, page = opened
    assert not d.window.action_set.by_id["split"].isEnabled()
    page.split.open()
    assert not page.split.is_open
    d.run(page)
    d.trigger("split")
    assert page.split_widget.other_title.text() == "oneDNN only", "the best toolchain alone"


def test_a_pin_is_not_drawn_on_a_placement_that_was_made_without_it(drive) -> None:
    _, page = compared(drive)
    assert page.view.marks.pinned and not page.split_widget.other.marks.pinned
    page.document.comparison.set_reference(Reference("run", page.document.runs.visible[1].id))
    page.document.runs.show(page.document.runs.visible[0].id)
    page.split.open()
    assert page.split_widget.other.marks.pinned, "that one was made with the pin"
