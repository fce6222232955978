"""Choosing shapes, running all of them, their table, and one artifact of them."""

from __future__ import annotations

from PySide6.QtCore import Qt

from collage_engine.records.shapes import STOPPED_BUDGET_S


def opened(d):
    """A page of a model with open sizes, for batch 1 and 4."""
    page = d.window.documents.open_path(d.model("open-small.onnx"))
    d.until(lambda: page.shapes.dialog is not None)
    dialog = page.shapes.dialog
    assert list(dialog.fields) == ["batch", "length"]
    dialog.fields["batch"].setText("1, 4")
    dialog.fields["length"].setText("64")
    assert dialog.summary.text() == "2 shapes: batch=1 length=64, batch=4 length=64"
    dialog.accept()
    d.until(lambda: page.picture.drawn.rectangles)
    return page


def run_all(d, page) -> None:
    page.runs.start()
    d.until(lambda: all(entry.row is not None for entry in page.document.shapes.entries))
    d.until(lambda: not page.document.running and page.document.runs.visible)


def names(page) -> list[str]:
    return [row.choice.text for row in page.panels.runs.shapes.model.rows]


def test_open_sizes_without_names_are_asked_for_by_input(drive) -> None:
    d = drive()
    page = d.window.documents.open_path(d.model("nameless-small.onnx"))
    d.until(lambda: page.shapes.dialog is not None)
    dialog = page.shapes.dialog
    assert not dialog.fields and dialog.inputs["z"].text() == "1, 8"
    dialog.inputs["z"].setText("0, 0, 8")  # zero is a size, and equal ones are two
    assert dialog.summary.text() == "1 shape: z=0x0x8"
    dialog.accept()
    d.until(lambda: page.picture.drawn.rectangles)
    assert page.document.shapes.entries[0].choice.shapes == {"z": (0, 0, 8)}
    d.trigger("shapes")
    d.until(lambda: page.shapes.dialog is not None)
    assert page.shapes.dialog.inputs["z"].text() == "0, 0, 8"
    page.shapes.dialog.reject()


def test_wrong_sizes_cannot_be_opened(drive) -> None:
    d = drive()
    page = d.window.documents.open_path(d.model("open-small.onnx"))
    d.until(lambda: page.shapes.dialog is not None)
    dialog = page.shapes.dialog
    for text, says in (
        ("-1", "'-1' is no size"),
        (str(2**49), "is no size"),
        ("one", "'one' is no size"),
        ("", "Batch has no size yet"),
        (",".join(map(str, range(1, 70))), "at most 64"),
    ):
        dialog.fields["batch"].setText(text)
        assert says in dialog.summary.text()
        assert not dialog.choices and not dialog._ok.isEnabled()
    dialog.reject()


def test_a_run_places_all_shapes_and_the_table_switches_the_graph(drive) -> None:
    d = drive()
    page = opened(d)
    document = page.document
    first, second = document.shapes.entries
    run_all(d, page)
    d.until(lambda: document.handle == second.document and document.runs.visible)
    assert document.placement.shown.run == document.runs.all[-1].id
    table = page.panels.runs.shapes.table
    table.setCurrentIndex(page.panels.runs.shapes.model.index(0, 0))
    d.until(lambda: document.handle == first.document and document.runs.visible)
    shares = [run.settings["budget_s"] for run in document.runs.all]
    assert len(shares) == 1 and shares[0] <= page.panels.run_settings.budget.value() / 2
    assert "[batch=1 length=64]" in document.title
    assert document.execution.settings.budget_s == page.panels.run_settings.budget.value()


def test_cancelling_ends_the_run_of_all_shapes(drive) -> None:
    d = drive("--slow", "0.05")
    page = opened(d)
    page.runs.start()
    d.until(lambda: page.document.running)
    page.runs.cancel()
    d.until(lambda: not page.document.running)
    d.qtbot.wait(100)
    assert not page.document.running, "the next shape was begun"


def test_a_stopped_run_leaves_the_others_a_first_answer_only(drive) -> None:
    d = drive("--slow", "0.02", "--provisional")
    page = opened(d)
    page.runs.start()
    d.until(lambda: page.document.runs.provisional is not None)
    page.runs.stop_and_keep()
    second = page.document.shapes.entries[1]
    d.until(lambda: page.document.handle == second.document and page.document.runs.visible)
    assert page.document.runs.all[-1].settings["budget_s"] == STOPPED_BUDGET_S


def test_one_artifact_holds_all_shapes(drive, tmp_path, monkeypatch) -> None:
    d = drive()
    page = opened(d)
    page.document.shapes.others = True
    run_all(d, page)
    monkeypatch.setattr(page.files, "ask_folder", lambda *_: str(tmp_path / "artifact"))
    d.trigger("artifact")
    d.until(lambda: "Written" in page.banner.label.text())
    said = page.banner.label.text()
    assert "2 shapes take 47.7 MiB together" in said and "Any other shape" in said


def test_an_artifact_of_one_shape_takes_others_too(drive, tmp_path, monkeypatch) -> None:
    d = drive()
    page = d.window.documents.open_path(d.model("open-small.onnx"))
    d.until(lambda: page.shapes.dialog is not None)
    dialog = page.shapes.dialog
    dialog.others.click()
    dialog.accept()
    d.until(lambda: page.picture.drawn.rectangles)
    d.run(page)
    monkeypatch.setattr(page.files, "ask_folder", lambda *_: str(tmp_path / "artifact"))
    d.trigger("artifact")
    d.until(lambda: "Any other shape" in page.banner.label.text())


def test_other_shapes_are_chosen_in_the_open_document(drive) -> None:
    d = drive()
    page = opened(d)
    kept = page.document.shapes.entries[0].document
    d.trigger("shapes")
    d.until(lambda: page.shapes.dialog is not None)
    assert page.shapes.dialog.fields["batch"].text() == "1, 4"
    page.shapes.dialog.fields["batch"].setText("16, 1")
    page.shapes.dialog.accept()
    d.until(lambda: len(names(page)) == 2 and names(page)[0] == "batch=16 length=64")
    assert page.document.handle == kept and page.document.unsaved


def test_a_model_of_fixed_sizes_has_no_shapes_to_choose(opened) -> None:
    d, page = opened
    d.qtbot.mouseClick(page.panels.run_settings.dimensions, Qt.MouseButton.LeftButton)
    d.until(lambda: page.banner.isVisible())
    assert "are fixed" in page.banner.label.text()
    assert not page.panels.runs.shapes.model.rows


def test_pins_of_one_shape_do_not_go_to_the_graph_of_another(drive) -> None:
    d = drive()
    page = opened(d)
    document = page.document
    document.selection.select([1])
    page.pins.pin_never("tvm")
    d.until(lambda: document.pins.current)
    document.shapes.show(document.shapes.entries[1])
    d.until(lambda: document.handle == document.shapes.entries[1].document)
    d.until(lambda: not document.pins.current)
    assert not document.undo.canUndo()
    document.shapes.show(document.shapes.entries[0])
    d.until(lambda: document.pins.current)
