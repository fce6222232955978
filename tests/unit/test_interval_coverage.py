"""Intervals of a median hold it as often as they say."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from collage_engine.timing.order_statistics import MedianInterval, percentile, sign_test_interval
from collage_engine.timing.repeated_looks import Looks, interval
from collage_engine.trials.confirmation import confirm
from collage_engine.trials.contender import Contender
from tests.support.scripted_workers import Script, cover

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


SERIES = 1500
LOOKS = Looks(first=9, last=60)


def independent(dice: np.random.Generator) -> np.ndarray:
    """Normal noise."""
    return dice.normal(size=LOOKS.last)


def heavy_tailed(dice: np.random.Generator) -> np.ndarray:
    """Student's t of two degrees of freedom, whose variance is infinite."""
    return dice.standard_t(2, size=LOOKS.last)


def correlated(dice: np.random.Generator) -> np.ndarray:
    """Each value remembers 0.15 of the one before: successive signs are correlated by 0.1."""
    values = dice.normal(size=LOOKS.last)
    for k in range(1, len(values)):
        values[k] = 0.15 * values[k - 1] + (1 - 0.15**2) ** 0.5 * values[k]
    return values


def correlated_bursts(dice: np.random.Generator) -> np.ndarray:
    """The same, where one value in ten is twenty times as far from the median."""
    return correlated(dice) * np.where(dice.random(LOOKS.last) < 0.1, 20.0, 1.0)


def held_at_every_look(
    values: np.ndarray, find: Callable[[list[float]], MedianInterval], median: float = 0.0
) -> bool:
    """Whether every interval that is asked for while these values arrive holds the median."""
    for count in range(LOOKS.first, LOOKS.last + 1):
        found = find(values[:count].tolist())
        if not found.low <= median <= found.high:
            return False
    return True


@pytest.mark.parametrize("draw", [independent, heavy_tailed, correlated, correlated_bursts])
def test_intervals_of_repeated_looks_all_hold_the_median_as_often_as_they_say(
    draw: Callable[[np.random.Generator], np.ndarray],
) -> None:
    dice = np.random.default_rng(5)
    series = [draw(dice) for _ in range(SERIES)]
    held = sum(held_at_every_look(one, lambda v: interval(v, LOOKS)) for one in series) / SERIES
    stated = interval([0.0] * LOOKS.last, LOOKS).coverage
    assert 0.95 <= stated < 0.96
    assert held >= stated - 0.012  # two standard deviations of a share of so many series


def test_intervals_of_single_looks_miss_the_median_when_they_are_asked_for_again() -> None:
    dice = np.random.default_rng(5)
    series = [independent(dice) for _ in range(SERIES // 3)]
    held = sum(held_at_every_look(one, sign_test_interval) for one in series) / len(series)
    assert held < 0.85


def test_intervals_of_repeated_looks_find_a_difference_in_time() -> None:
    """They are wider than those of a single look, but not so wide that nothing is ever decided."""
    dice = np.random.default_rng(6)
    found = [interval((1.0 + independent(dice)).tolist(), LOOKS).low > 0 for _ in range(200)]
    assert sum(found) > 180


@pytest.mark.parametrize(("count", "coverage"), [(1, 0.0), (2, 0.45), (3, 0.6975), (8, 0.9848)])
def test_fewer_values_than_the_first_look_give_their_range(count: int, coverage: float) -> None:
    found = interval([float(k) for k in range(count)], LOOKS)
    assert (found.low, found.high) == (0.0, count - 1.0)
    assert found.coverage == pytest.approx(coverage, abs=1e-4)


@pytest.mark.parametrize("count", [3, 9, 25, 64])
def test_a_single_look_at_independent_values_is_the_sign_test(count: int) -> None:
    values = [float(k) for k in range(count)]
    ours, known = interval(values, None, correlation=0.0), sign_test_interval(values)
    assert (ours.low, ours.high) == (known.low, known.high)
    assert ours.coverage == pytest.approx(known.coverage)


def test_more_values_than_the_last_look_change_no_coverage() -> None:
    few, many = (interval([0.0] * count, LOOKS) for count in (60, 200))
    assert few.coverage == many.coverage


def test_differences_of_a_confirmation_hold_the_truth_as_often_as_they_say(tmp_path: Path) -> None:
    """Rounds are added to the selection while a tie is wide, and the winner may be changed."""
    dice = random.Random(1)
    held, stated, rounds = [], [], []
    for number in range(150):
        script = Script()
        script.us["a"] = script.us["b"] = lambda _: dice.gauss(100.0, 3.0)
        both = [Contender(name=name, kind="collage", cover=cover(name)) for name in "ab"]
        with script.runner(tmp_path / str(number)) as runner:
            (apart,) = confirm(runner, both).differences.values()
        held.append(apart.tied)
        stated.append(apart.coverage)
        rounds.append(apart.rounds)
    assert min(stated) >= 0.95 and max(rounds) > 20
    assert sum(held) / len(held) >= 0.93
