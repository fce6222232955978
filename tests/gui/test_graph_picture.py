"""See the graph: colours, groups, zoom, walking, search, large models."""

from __future__ import annotations

import dataclasses

import msgspec
from PySide6.QtCore import QPoint, QPointF, Qt

from collage_engine.drawing.box_styles import MODES, NOT_TIMED
from collage_engine.records.placement import LayerTime
from collage_engine.records.protocol import GraphAnswer
from collage_gui.graph_view.view import boxes_outside


def box_of(page, operator: int) -> int:
    return page.picture.drawn.scene.display.box_of[operator]


def test_colour_modes_repaint_and_never_move_anything(drive) -> None:
    d = drive()
    page = d.open("resnet50.onnx")
    d.run(page)
    before = list(page.picture.drawn.scene.layout.places)
    by_id, seen = d.window.action_set.by_id, set()
    for mode in ("toolchain", "cost"):
        d.trigger(f"colour_{mode}")
        assert page.picture.mode == mode
        seen.add(tuple(look.colour for look in page.picture.drawn.styles))
        assert page.picture.drawn.legend
        assert d.window.toolbar.colour.text() == f"Colour: {MODES[mode]} ▾"
        assert by_id[f"colour_{mode}"].isChecked()
    assert page.picture.drawn.scene.layout.places == before
    assert len(seen) == 2
    for mode in ("device", "changes"):
        assert not by_id[f"colour_{mode}"].isEnabled(), "there are one device and one run"


def test_clicking_selects_and_shift_adds(opened) -> None:
    d, page = opened
    view = page.view

    def at(operator):
        return view.to_view(
            page.picture.drawn.rectangles[box_of(page, operator)].center()
        ).toPoint()

    d.qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=at(0))
    assert page.document.selection.operators == {0, 1}, "a convolution and its bias"
    d.qtbot.mouseClick(view, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.ShiftModifier, at(2))
    assert page.document.selection.operators == {0, 1, 2}
    d.qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=QPoint(3, 3))
    assert page.document.selection.operators == frozenset()


def test_zoom_keeps_the_point_under_the_pointer(opened) -> None:
    _, page = opened
    where = QPointF(120, 90)
    before = page.view.to_scene(where)
    page.view.zoom(1.7, where)
    after = page.view.to_scene(where)
    assert (before - after).manhattanLength() < 1e-6
    page.view.fit()
    assert page.view.visible_area().contains(page.picture.drawn.bounds.adjusted(5, 5, -5, -5))


def test_arrows_walk_along_edges(opened) -> None:
    d, page = opened
    page.view.setFocus()
    page.document.selection.select([0])
    d.qtbot.keyClick(page.view, Qt.Key.Key_Down)
    assert page.document.selection.operators == {2}
    d.qtbot.keyClick(page.view, Qt.Key.Key_Up)
    assert page.document.selection.operators == {0, 1}


