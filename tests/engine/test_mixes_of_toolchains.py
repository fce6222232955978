"""Mixes are tried for real: groups are profiled on each toolchain, and what follows is timed."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import onnx
import pytest

from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.budget import RunBudget
from collage_engine.control.run_control import RunControl
from collage_engine.records.event import Provisional
from collage_engine.records.settings import RunSettings
from collage_engine.run.stage import run_stages, take
from collage_engine.run.stages.enumerate import Enumerate
from collage_engine.run.stages.mixes import Mixing, MixInputs, MixResult, TryMixes
from collage_engine.run.stages.samples import DrawSamples
from collage_engine.run.stages.whole_models import TimeWholeModels
from collage_engine.trials.mixes import MixSettings
from tests.support.caches import fresh_cache
from tests.support.toolchain_models import convolutions

pytestmark = pytest.mark.slow

WHATEVER = MixSettings(least_gain=-math.inf, least_saving_us=-math.inf, least_group_share=0.0)
"""Mixes are tried whatever they promise."""


@pytest.fixture(scope="module")
def tried(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[MixInputs, MixResult, MixResult, list[Provisional]]]:
    """Inputs of the stage, its own result, that of mixes whatever they promise, and the answers."""
    folder: Path = tmp_path_factory.mktemp("mixes")
    onnx.save(convolutions(), folder / "model.onnx")
    answers: list[Provisional] = []

    def listen(event: object) -> None:
        if isinstance(event, Provisional):
            answers.append(event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLAGE_CACHE_DIR", str(fresh_cache(folder / "cache")))
        settings = RunSettings(toolchains=("tvm", "onednn"), threads=1, budget_s=300.0)
        opened = OpenModel(str(folder / "model.onnx"), {})
        with RunControl(listen, threading.Event(), threading.Event()) as control:
            facts = {
                "budget": RunBudget.of(settings, 0.0),
                "previous": None,
                "open_model": opened,
                "settings": settings,
                "pins": (),
                "out": None,
                "run_id": "run",
                "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            facts = dict(
                run_stages([Enumerate(), DrawSamples(), TimeWholeModels()], facts, control)
            )
            inputs = take(MixInputs, facts)
            alone = TryMixes().run(inputs, control)
            answers.clear()
            with control.stage("mixes") as report:
                result = Mixing(inputs, control, WHATEVER).run(240.0, report)
        yield inputs, alone, result, answers
        opened.close()


def test_a_model_of_few_candidates_is_left_to_the_search(tried) -> None:
    inputs, alone, _, _ = tried
    assert alone.whole_models is inputs.whole_models and alone.data is inputs.data


def test_a_mix_has_every_operator_once_and_right_numbers(tried) -> None:
    inputs, _, result, _ = tried
    mix = result.whole_models.results[-1]
    assert mix.contender.kind == "collage" and mix.reason is None
    operators = sorted(number for part in mix.contender.cover for number in part.nodes)
    assert operators == list(range(len(inputs.open_model.model.graph.operators)))
    assert mix.max_rel_error is not None and mix.max_rel_error < inputs.tolerance
    assert mix.measured_us is not None and mix.measured_us > 0


def test_its_module_is_kept_and_its_partitions_are_candidates(tried) -> None:
    _, _, result, _ = tried
    mix = result.whole_models.results[-1]
    assert mix.folder is not None and mix.folder.is_dir(), "a confirmation need not build it anew"
    for part in mix.contender.cover:
        assert result.data.by_id[part.id].key, "what it takes alone can be measured"


def test_it_is_announced_only_where_it_is_the_fastest(tried) -> None:
    _, _, result, answers = tried
    best = result.whole_models.best
    assert best is not None
    if best is result.whole_models.results[-1]:
        shown = answers[-1].run.placement
        assert shown is not None
        assert {part.candidate for part in shown.partitions} == {
            candidate.id for candidate in best.contender.cover
        }
    assert all(answer.run.winner == "collage" for answer in answers)
