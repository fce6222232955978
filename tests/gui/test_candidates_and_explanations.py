"""Candidates, explanations, tables and code of a node, and the command "try this"."""

from __future__ import annotations

from PySide6.QtCore import Qt, QUrl
from PySide6.QtTest import QAbstractItemModelTester
from PySide6.QtWidgets import QWidget

from collage_engine.wording.sentences import status_text
from collage_gui.panels.candidates import PRICE_COLUMN
from collage_gui.panels.tables import Column, RowsModel


def test_the_table_is_sorted_filtered_and_restricted_to_a_state(drive) -> None:
    d = drive()
    page = d.open("resnet50.onnx")
    d.run(page)
    table, model = page.panels.node.candidates.table, page.panels.node.candidates.model
    titles = [column.title for column in model.columns]
    table.sortByColumn(titles.index("Here"), Qt.SortOrder.DescendingOrder)
    assert titles.index("Operators") > PRICE_COLUMN, "what it costs is seen without scrolling"
    known = any(page.document.costs.prices.get(r.id) is not None for r in model.rows)
    assert table.isColumnHidden(PRICE_COLUMN) != known
    costs = [page.document.costs.of(model.rows[i].id).us for i in model.order]
    known = [us for us in costs if us is not None]
    assert known == sorted(known, reverse=True) and costs[: len(known)] == known
    page.panels.node.candidates.filter.setText("oneDNN Conv")
    shown = [model.rows[i] for i in model.order]
    assert shown and all(r.instance.toolchain == "onednn" for r in shown)


def test_choosing_a_candidate_shows_its_nodes_in_the_graph(placed) -> None:
    d, page = placed
    d.question(page, [2])
    model = page.panels.node.candidates.model
    place = next(row for row, at in enumerate(model.order) if len(model.rows[at].nodes) > 1)
    page.panels.node.candidates.table.selectRow(place)
    row = page.panels.node.candidates.model.rows[
        int(page.panels.node.candidates.model.order[place])
    ]
    assert page.document.selection.candidate == row.id
    assert page.view.marks.candidate == page.picture.drawn.scene.boxes_of(row.nodes)
    assert page.document.selection.operators == {2}


def test_why_says_the_engines_words_and_what_was_not_offered(drive) -> None:
    d = drive("--refuses")
    page = d.open()
    d.run(page)
    d.question(page, [page.document.operators.count - 1])
    text = page.panels.node.why.text.toPlainText()
    for word in page.document.questions.explanation.words:
        assert word in text
    assert "ONNX Runtime has no candidate: it takes no product here." in text
    model = page.panels.node.candidates.model
    titles = [column.title for column in model.columns]
    price, status = (model.columns[titles.index(name)] for name in ("Price", "Status"))
    told = {each.candidate: each for each in page.document.questions.explanation.alternatives}
    d.until(lambda: {row.id for row in model.rows} <= told.keys())
    for row in model.rows:  # one table says what the explanation knows of each candidate
        assert status.value(row) == status_text(told[row.id])
        if told[row.id].status not in ("at least", "chosen"):
            assert price.value(row) == told[row.id].whole_us
    units = {
        model.headerData(titles.index(n), Qt.Orientation.Horizontal) for n in ("Here", "Price")
    }
    assert len({text.partition(", ")[2] for text in units}) == 1, "one unit in a table"


def test_before_a_run_nothing_is_invented(opened) -> None:
    d, page = opened
    page.document.selection.select([0])
    d.qtbot.wait(200)
    assert "nothing is measured yet" in page.panels.node.why.text.toPlainText()
    assert page.panels.node.candidates.model.rowCount() == 0
    assert "Nothing is measured yet" in page.panels.node.candidates.hint.text()


def test_a_link_in_why_leads_to_the_runner_up(placed) -> None:
    d, page = placed
    d.question(page, [1])
    page.panels.node.why.text.anchorClicked.emit(QUrl("runner-up:"))
    assert page.document.placement.shown.title == "Runner-up"
    assert not page.document.placement.shown.estimated, "the run has timed it, too"


def test_partitions_table_tree_and_graph_share_one_selection(placed) -> None:
    d, page = placed
    d.trigger("outline")
    table = page.panels.partitions
    table.table.selectRow(0)
    row = table.model.rows[int(table.model.order[0])]
    assert page.document.selection.operators == set(row.nodes)
    page.document.selection.select([6])
    chosen = [r.id for r in table.table.chosen()]
    assert chosen == [page.document.placement.partition_of(6).id]
    items = page.panels.outline.selectedItems()
    assert [i.data(0, Qt.ItemDataRole.UserRole) for i in items] == [6]
    page.panels.outline.clearSelection()
    other = page.panels.outline._items[9]
    other.setSelected(True)
    assert page.document.selection.operators == {9}
    assert page.view.marks.selected == page.picture.drawn.scene.boxes_of([9])
    d.qtbot.keyClick(page.panels.outline, Qt.Key.Key_O)
    assert not page.panels.outline.isVisible(), "letters are the window's keys there, too"


