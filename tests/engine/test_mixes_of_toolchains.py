"""Mixes are tried for real: groups are profiled on each toolchain, and what follows is timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.event import Provisional
from collage_engine.records.settings import RunSettings
from collage_engine.run.stages.enumerate import enumerate_candidates
from collage_engine.run.stages.samples import draw_samples
from collage_engine.run.stages.whole_models import enter_whole_models, open_race, whole_models
from collage_engine.run.task import RunState
from collage_engine.trials import mixes as mixes_module
from collage_engine.trials.contender import ContenderResult
from collage_engine.trials.mixes import try_mixes
from collage_engine.trials.race import Race
from tests.support.caches import fresh_cache
from tests.support.stages import task_on
from tests.support.toolchain_models import convolutions

pytestmark = pytest.mark.slow


@dataclass
class Tried:
    """The race, and what mixing found whatever the mixes promise."""

    race: Race
    tolerance: float
    inputs: SearchInputs
    mix: ContenderResult
    answers: list[Provisional]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tried]:
    folder: Path = tmp_path_factory.mktemp("mixes")
    answers: list[Provisional] = []

    def listen(event: object) -> None:
        if isinstance(event, Provisional):
            answers.append(event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLAGE_CACHE_DIR", str(fresh_cache(folder / "cache")))
        settings = RunSettings(toolchains=("tvm", "onednn"), threads=1, budget_s=300.0)
        with task_on(convolutions(), folder, settings, listen) as (task, control):
            catalog, inputs = enumerate_candidates(task, control)
            samples = draw_samples(task, control)
            state = RunState(task, control, catalog, inputs, samples)
            race = state.race = open_race(state)
            early, _ = whole_models(state, has_precision=False)
            inputs = enter_whole_models(state, early, "whole-models")
            answers.clear()
            patch.setattr(mixes_module, "TIE_SHARE", -100.0)
            patch.setattr(mixes_module, "FLOOR_US", -1e9)
            inputs = try_mixes(task.open_model.model, catalog, inputs, race, control)
            mixes = [
                one
                for one in race.standings.results()
                if one.contender.kind == "collage" and one.measured_us is not None
            ]
            mix = min(mixes, key=lambda one: one.measured_us or 0.0)
            yield Tried(race, samples.tolerance, inputs, mix, answers)


def test_a_mix_has_every_operator_once_and_right_numbers(tried: Tried) -> None:
    mix = tried.mix
    operators = sorted(number for part in mix.contender.cover for number in part.nodes)
    assert operators == list(range(len(tried.inputs.graph.nodes)))
    assert mix.max_rel_error is not None and mix.max_rel_error < tried.tolerance


def test_partitions_of_the_fastest_mix_are_candidates(tried: Tried) -> None:
    assert all(candidate.key for candidate in tried.inputs.candidates)
    assert {part.id for part in tried.mix.contender.cover} <= set(tried.inputs.by_id)


def test_who_leads_after_the_mixes_is_what_was_announced_last(tried: Tried) -> None:
    leader = tried.race.leader
    assert leader is not None
    # A whole model may overtake another one while mixes are timed.
    assert tried.answers or leader.contender.kind != "collage"
    for answer in tried.answers[-1:]:
        assert answer.run.placement is not None
        shown = {part.candidate for part in answer.run.placement.partitions}
        assert shown == {candidate.id for candidate in leader.contender.cover}
