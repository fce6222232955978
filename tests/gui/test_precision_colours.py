"""Precision as a colour of the graph, and the slider that moves along the order of products."""

from __future__ import annotations

import msgspec
import pytest

from collage_engine.records.placement import Run
from collage_engine.records.precision import PRODUCTS, Accuracy, RoundedProduct, RoundingTrial
from collage_gui.main_window.action_set import mode_refusal
from collage_gui.panels.precision_slider import STEPS


def with_products(run: Run, products: list[int]) -> Run:
    """Return the run as if half of its products could be rounded within 1 %."""
    count = len(products)
    accuracy = Accuracy(
        precision="bfloat16",
        tolerance=0.01,
        samples=1,
        float32_us=1000.0,
        ranked_for="tvm",
        products=tuple(
            RoundedProduct(
                operator=operator,
                operations=1e6,
                error=0.01 / (count / 2) ** 0.5,
                rank=count - 1 - place,
                rounded=place >= count / 2,
            )
            for place, operator in enumerate(products)
        ),
        tried=(
            RoundingTrial(
                toolchain="tvm", rounded=count, max_rel_error=0.01 * 2**0.5, measured_us=600.0
            ),
        ),
    )
    return msgspec.structs.replace(run, accuracy=accuracy, baselines=[])


def test_a_tolerance_is_tried_on_the_slider_and_confirmed_by_a_run(placed) -> None:
    d, page = placed
    document, slider = page.document, page.precision_slider
    assert (
        mode_refusal(document, "precision")
        == "Everything is in float32; a run with a lower precision tells what rounding does."
    )
    graph = document.operators
    products = [n for n, call in enumerate(graph.calls) if call.op in PRODUCTS]
    assert len(products) >= 4
    shown = document.runs.shown_or_last()
    document.runs.all[document.runs.all.index(shown)] = with_products(shown, products)
    document.runs.changed.emit()
    assert not mode_refusal(document, "precision") and not slider.isVisible()
    d.trigger("colour_precision")
    assert slider.isVisible() and slider.point is None
    assert slider.value == pytest.approx(0.01, rel=0.05) and not slider.confirm.isEnabled()

    def states() -> dict[int, str]:
        drawn = page.picture.drawn
        box_of = drawn.scene.display.box_of
        alone = {o: box_of[o] for o in products}
        return {o: drawn.styles[box].entry for o, box in alone.items()}

    assert set(states().values()) == {"product in float32"}, "the shown placement rounds nothing"
    slider.slider.setValue(slider.slider.maximum())
    assert slider.value == pytest.approx(0.05)
    assert slider.point.products == frozenset(products)
    assert slider.point.us == pytest.approx(600.0)
    assert slider.point.error == pytest.approx(0.01 * 2**0.5)
    assert set(states().values()) == {"in reduced precision"}
    slider.slider.setValue(0)
    assert not slider.point.products and "nothing faster" in slider.predicted.text()
    assert set(states().values()) == {"product in float32"}
    middle = next(k for k in range(STEPS) if _set(slider, k) >= 0.01)
    half = slider.point.products
    assert middle and half == frozenset(products[-len(half) :]) and 0 < len(half) < len(products)
    assert {o for o, state in states().items() if state == "in reduced precision"} == half

    count = len(document.runs.visible)
    slider.confirm.click()
    d.until(lambda: len(document.runs.visible) > count and not document.running)
    made_with = document.execution.settings
    assert made_with.precision == "bfloat16"
    assert made_with.tolerance == pytest.approx(slider_value(middle), rel=1e-2)
    assert not slider.isVisible(), "the new run knows nothing of single products"
    assert set(states().values()) == {"product in float32"}


def slider_value(step: int) -> float:
    """Return the tolerance of a step: equal factors from 0.1 to 5 %."""
    return 0.001 * 50 ** (step / STEPS)


def _set(slider, step: int) -> float:
    slider.slider.setValue(step)
    return slider.value
