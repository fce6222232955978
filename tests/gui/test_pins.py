"""Pins: making, verdicts, undo, stale results, files, placements by hand.

What the pin menu says of each toolchain before anything is pinned.
"""

from __future__ import annotations

import msgspec
from PySide6.QtCore import Qt

from collage_engine.records.answers import Price
from collage_engine.wording.amounts import signed_time
from collage_gui.document.pin_prices import PinPrice, pin_prices


def other(toolchain: str) -> str:
    return next(t for t in ("tvm", "onnxruntime", "onednn") if t != toolchain)


def test_a_pin_is_searched_at_once_and_its_price_is_shown(placed) -> None:
    d, page = placed
    now = page.document.placement.partition_of(0)
    before = page.document.placement.shown
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
    assert page.panels.pins.model.data(page.panels.pins.model.index(0, 2)).startswith(
        ("✓ +", "✓ at most +")
    )
    assert page.view.marks.pinned[page.picture.drawn.scene.display.box_of[0]] == "●"
    after = page.document.placement.shown
    d.trigger("undo")
    assert page.document.placement.shown is before, "what was shown is back"
    d.trigger("redo")
    assert page.document.placement.shown is after


def test_several_pins_have_a_price_together(placed) -> None:
    d, page = placed
    document, panel = page.document, page.panels.pins
    for operator in (0, document.operators.count - 1):
        document.selection.select([operator])
        page.pins.pin_to(other(document.placement.partition_of(operator).toolchain))
    d.until(lambda: len(document.pins.verdicts) == 2)
    d.until(lambda: document.pins.together_us is not None)
    assert panel.summary.text().endswith(f"({signed_time(document.pins.together_us)} together)")
    d.trigger("undo")
    assert document.pins.together_us is None and "together" not in panel.summary.text()


def test_a_newer_pin_replaces_what_an_older_one_says_of_the_same_nodes(opened) -> None:
    d, page = opened
    page.document.selection.select([0, 1, 2])
    page.pins.pin_to("tvm")
    page.document.selection.select([1])
    page.pins.pin_to("onednn")
    assert [(p.nodes, p.toolchain) for p in page.document.pins.current] == [
        ((2,), "tvm"),
        ((0, 1), "onednn"),
    ]
    page.document.selection.select([0, 1])
    d.trigger("free")
    assert [(p.nodes, p.toolchain) for p in page.document.pins.current] == [((2,), "tvm")]


def test_an_infeasible_pin_says_why(drive) -> None:
    d = drive("--refuses")
    page = d.open()
    d.run(page)
    page.document.selection.select([page.document.operators.count - 1])
    page.pins.pin_to("onnxruntime")
    d.until(
        lambda: page.document.pins.verdicts and page.document.pins.verdicts[0].state == "infeasible"
    )
    assert page.banner.isVisible()
    assert "No placement satisfies the pins" in page.banner.label.text()
    assert "✕ infeasible" in page.panels.pins.model.data(page.panels.pins.model.index(0, 2))
    assert page.document.pins.verdicts[0].reason in page.panels.pins.model.data(
        page.panels.pins.model.index(0, 2), Qt.ItemDataRole.ToolTipRole
    )


def test_results_older_than_the_pins_are_marked_stale(drive) -> None:
    d = drive("--slow", "0.05")
    page = d.open()
    d.run(page)
    assert not page.document.stale
    page.runs.start()
    page.document.selection.select([0])
    page.pins.pin_never("tvm")
    assert page.document.stale and page.view.marks.stale and page.banner.topic == "stale"
    assert "made without them" in page.panels.pins.summary.text()
    page.runs.cancel()
    d.until(lambda: not page.document.running)
    page.view.setFocus()
    d.trigger("search")
    d.until(lambda: not page.document.stale)
    assert not page.view.marks.stale


def test_keep_this_partition_pin_all_and_free_all(placed) -> None:
    d, page = placed
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


def test_the_pin_menu_offers_toolchains_by_keyboard(opened, qapp) -> None:
    d, page = opened
    page.document.selection.select([0])
    page.view.setFocus()
    d.trigger("pin_menu")
    menu = qapp.activePopupWidget()
    titles = [a.text() for a in menu.actions()]
    assert [t.split("\t")[0] for t in titles[:3]] == ["TVM", "ONNX Runtime", "oneDNN"]
    d.qtbot.keyClick(menu, Qt.Key.Key_Down)
    d.qtbot.keyClick(menu, Qt.Key.Key_Return)
    assert page.document.pins.current[0].toolchain == "onnxruntime"


def prices(d, page) -> dict[str, PinPrice]:
    names = [state.name for state in d.window.engine.states if state.available]
    return {price.toolchain: price for price in pin_prices(page.document, names)}


