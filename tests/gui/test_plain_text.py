"""Names in files are chosen by their authors: they are text, never markup."""

from __future__ import annotations

import msgspec
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QWidget

from collage_engine.records.shapes import OpenSizes
from collage_gui.document_window.shapes_controller import ShapesDialog

MARKUP = "<img src=x><b>bold</b>"


def test_no_label_of_the_window_takes_markup(placed) -> None:
    d, page = placed
    page.messages.show_message(f"{MARKUP} could not be read", "error")
    d.window.messages.show_message(MARKUP)
    labels = [*page.findChildren(QLabel), d.banner.label, d.window.selection_text]
    wrong = [
        label.objectName() or label.text()
        for label in labels
        if label.textFormat() != Qt.TextFormat.PlainText and label.objectName() != "legend"
    ]
    assert not wrong
    assert d.window.welcome.engine.textFormat() == Qt.TextFormat.PlainText


def test_why_escapes_everything_that_comes_from_a_file(placed) -> None:
    d, page = placed
    shown = page.document.placement.shown
    first, *rest = shown.placement.partitions
    evil = msgspec.structs.replace(first, id=MARKUP, takes={0: MARKUP}, gives={0: MARKUP})
    placement = msgspec.structs.replace(shown.placement, partitions=(evil, *rest))
    page.document.show_placement(placement, MARKUP)
    d.question(page, [first.nodes[0]])
    page.panels.node.why.refresh()
    assert MARKUP in page.panels.node.why.text.toPlainText()
    assert "<img" not in page.panels.node.why.text.toHtml()
    assert MARKUP in page.panels.runs.detail.text()


def test_no_tip_and_no_legend_takes_names_of_a_file_for_markup(placed) -> None:
    _, page = placed
    shown = page.document.placement.shown
    first, *rest = shown.placement.partitions
    evil = msgspec.structs.replace(first, toolchain=MARKUP)
    placement = msgspec.structs.replace(shown.placement, partitions=(evil, *rest))
    page.document.show_placement(placement, MARKUP)
    left_open = OpenSizes(dimensions={"batch": (MARKUP,)}, inputs={MARKUP: (1, 3)})
    dialog = ShapesDialog(left_open, (), False, page)
    formats = {label.textFormat() for label in dialog.findChildren(QLabel) if label.text()}
    assert formats == {Qt.TextFormat.PlainText}
    tips = {widget.toolTip() for widget in page.findChildren(QWidget)}
    dialog.close()
    named = [tip for tip in tips if "bold" in tip]
    assert named, "the dialog names it"
    legends = [each.text() for each in page.findChildren(QLabel, "legend") if each.text()]
    assert any("&lt;img" in text for text in legends)
    assert not [text for text in (*named, *legends) if "<img src=x" in text]
