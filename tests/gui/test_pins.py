"""Pins: making, verdicts, undo, stale results, files, placements by hand."""

from __future__ import annotations

from PySide6.QtCore import Qt


def other(toolchain: str) -> str:
    return next(t for t in ("tvm", "onnxruntime", "onednn") if t != toolchain)


def test_a_pin_is_searched_at_once_and_its_price_is_shown(drive) -> None:
    d = drive()
    page = d.open()
    d.run(page)
    now = page.document.placement.partition_of(0)
    page.document.selection.select(now.nodes)
    wanted = other(now.toolchain)
    page.pins.pin_to(wanted)
    d.until(
        lambda: page.document.pins.verdicts and page.document.pins.verdicts[0].state == "honoured"
    )
    assert page.document.placement.partition_of(0).toolchain == wanted
    assert page.document.placement.shown.estimated and page.document.placement.shown.run is None
    assert page.picture.drawn.styles[page.picture.drawn.scene.display.box_of[0]].dashed
    price = page.document.pins.verdicts[0].price_us
    assert price > 0
    assert page.panels.pins.model.data(page.panels.pins.model.index(0, 2)).startswith("✓ +")
    assert page.view.marks.pinned[page.picture.drawn.scene.display.box_of[0]] == "●"


def test_pins_are_undone_and_redone(drive) -> None:
    d = drive()
    page = d.open()
    d.run(page)
    page.document.selection.select([0, 1, 2])
    page.pins.pin_to("tvm")
    page.document.selection.select([3])
    page.pins.pin_never("onednn")
    assert [p.kind for p in page.document.pins.current] == ["on", "never"]
    d.trigger("undo")
    assert [p.kind for p in page.document.pins.current] == ["on"]
    d.trigger("undo")
    assert page.document.pins.current == ()
    d.trigger("redo")
    assert page.document.pins.current[0].nodes == (0, 1, 2)
    assert page.document.pins.current[0].text.endswith("=tvm")


def test_a_newer_pin_replaces_what_an_older_one_says_of_the_same_nodes(drive) -> None:
    d = drive()
    page = d.open()
    page.document.selection.select([0, 1, 2])
    page.pins.pin_to("tvm")
    page.document.selection.select([1])
    page.pins.pin_to("onednn")
    assert [(p.nodes, p.toolchain) for p in page.document.pins.current] == [
        ((0, 2), "tvm"),
        ((1,), "onednn"),
    ]
    page.document.selection.select([0, 1])
    d.trigger("free")
    assert [(p.nodes, p.toolchain) for p in page.document.pins.current] == [((2,), "tvm")]


def test_an_infeasible_pin_says_why(drive) -> None:
    d = drive()
    page = d.open()
    d.run(page)
    reshape = next(n for n, c in enumerate(page.document.operators.calls) if c.op == "reshape")
    page.document.selection.select([reshape])
    page.pins.pin_to("onednn")
    d.until(
        lambda: page.document.pins.verdicts and page.document.pins.verdicts[0].state == "infeasible"
    )
    assert page.banner.isVisible()
    assert "No placement satisfies the pins" in page.banner.label.text()
    assert "✕ infeasible" in page.panels.pins.model.data(page.panels.pins.model.index(0, 2))
    assert page.document.pins.verdicts[0].reason in page.panels.pins.model.data(
        page.panels.pins.model.index(0, 5)
    )


def test_results_older_than_the_pins_are_marked_stale(drive) -> None:
    d = drive()
    d.preferences.set("search_on_pin", False)
    page = d.open()
    d.run(page)
    assert not page.document.stale
    page.document.selection.select([0])
    page.pins.pin_never("tvm")
    assert page.document.stale and page.view.marks.stale
    assert "made without them" in page.panels.pins.summary.text()
    page.view.setFocus()
    d.trigger("search")
    d.until(lambda: not page.document.stale)
    assert not page.view.marks.stale


def test_keep_this_partition_pin_all_and_free_all(drive) -> None:
    d = drive()
    page = d.open()
    d.run(page)
    page.document.selection.select([0])
    d.trigger("keep_partition")
    kept = page.document.pins.current[0]
    assert kept.kind == "exactly" and kept.nodes == page.document.placement.partition_of(0).nodes
    d.trigger("pin_all")
    assert len(page.document.pins.current) == len(
        page.document.placement.shown.placement.partitions
    )
    d.trigger("free_all")
    assert page.document.pins.current == ()


def test_the_pin_menu_offers_toolchains_by_keyboard(drive, qapp) -> None:
    d = drive()
    page = d.open()
    page.document.selection.select([0])
    page.view.setFocus()
    d.trigger("pin_menu")
    menu = qapp.activePopupWidget()
    titles = [a.text() for a in menu.actions()]
    assert [t.split("\t")[0] for t in titles[:3]] == ["TVM", "ONNX Runtime", "oneDNN"]
    d.qtbot.keyClick(menu, Qt.Key.Key_Down)
    d.qtbot.keyClick(menu, Qt.Key.Key_Return)
    assert page.document.pins.current[0].toolchain == "onnxruntime"


def test_the_context_menu_holds_the_pins(drive) -> None:
    d = drive()
    page = d.open()
    page.document.selection.select([0])
    menu = page.context_menu(0)
    texts = [a.text() for a in menu.actions()]
    assert {"Pin to", "Never on", "Pin as one partition", "Keep together"} <= set(texts)
    menu.deleteLater()