def test_the_menu_shows_a_price_a_bound_or_the_reason_for_each_toolchain(drive) -> None:
    d = drive("--refuses")
    page = d.open()
    d.run(page)
    last = page.document.operators.count - 1
    d.question(page, [last])
    d.until(lambda: page.document.questions.candidates)
    found = prices(d, page)
    refused = found["onnxruntime"]
    assert "takes no product" in refused.reason and refused.text == refused.reason
    menu = page.pins.pin_to_menu()
    by_title = {action.text().split("\t")[0]: action for action in menu.actions()}
    action = by_title["ONNX Runtime"]
    assert not action.isEnabled() and "\t" in action.text()
    now = page.document.placement.partition_of(last).toolchain
    assert found[now].text == "as now"
    menu.deleteLater()


def test_the_price_is_the_least_one_and_at_most_where_candidates_are_unmeasured(placed) -> None:
    d, page = placed
    d.question(page, [0])
    d.until(lambda: page.document.questions.candidates)
    document = page.document
    own = [c for c in document.questions.candidates if c.instance.toolchain == "tvm"]
    for at, candidate in enumerate(own):
        document.costs.prices[candidate.id] = Price(27.0 + at)
    found = prices(d, page)["tvm"]
    if not found.is_now:
        assert found.text == "+27.0 µs"
    del document.costs.by_candidate[own[-1].id]
    document.costs.candidates.pop(own[-1].id, None)
    found = prices(d, page)["tvm"]
    assert found.unmeasured == 1 and found.price == Price(27.0)


def test_a_pinned_operator_has_the_prices_of_another_pin_in_that_ones_place(placed) -> None:
    d, page = placed
    d.question(page, [2])
    d.until(lambda: page.document.questions.candidates)
    questions = page.document.questions
    own = [c for c in questions.candidates if c.instance.toolchain == "onednn"]
    page.document.costs.prices.clear()
    assert prices(d, page)["onednn"].price.us is None
    instead = {c.id: at - 1.37 for at, c in enumerate(own)}
    questions.explanation = msgspec.structs.replace(questions.explanation, prices_instead=instead)
    assert prices(d, page)["onednn"].price == Price(-1.37)


def test_a_run_under_pins_that_are_gone_brings_no_verdicts(opened) -> None:
    d, page = opened
    page.document.selection.select([0, 1, 2])
    page.pins.pin_to("tvm")
    d.run(page)
    run = page.document.runs.visible[-1]
    assert run.pins and page.document.pins.verdicts
    d.trigger("free_all")
    page.document.runs.show(run.id)
    assert page.document.pins.verdicts == ()
    assert page.document.placement.shown.pins == (run.pins[0].pin,) and page.document.stale


def test_a_pin_that_nothing_was_measured_for_is_measured_by_itself(drive) -> None:
    """No red, no dot: it says what is measured, and the price follows."""
    d = drive("--unmeasured", "--slow", "0.05")
    page = d.open()
    d.run(page)
    page.document.selection.select([0])
    said: list[tuple[str, str]] = []
    page.document.execution.searched.connect(
        lambda _: said.append((d.banner.property("banner"), d.banner.label.text()))
    )
    page.pins.pin_to("onnxruntime")
    d.until(lambda: page.document.execution.running and said)
    kind, text = said[-1]
    assert kind == "info" and text.startswith("The pins are not measured yet: measuring ")
    assert text.endswith(", 20 s at most.")
    verdict = page.panels.pins.model.columns[2].value(page.panels.pins.model.rows[0])
    assert verdict == "… not measured" and "not measured yet" in page.panels.pins.summary.text()
    d.until(lambda: not page.document.execution.running and len(page.document.runs.visible) == 2)
    run = page.document.runs.visible[-1]
    assert run.confirmation == "quick" and run.settings["budget_s"] == 20.0
    assert page.document.pins.infeasible is None
    assert d.banner.topic not in ("infeasible", "measuring")
    assert page.document.pins.verdicts[0].state == "honoured"


def test_menus_that_were_closed_hear_nothing_any_more(placed, qapp) -> None:
    d, page = placed
    box = page.picture.drawn.rectangles[0]
    where = page.view.to_view(box.center()).toPoint()
    for keys in ((), (Qt.Key.Key_Right,)):  # the menu alone, and with the menu of pins
        d.qtbot.mouseClick(page.view, Qt.MouseButton.RightButton, pos=where)
        d.until(lambda: qapp.activePopupWidget() is not None)
        menu = qapp.activePopupWidget()
        menu.setActiveAction(menu.actions()[0])
        for key in (*keys, Qt.Key.Key_Escape, Qt.Key.Key_Escape):
            if qapp.activePopupWidget() is not None:
                d.qtbot.keyClick(qapp.activePopupWidget(), key)
        d.until(lambda: qapp.activePopupWidget() is None)
        d.qtbot.wait(50)  # the menu is deleted
    for name in ("pin_menu", "never_menu"):
        page.document.selection.select([0])
        if name in d.window.action_set.by_id:
            d.trigger(name)
            d.qtbot.keyClick(qapp.activePopupWidget(), Qt.Key.Key_Escape)
            d.qtbot.wait(50)
    for operator in (1, 2):  # an exception in what listens would fail the test
        d.question(page, [operator])
        page.document.questions.explanation_changed.emit()
