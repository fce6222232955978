"""Whether products have to be chosen at all, by what whole models in reduced precision took."""

from __future__ import annotations

import math

import pytest

from collage_engine.records.precision import in_bfloat16
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.contenders import is_secondary
from collage_engine.run.stages.precision import ReducedWholeModels
from collage_engine.trials.contender import Contender
from tests.support.covers import candidate_on


@pytest.mark.parametrize(
    "kept, broken, us, best_us, has_to",
    [
        ({"a": 5e-3, "b": 4e-3}, {}, {"a": 50.0, "b": 60.0}, 50.0, False),
        ({}, {"a": 3e-2}, {"a": 50.0}, 100.0, True),
        ({}, {"a": 3e-2}, {"a": 120.0}, 100.0, False),
        ({"a": 5e-3}, {"b": 3e-2}, {"a": 50.0, "b": 60.0}, 50.0, False),
        ({"a": 5e-3}, {"b": 3e-2}, {"a": 50.0, "b": 40.0}, 50.0, True),
        ({}, {"a": 3e-2}, {}, 100.0, True),  # not timed: it may be faster
        ({}, {"a": math.inf}, {"a": 50.0}, math.inf, True),
        ({}, {}, {}, 100.0, True),  # none of them was reached
    ],
)
def test_products_are_chosen_where_something_faster_breaks_the_tolerance(
    kept: dict, broken: dict, us: dict, best_us: float, has_to: bool
) -> None:
    whole = ReducedWholeModels(kept=kept, broken=broken, us=us, full_us={}, best_us=best_us)
    assert (whole.nothing_to_choose() is None) == has_to


def test_a_whole_model_in_reduced_precision_is_tried_with_the_first() -> None:
    plain = ToolchainInstance(toolchain="a")
    tuned = ToolchainInstance(toolchain="a", config=(("opt", "1"),))
    secondary = {
        name: is_secondary(Contender(name=name, kind="whole-model", cover=(candidate_on(i, (0,)),)))
        for name, i in {
            "plain": plain,
            "tuned": tuned,
            "reduced": in_bfloat16(plain),
            "both": in_bfloat16(tuned),
        }.items()
    }
    assert secondary == {"plain": False, "tuned": True, "reduced": False, "both": True}
