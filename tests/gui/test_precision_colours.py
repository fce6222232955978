"""Precision as a colour of the graph: which products are rounded, and what error each makes."""

from __future__ import annotations

import dataclasses

import msgspec

from collage_engine.records.precision import PRODUCTS, Accuracy, RoundedProduct
from collage_gui.main_window.action_set import mode_refusal


def test_products_are_coloured_by_whether_they_are_rounded_with_the_error_of_each(placed) -> None:
    d, page = placed
    document = page.document
    assert (
        mode_refusal(document, "precision")
        == "Everything is in float32; a run with a lower precision tells what rounding does."
    )
    products = [n for n, call in enumerate(document.operators.calls) if call.op in PRODUCTS]
    run = document.runs.shown_or_last()
    accuracy = Accuracy(
        precision="bfloat16",
        tolerance=0.01,
        samples=1,
        products=tuple(
            RoundedProduct(operator=operator, operations=1e6, error=0.02, rank=place)
            for place, operator in enumerate(products)
        ),
    )
    changed = msgspec.structs.replace(run, accuracy=accuracy)
    document.runs.all[document.runs.all.index(run)] = changed
    assert not mode_refusal(document, "precision")
    d.trigger("colour_precision")

    def entries() -> set[tuple[str, str]]:
        drawn = page.picture.drawn
        styles = [drawn.styles[drawn.scene.display.box_of[n]] for n in products]
        return {(style.entry, style.note) for style in styles}

    error = "an error of 2.00 %."
    assert entries() == {("product in float32", f"Rounding it alone would make {error}")}
    shown = document.placement.shown
    parts = tuple(
        msgspec.structs.replace(part, precision="bfloat16") for part in shown.placement.partitions
    )
    rounded = msgspec.structs.replace(shown.placement, partitions=parts)
    document.placement.show(dataclasses.replace(shown, placement=rounded))
    assert entries() == {("in reduced precision", f"Rounding it alone makes {error}")}
