"""How much time a confirmation is predicted to need, and what it does with less."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from collage_engine.build.built import BuiltModule
from collage_engine.timing.repeated_looks import interval
from collage_engine.trials.confirmation import ConfirmationSettings
from collage_engine.trials.confirmation_plan import (
    LARGEST_SHARE,
    ROUND_S,
    WIDTH_FACTOR,
    Predicted,
    kept_back,
    plan_confirmation,
)
from collage_engine.trials.contender import Contender, ContenderResult
from collage_engine.trials.ranking import RANKING
from collage_engine.trials.whole_models import WholeModels
from tests.support.scripted_workers import cover

BUILT = BuiltModule(parts=(), kernels=(), libraries=(), environment={}, threads=1, spin=False)
SETTINGS = ConfirmationSettings()


def tried(
    name: str, us: float, *, scatter: float = 0.0, build_s: float = 4.0, load_s: float = 1.0
) -> ContenderResult:
    """A trial of five rounds that scatter by so much, as a share of the time."""
    rounds = tuple(us * (1 + scatter * k) for k in (-1.3, -0.84, 0.0, 0.84, 1.3))
    return ContenderResult(
        contender=Contender(name=name, kind="whole-model", cover=cover(name)),
        rounds_us=rounds,
        folder=Path("/module"),
        built=BUILT,
        build_s=build_s,
        load_s=load_s,
        from_trial=True,
    )


def known(*results: ContenderResult) -> WholeModels:
    return WholeModels(results=results)


@pytest.mark.parametrize("rounds", [16, 30, 40])
def test_the_width_of_an_interval_is_as_the_prediction_says(rounds: int) -> None:
    draw = np.random.default_rng(rounds)
    found = [interval(draw.normal(size=rounds).tolist(), RANKING.looks) for _ in range(400)]
    half = float(np.mean([(one.high - one.low) / 2 for one in found]))
    assert half * math.sqrt(rounds) == pytest.approx(WIDTH_FACTOR, rel=0.1)


def test_more_rounds_are_wanted_where_rounds_scatter() -> None:
    calm = Predicted(known(tried("a", 500.0, scatter=0.001))).rounds_wanted(SETTINGS)
    usual = Predicted(known(tried("a", 500.0, scatter=0.008))).rounds_wanted(SETTINGS)
    wild = Predicted(known(tried("a", 500.0, scatter=0.1))).rounds_wanted(SETTINGS)
    assert calm == (SETTINGS.selection_rounds, SETTINGS.fresh_rounds)
    assert calm < usual < wild == (SETTINGS.most_rounds, SETTINGS.most_rounds)


def test_those_that_withdraw_take_fewer_rounds() -> None:
    alone = Predicted(known(tried("a", 500.0))).rounds_s(0, SETTINGS)
    assert alone == pytest.approx(ROUND_S * (SETTINGS.selection_rounds + SETTINGS.fresh_rounds))
    beside_slow = Predicted(known(tried("a", 500.0), tried("b", 900.0))).rounds_s(0, SETTINGS)
    assert beside_slow - alone == pytest.approx(ROUND_S * 6)
    beside_near = Predicted(known(tried("a", 500.0), tried("b", 510.0))).rounds_s(0, SETTINGS)
    assert beside_near == pytest.approx(2 * alone)


def test_what_is_kept_follows_what_a_call_takes() -> None:
    fast, _ = kept_back(known(tried("a", 500.0)), 1000.0, 0)
    slow, _ = kept_back(known(tried("a", 3e5)), 1000.0, 0)
    assert slow > fast + 20
    assert slow - fast < 2 * SETTINGS.budget_s, "rounds are cut off at the confirmation's budget"


def test_a_fast_model_leaves_most_of_two_minutes_for_measuring() -> None:
    """Some models a few ms long, built in seconds: as ShuffleNet with a budget of 132 s."""
    models = known(
        tried("tvm", 4000.0, scatter=0.005, build_s=9.0, load_s=1.5),
        tried("onednn", 5500.0, scatter=0.005, build_s=1.0, load_s=1.0),
        tried("onnxruntime", 6000.0, scatter=0.005, build_s=1.0, load_s=1.0),
        tried("openvino", 6500.0, scatter=0.005, build_s=1.0, load_s=1.0),
    )
    confirming_s, _ = kept_back(models, 105.0, 0)
    assert confirming_s < 0.4 * 105


def test_where_there_is_little_time_measuring_keeps_its_share_of_it() -> None:
    models = known(tried("a", 3e5, build_s=60.0))
    confirming_s, exporting_s = kept_back(models, 40.0, 0)
    assert confirming_s == pytest.approx(LARGEST_SHARE * (40.0 - exporting_s))


def test_measuring_can_begin_though_a_full_confirmation_would_take_all_that_is_left() -> None:
    models = known(tried("a", 14.0, scatter=0.05), tried("b", 14.1, scatter=0.05))
    confirming_s, exporting_s = kept_back(models, 27.0, 0, worth_s=14.0)
    assert 27.0 - confirming_s - exporting_s == pytest.approx(14.0)
    barely_s, exporting_s = kept_back(models, 16.0, 0, worth_s=14.0)
    assert barely_s > 5, "one cover and the fastest whole model can be compared all the same"
    half_s, exporting_s = kept_back(models, 5.0, 0, worth_s=14.0)
    assert half_s == pytest.approx(LARGEST_SHARE * (5.0 - exporting_s)), "no more than there is"


def test_builders_start_once() -> None:
    """The first build of a worker imports the compiler and the model; the others do not."""
    models = known(tried("a", 14.0, build_s=6.0), *(tried(n, 15.0, build_s=1.0) for n in "bcd"))
    predicted = Predicted(models)
    assert predicted.builds_s(6) - predicted.builds_s(2) == pytest.approx(2 * 1.3)


def test_untried_baselines_wait_until_those_that_may_win_have_their_rounds() -> None:
    models = known(tried("a", 500.0, scatter=0.02), tried("b", 505.0, scatter=0.02))
    placement = Contender(name="collage", kind="collage", cover=cover("p"))
    greedy = Contender(name="greedy", kind="greedy", cover=cover("g"), order=9)
    everybody = [placement, *(one.contender for one in models.results), greedy]
    exact_s = Predicted(models).further_rounds_s(everybody, SETTINGS)
    assert exact_s > 10
    short = plan_confirmation(everybody, models, 12.0)
    assert [one.name for one in short.left_out] == ["greedy"]
    assert short.settings.most_reloaded == SETTINGS.most_reloaded, "processes are drawn again"
    assert not plan_confirmation(everybody, models, 60.0).left_out
