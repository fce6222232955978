"""Intervals of a median hold it as often as they say."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from collage_engine.timing.order_statistics import percentile, sign_test_interval

DRAWS = 3000


def skewed(dice: random.Random) -> float:
    """Exponential; its median is log 2."""
    return dice.expovariate(1.0)


def normal(dice: random.Random) -> float:
    """Normal; its median is 0.7."""
    return dice.gauss(0.7, 1.0)


MEDIANS = {skewed: float(np.log(2)), normal: 0.7}


def test_percentiles_interpolate() -> None:
    values = [3.0, 1.0, 2.0, 5.0, 4.0]
    assert [percentile(values, p) for p in (0, 50, 80, 100)] == [1, 3, 4.2, 5]
    assert percentile(values, 37) == pytest.approx(np.percentile(values, 37))


@pytest.mark.parametrize(
    ("count", "coverage"), [(1, 0.0), (2, 0.5), (3, 0.75), (5, 0.9375), (6, 0.96875)]
)
def test_few_values_give_their_range_and_say_how_little_it_covers(
    count: int, coverage: float
) -> None:
    found = sign_test_interval([float(k) for k in range(count)])
    assert (found.low, found.high) == (0.0, count - 1.0)
    assert found.coverage == pytest.approx(coverage)


@pytest.mark.parametrize(("count", "skipped"), [(7, 0), (8, 0), (9, 1), (12, 2), (64, 23)])
def test_more_values_give_the_shortest_interval_of_the_coverage(count: int, skipped: int) -> None:
    found = sign_test_interval([float(k) for k in range(count)])
    assert (found.low, found.high) == (skipped, count - 1 - skipped)
    assert found.coverage >= 0.95


@pytest.mark.parametrize("count", [3, 7, 9, 25])
@pytest.mark.parametrize("draw", [normal, skewed], ids=["normal", "skewed"])
def test_an_interval_holds_the_true_median_as_often_as_it_says(
    draw: Callable[[random.Random], float], count: int
) -> None:
    dice = random.Random(count)
    held = 0
    for _ in range(DRAWS):
        found = sign_test_interval([draw(dice) for _ in range(count)])
        held += found.low <= MEDIANS[draw] <= found.high
    assert held / DRAWS == pytest.approx(found.coverage, abs=0.02)