def test_search_finds_text_and_counts(opened) -> None:
    d, page = opened
    d.trigger("find")
    bar = page.find_bar
    bar.text.setText("conv2")
    bar.search()
    conv = list(bar.found)
    assert bar.count.text() == f"{len(conv)} found" and conv
    d.qtbot.keyClick(bar.text, Qt.Key.Key_Return)
    assert page.document.selection.primary == conv[0]
    assert bar.count.text().startswith("1 of ")
    d.qtbot.keyClick(bar.text, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    assert page.document.selection.primary == conv[-1]


def test_scopes_and_partitions_collapse_and_expand(drive) -> None:
    d = drive()
    page = d.open("resnet50.onnx")
    d.run(page)
    collapse = d.window.action_set.by_id["collapse_partitions"]
    assert page.picture.partitions_collapsed and collapse.isChecked(), "more than 150 operators"
    d.trigger("collapse_partitions")
    full = len(page.picture.drawn.rectangles)
    assert not collapse.isChecked()
    d.trigger("collapse_partitions")
    d.until(lambda: len(page.picture.drawn.rectangles) < full)
    groups = [b for b in page.picture.drawn.scene.display.boxes if b.kind == "group"]
    many = [p for p in page.document.placement.shown.placement.partitions if p.node_count > 1]
    assert len(groups) == len(many)
    shares = [look.share for look in page.picture.drawn.styles if look.kind == "group"]
    assert all(share is not None and 0 < share <= 1 for share in shares)
    first = next(
        n for n, b in enumerate(page.picture.drawn.scene.display.boxes) if b.kind == "group"
    )
    members = page.picture.drawn.scene.display.boxes[first].members
    page.view.box_opened.emit(first)
    d.until(lambda: page.picture.drawn.scene.display.boxes[box_of(page, members[0])].kind == "node")
    d.trigger("expand_all")
    d.until(lambda: len(page.picture.drawn.rectangles) > full)
    assert {box.kind for box in page.picture.drawn.scene.display.boxes} == {
        "node",
        "input",
        "output",
    }


def test_a_placement_in_one_partition_is_not_a_single_box(drive) -> None:
    """While it goes on, a run may show a mix, which is collapsed, and end with one toolchain."""
    d = drive()
    page = d.open("resnet50.onnx")
    first = page.picture.collapsed
    d.run(page)
    assert page.picture.partitions_collapsed and page.picture.collapsed != first
    placement = page.document.placement.shown.placement
    everything = tuple(range(len(page.document.graph.nodes)))
    whole = msgspec.structs.replace(placement.partitions[0], nodes=everything)
    page.document.show_placement(msgspec.structs.replace(placement, partitions=(whole,)), "One")
    assert not page.picture.partitions_collapsed and page.picture.collapsed == first
    d.until(lambda: len(page.picture.drawn.rectangles) > 5)
    d.trigger("collapse_partitions")
    d.until(lambda: len(page.picture.drawn.rectangles) <= 3)


def test_backspace_leaves_a_group_and_enter_goes_in(drive) -> None:
    d = drive()
    page = d.open("resnet50.onnx")
    groups = [box for box in page.picture.drawn.scene.display.boxes if box.kind == "group"]
    assert groups, "the labels of more than 150 nodes would not be legible"
    d.trigger("expand_all")
    d.until(lambda: not page.picture.collapsed)
    page.document.selection.select([20])
    page.view.setFocus()
    d.qtbot.keyClick(page.view, Qt.Key.Key_Backspace)
    d.until(lambda: page.picture.drawn.scene.display.boxes[box_of(page, 20)].kind == "group")
    page.document.selection.select([20])
    page.view.boxes_selected.emit({box_of(page, 20)}, box_of(page, 20))
    d.qtbot.keyClick(page.view, Qt.Key.Key_Return)
    d.until(lambda: page.picture.drawn.scene.display.boxes[box_of(page, 20)].kind == "node")


def test_a_node_opens_into_what_it_was_lowered_to_and_is_selected_as_one(opened) -> None:
    d, page = opened
    record = page.document.graph
    pair = {call.index for call in record.nodes[:2]}
    nodes = [
        msgspec.structs.replace(node, onnx_node=0, onnx_type="Conv") if node.index in pair else node
        for node in record.nodes
    ]
    graph = msgspec.structs.replace(record, nodes=tuple(nodes))
    page.document._graph_arrived(GraphAnswer(graph=graph), keep_pins=True, then=lambda: None)

    def boxes():
        return page.picture.drawn.scene.display.boxes

    d.until(lambda: len(boxes()[box_of(page, 0)].members) == 2)
    page.document.selection.select([1])
    assert page.document.selection.operators == {0, 1}
    whole = len(boxes())
    page.view.box_opened.emit(box_of(page, 0))
    d.until(lambda: len(boxes()) == whole + 1)
    assert page.picture.drawn.styles[box_of(page, 1)].title == "Add", "its own type, inside"
    page.picture.leave_group()
    d.until(lambda: len(boxes()) == whole)
    assert page.picture.drawn.styles[box_of(page, 1)].title == "Conv"


def test_a_large_model_opens_collapsed_and_search_opens_what_it_finds(drive) -> None:
    d = drive()
    page = d.open("large.onnx")
    assert page.document.operators.count > 10_000
    assert len(page.picture.drawn.rectangles) < 450
    wanted = next(
        n for n, c in enumerate(page.document.operators.calls) if "layer.100/mlp" in c.name
    )
    page.picture.go_to(wanted)
    d.until(lambda: page.picture.drawn.scene.display.boxes[box_of(page, wanted)].kind == "node")
    assert page.document.selection.operators == {wanted}
    assert page.picture.drawn.scene.jumps_out, "the mask's edges are jumps"


def test_a_jump_stub_leads_to_the_other_end(drive) -> None:
    d = drive()
    page = d.open("large.onnx")
    box, others = next((b, o) for b, o in page.picture.drawn.scene.jumps_in.items() if len(o) == 1)
    r = page.picture.drawn.rectangles[box]
    stub = page.picture.drawn.jump_at(QPointF(r.right() + 12, r.top() + 6))
    assert stub == (others, False)
    page.view.go_to(others[0])
    assert page.view.marks.primary == others[0]


def test_horizontal_orientation_lays_out_sideways(opened) -> None:
    d, page = opened
    assert page.picture.drawn.scene.layout.height > page.picture.drawn.scene.layout.width
    d.trigger("horizontal")
    d.until(lambda: not page.picture.drawn.scene.upright)
    assert page.picture.drawn.scene.layout.width > page.picture.drawn.scene.layout.height


def test_the_legend_isolates_one_toolchain(placed) -> None:
    _, page = placed
    entry = page.picture.drawn.legend[0]
    page.view.legend.choose(entry)
    dimmed = page.view.marks.dimmed
    assert dimmed == boxes_outside(page.picture.drawn, entry) and dimmed
    page.view.legend.choose(entry)
    assert not page.view.marks.dimmed


def test_the_minimap_moves_the_view(drive) -> None:
    d = drive()
    page = d.open("resnet50.onnx")
    page.view.zoom(4.0)
    assert page.view.minimap.isVisible()
    d.qtbot.mouseClick(page.view.minimap, Qt.MouseButton.LeftButton, pos=QPoint(2, 2))
    centre = page.view.visible_area().center()
    assert abs(centre.x() - page.picture.drawn.bounds.left()) < 60


def test_nodes_of_one_partition_have_the_times_of_its_layers_and_no_other(placed) -> None:
    d, page = placed
    shown = page.document.placement.shown
    first = shown.placement.partitions[0]
    nodes = tuple(range(page.document.operators.count))
    whole = msgspec.structs.replace(first, nodes=nodes, estimated_us=26.6, in_place_us=22.8)
    placement = msgspec.structs.replace(
        shown.placement, partitions=(whole,), estimated_us=26.6, measured_us=29.7
    )
    page.document.placement.show(dataclasses.replace(shown, placement=placement))
    d.window.refresh()
    action = d.window.action_set.by_id["colour_cost"]
    assert not action.isEnabled() and "its layers were not timed" in action.toolTip()
    page.picture.set_mode("cost")
    page.picture.expand_all()
    styles = [style for style in page.picture.drawn.styles if style.kind == "node"]
    assert len(styles) > 5 and {style.entry for style in styles} == {NOT_TIMED}
    assert not any(style.value or style.filled for style in styles), "no node has its time"
    panel = page.panels.partitions
    (column,) = (c for c in panel.model.columns if c.title == "Time")
    assert [column.value(row) for row in panel.model.rows] == [29.7]
    assert "29.7 µs measured" in panel.summary.text()
    assert "its layers were not timed" in panel.summary.text()
    for figure in ("26.6", "22.8"):
        assert figure not in panel.summary.text()
    timed = (
        LayerTime(name="conv", us=20.0, gap_us=1.0, partition=0, operators=nodes[:2]),
        LayerTime(name="rest", us=6.0, gap_us=0.5, partition=0, operators=nodes[2:]),
        LayerTime(name="reorder", us=2.2, partition=0),
    )
    whole = msgspec.structs.replace(whole, in_place_us=28.2)
    placement = msgspec.structs.replace(placement, partitions=(whole,), layers=timed)
    page.document.placement.show(dataclasses.replace(shown, placement=placement))
    d.window.refresh()
    assert action.isEnabled()
    assert [column.value(row) for row in panel.model.rows] == [20.0, 6.0]
    assert panel.summary.text().split(" · ")[1:] == [
        "29.7 µs measured, 1.50 µs of it outside of partitions",
        "3 layers, 2.20 µs in 1 without a node",
    ]
    styles = [style for style in page.picture.drawn.styles if style.kind == "node"]
    assert {style.entry for style in styles} == {"over 30 % of the time", "10–30 %"}
    assert sorted(style.value for style in styles if style.value) == ["20.0 µs", "6.00 µs"]