def test_the_tree_names_every_operator_for_screen_readers(placed) -> None:
    d, page = placed
    d.trigger("outline")
    assert set(page.panels.outline._items) == set(range(page.document.operators.count))
    names = {i.toolTip(0) for i in page.panels.outline._items.values()}
    assert names == {page.document.operators.names[n] for n in range(19)}
    unnamed = [
        w.objectName()
        for w in d.window.findChildren(QWidget)
        if w.focusPolicy() & Qt.FocusPolicy.TabFocus
        and w.isVisible()
        and w.objectName()
        and not w.objectName().startswith("qt_")
        and not (
            w.accessibleName()
            or getattr(w, "text", lambda: "")()
            or w.toolTip()
            or isinstance(w, (type(d.window.documents.tabs),))
        )
    ]
    assert not [n for n in unnamed if not n.startswith("scroll")], unnamed


def show_node_page(page, wanted) -> None:
    page.tabs.setCurrentWidget(page.panels.node)
    page.panels.node.tabs.setCurrentWidget(wanted)


def test_what_a_node_holds_stands_below_its_attributes(placed) -> None:
    d, page = placed
    show_node_page(page, page.panels.node.attributes)
    page.document.selection.select([0])
    d.until(lambda: page.document.questions.inside is not None)
    tree = page.panels.node.attributes.tree
    last = tree.topLevelItem(tree.topLevelItemCount() - 1)
    rows = {last.child(k).text(0): last.child(k).text(1) for k in range(last.childCount())}
    assert last.text(0).startswith("Weight ") and len(rows["histogram"]) == 40


def test_inside_a_partition_are_relax_tensorir_and_the_plan(placed) -> None:
    d, page = placed
    show_node_page(page, page.panels.node.code)
    page.document.selection.select([0])
    d.until(
        lambda: page.document.questions.inside is not None and page.document.questions.inside.relax
    )
    code = page.panels.node.code
    assert "R.nn.conv2d" in code.text.toPlainText()
    assert code.text.textCursor().selectedText() == "conv2d"
    code.choice.setCurrentText("TensorIR")
    assert "prim_func" in code.text.toPlainText()
    code.choice.setCurrentText("Steps")
    assert code.plan.isVisible() and not code.text.isVisible()
    step = page.panels.node.code.plan.topLevelItem(1)
    assert step.text(0).startswith("fused_conv2d_add_relu")


def test_any_selection_is_measured_on_every_toolchain_and_joins(placed) -> None:
    d, page = placed
    before = len(page.document.costs.candidates)
    page.document.selection.select([2, 3])
    assert not any(c.nodes == (2, 3) for c in page.document.costs.candidates.values())
    d.trigger("measure")
    d.until(lambda: any(c.nodes == (2, 3) for c in page.document.costs.candidates.values()))
    assert len(page.document.costs.candidates) == before + 3
    d.until(lambda: any(r.nodes == (2, 3) for r in page.panels.node.candidates.model.rows))


def test_chosen_rows_and_the_current_cell_are_copied(placed, qapp) -> None:
    d, page = placed
    table = page.panels.partitions.table
    model, (rows, cell) = table.rows_model, table.actions()[:2]

    def shown(row: int) -> list[str]:
        return [model.data(model.index(row, at)) for at in range(model.columnCount())]

    page.tabs.setCurrentWidget(page.panels.partitions)
    for place, modifier in (
        (1, Qt.KeyboardModifier.NoModifier),
        (2, Qt.KeyboardModifier.ShiftModifier),
    ):
        at = table.visualRect(model.index(place, 1)).center()
        d.qtbot.mouseClick(table.viewport(), Qt.MouseButton.LeftButton, modifier, at)
    chosen = {n for row in (1, 2) for n in model.row(model.index(row, 0)).nodes}
    assert page.document.selection.operators == chosen
    rows.trigger()
    assert qapp.clipboard().text() == "\n".join("\t".join(shown(row)) for row in (1, 2))
    cell.trigger()
    assert qapp.clipboard().text() == shown(2)[1]


def test_the_table_model_obeys_qt_and_sorts_its_rows(qtbot) -> None:
    columns = [
        Column("Name", lambda r: r[0]),
        Column("Value", lambda r: r[1], "time"),
    ]
    model = RowsModel(columns)
    tester = QAbstractItemModelTester(model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    rows = [
        (f"n{n % 977}", None if n % 50 == 0 else float((n * 7919) % 50_021)) for n in range(5_000)
    ]
    model.set_rows(rows)
    model.sort(1, Qt.SortOrder.AscendingOrder)
    values = [model.rows[i][1] for i in model.order]
    known = [v for v in values if v is not None]
    assert known == sorted(known) and values[len(known) :] == [None] * (5_000 - len(known))
    model.sort(0, Qt.SortOrder.DescendingOrder)
    assert model.data(model.index(0, 0)) == "n99"
    assert model.headerData(1, Qt.Orientation.Horizontal) == "Value, ms"
    model.set_filter("n976")
    assert 0 < model.rowCount() < 60
    del tester
