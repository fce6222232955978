"""Whether products have to be chosen at all, by what whole models in reduced precision took."""

from __future__ import annotations

from collage_engine.records.precision import in_precision
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.contenders import is_secondary
from collage_engine.trials.contender import Contender
from tests.support.covers import candidate_on


def test_a_whole_model_in_reduced_precision_is_tried_with_the_first() -> None:
    plain = ToolchainInstance(toolchain="a")
    tuned = ToolchainInstance(toolchain="a", config=(("opt", "1"),))
    secondary = {
        name: is_secondary(Contender(name=name, kind="whole-model", cover=(candidate_on(i, (0,)),)))
        for name, i in {
            "plain": plain,
            "tuned": tuned,
            "reduced": in_precision(plain, "bfloat16"),
            "both": in_precision(tuned, "bfloat16"),
        }.items()
    }
    assert secondary == {"plain": False, "tuned": True, "reduced": False, "both": True}
