"""Which products are rounded: the most valuable set within the bound, in few evaluations."""

from __future__ import annotations

import math
import random

import pytest

from collage_engine.records.graph import OperatorNumber
from collage_engine.trials.product_choice import EVALUATIONS, Products, choose_products


class Model:
    """A model whose products' errors add as the root of the sum of squares, off by a factor."""

    def __init__(self, errors: dict[int, float], factor: float = 1.0) -> None:
        self.errors = {number: error for number, error in errors.items()}
        self.factor = factor
        self.evaluated: list[Products] = []

    def __call__(self, products: Products) -> float:
        self.evaluated.append(products)
        return self.factor * math.sqrt(sum(self.errors[number] ** 2 for number in products))


def even(values: dict[int, float]) -> dict[OperatorNumber, float]:
    return {number: value for number, value in values.items()}


def test_all_products_where_all_keep_the_bound() -> None:
    model = Model(dict.fromkeys(range(8), 0.1))
    found = choose_products(even(dict.fromkeys(range(8), 1.0)), model.errors, model, 0.9)
    assert found.products == frozenset(range(8))
    assert found.error == pytest.approx(0.1 * math.sqrt(8))
    assert found.value == 8


def test_of_nearly_equal_value_the_contiguous_set_is_taken() -> None:
    errors = {number: 0.1 + 0.001 * (number % 2) for number in range(100)}
    model = Model(errors)
    found = choose_products(even(dict.fromkeys(range(100), 1.0)), model.errors, model, 0.9)
    assert len(found.products) >= 75
    assert found.products == frozenset(range(100 - len(found.products), 100))
    assert found.error <= 0.9


@pytest.mark.parametrize("factor", [0.4, 0.8, 1.25, 1.7])
@pytest.mark.parametrize("seed", range(10))
def test_near_the_best_prefix_when_errors_add_otherwise(factor: float, seed: int) -> None:
    draw = random.Random(seed)
    model = Model({number: draw.lognormvariate(-2, 1) for number in range(60)}, factor)
    values = even({number: draw.uniform(0.5, 2) for number in range(60)})
    found = choose_products(values, model.errors, model, 0.9)
    assert found.error <= 0.9
    assert len(model.evaluated) <= 3 * EVALUATIONS
    order = sorted(values, key=lambda number: model.errors[number] ** 2 / values[number])
    longest = max(k for k in range(61) if model(frozenset(order[:k])) <= 0.9)
    assert found.value >= 0.85 * sum(values[number] for number in order[:longest])


def test_without_single_errors_the_search_is_by_depth() -> None:
    model = Model(dict.fromkeys(range(32), 0.3))
    found = choose_products(even(dict.fromkeys(range(32), 1.0)), None, model, 0.9)
    assert found.error <= 0.9
    assert found.products == frozenset(range(32 - len(found.products), 32))
    assert len(found.products) in (8, 9)
