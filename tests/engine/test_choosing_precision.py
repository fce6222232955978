"""The choice of products that may be rounded, with a race that says what their real error is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collage_engine.candidates.catalog import CandidateCatalog
from collage_engine.lowering.rounding_emulation import RoundingEmulation
from collage_engine.machine.device import processor
from collage_engine.machine.run_control import RunControl
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.precision import FULL, is_reduced
from collage_engine.records.settings import RunSettings
from collage_engine.run.contenders import before_precision, first_contenders, is_secondary
from collage_engine.run.stages import precision
from collage_engine.run.stages.enumerate import enumerate_candidates
from collage_engine.run.stages.precision import BOUND, MOST_BUILDS, choose_precision
from collage_engine.run.stages.samples import draw_samples
from collage_engine.run.task import RunSamples, RunState, RunTask
from collage_engine.support.errors import Cancelled
from collage_engine.trials.contender import Contender, ContenderResult
from tests.e2e.test_precision import network
from tests.support.caches import fresh_cache
from tests.support.stages import task_on

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "avx512_bf16" not in processor().flags, reason="the processor has no bfloat16 products"
    ),
]

Real = Callable[[Contender, int], float | None]
"""Returns the error of a contender, as a share of the tolerance, given how often its toolchain was
built before; None: there is no time for it."""


class Race:
    """Times nothing; says what errors contenders have."""

    def __init__(self, tolerance: float, real: Real) -> None:
        self.tolerance, self.real = tolerance, real
        self.tried: list[Contender] = []
        self.to_improve_s = 600.0
        self.clock = self.standings = self

    def results(self) -> tuple[()]:
        return ()

    def try_cover(self, contender: Contender, *, ends_at: float) -> ContenderResult:
        name = contender.cover[0].instance.toolchain
        before = sum(one.cover[0].instance.toolchain == name for one in self.tried)
        self.tried.append(contender)
        share = self.real(contender, before)
        if share is None:
            return ContenderResult(contender=contender, reason="no time", reached=False)
        error = share * self.tolerance
        if error > self.tolerance:
            return ContenderResult(contender=contender, max_rel_error=error, reason="too far off")
        us = {contender.cover[0].id: 100.0}
        return ContenderResult(contender=contender, max_rel_error=error, partitions_us=us)


@dataclass
class Opened:
    """The model before the choice."""

    task: RunTask
    catalog: CandidateCatalog
    inputs: SearchInputs
    samples: RunSamples
    control: RunControl

    @property
    def state(self) -> RunState:
        """Return what the run knows."""
        return RunState(self.task, self.control, self.catalog, self.inputs, self.samples)

    def choose(self, tolerance: float, real: Real) -> tuple[Any, Race]:
        """Choose under a tolerance; return what was chosen, and the race."""
        race: Any = Race(tolerance, real)
        bound = msgspec.structs.replace(self.samples.run_tolerance, value=tolerance)
        samples = replace(self.samples, run_tolerance=bound)
        state = replace(self.state, samples=samples)
        state.race = race
        return choose_precision(state), race


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder: Path = tmp_path_factory.mktemp("choosing")
    settings = RunSettings(
        toolchains=("onnxruntime", "tvm", "onednn"),
        threads=1,
        budget_s=600.0,
        precision="bfloat16",
        tolerance=1e-2,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLAGE_CACHE_DIR", str(fresh_cache(folder / "cache")))
        with task_on(network(), folder, settings) as (task, control):
            catalog, inputs = enumerate_candidates(task, control)
            samples = draw_samples(task, control)
            samples = replace(samples, all=(replace(samples.sample, bounds={}),))
            yield Opened(task, catalog, inputs, samples, control)


@pytest.fixture(scope="module")
def of_all(opened: Opened) -> float:
    """Return the emulated error with all products rounded."""
    emulation = RoundingEmulation(opened.task.open_model.model, "bfloat16", threads=1)
    sample = opened.samples.sample
    truth = [sample.truth[name] for name, _ in opened.task.open_model.model.outputs]
    return max(emulation.errors(emulation.products, sample.inputs, truth))


def test_a_first_answer_and_what_cannot_mix_enter_before(opened: Opened) -> None:
    all_of_them = first_contenders(opened.state)
    early = before_precision(all_of_them, opened.catalog)
    assert [one.name for one in early] == ["onnxruntime"]
    assert sum(one.reduced for one in all_of_them) >= 2


def test_everything_is_rounded_where_the_emulation_says_that_it_keeps(
    opened: Opened, of_all: float
) -> None:
    chosen, race = opened.choose(of_all / BOUND * 1.01, lambda contender, before: 0.9)
    assert [one.cover[0].instance.toolchain for one in race.tried] == ["onednn", "tvm"]
    assert not any(one.cover[0].instance.option(FULL) for one in race.tried)
    assert all(product.rounded for product in chosen.rounding.products)
    inputs = chosen.admitted(opened.task.open_model.model, opened.inputs, race)
    assert inputs.candidates == opened.inputs.candidates


def test_a_choice_that_breaks_the_tolerance_is_made_smaller_by_its_error(
    opened: Opened, of_all: float
) -> None:
    def real(contender: Contender, before: int) -> float:
        on_onednn = contender.cover[0].instance.toolchain == "onednn"
        return 1.5 if on_onednn and not before else 0.8

    chosen, race = opened.choose(0.8 * of_all, real)
    first, second = (one for one in chosen.rounding.tried if one.toolchain == "onednn")
    assert first.rounded > second.rounded > 0
    assert second.emulated_error < first.emulated_error <= BOUND * 0.8 * of_all
    allowed = chosen.allowed["onednn", "bfloat16"]
    assert (
        sum(product.operator in allowed for product in chosen.rounding.products) == second.rounded
    )
    inputs = chosen.admitted(opened.task.open_model.model, opened.inputs, race)
    left_out = {one.id for one in opened.inputs.candidates} - {one.id for one in inputs.candidates}
    assert left_out and all(is_reduced(opened.inputs.by_id[name].instance) for name in left_out)


def test_what_breaks_the_tolerance_again_and_again_is_given_up(
    opened: Opened, of_all: float
) -> None:
    chosen, race = opened.choose(0.8 * of_all, lambda contender, before: 1.01)
    builds = [one.cover[0].instance.toolchain for one in race.tried]
    assert max(map(builds.count, builds)) <= MOST_BUILDS
    assert not any(chosen.allowed.values())
    assert not any(product.rounded for product in chosen.rounding.products)


def test_what_there_was_no_time_for_enters_with_the_other_whole_models(
    opened: Opened, of_all: float
) -> None:
    def real(contender: Contender, before: int) -> float | None:
        return None if contender.cover[0].instance.toolchain == "tvm" else 0.8

    chosen, race = opened.choose(0.8 * of_all, real)
    assert chosen.unreached == (race.tried[-1],)
    assert chosen.unreached[0].cover[0].instance.toolchain == "tvm"
    assert chosen.unreached[0].eligible and not is_secondary(chosen.unreached[0])


def test_a_stage_that_ends_early_tells_what_it_knows(
    opened: Opened, of_all: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def over(*_: object) -> None:
        raise Cancelled("the time is over")

    monkeypatch.setattr(precision._Choosing, "_single_errors", over)
    chosen, race = opened.choose(0.8 * of_all, lambda contender, before: 0.5)
    assert not race.tried and not chosen.allowed
    ranks = [product.rank for product in chosen.rounding.products]
    assert ranks == [*reversed(range(len(ranks)))], "by depth"
    opened.control.cut_short.clear()
