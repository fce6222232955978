"""One trial: times at the reference's first speed, what fails, what is between partitions."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest

from collage_engine.records.candidate import Candidate
from collage_engine.records.errors import Cancelled, ToolchainError
from collage_engine.trials.contender import Sample
from collage_engine.trials.proposals import Proposal, Trial
from collage_engine.trials.runner import TrialRunner
from tests.support.covers import candidate_on
from tests.support.scripted_workers import Script, cover, instance


@pytest.fixture
def script() -> Script:
    return Script()


def profiled(runner: TrialRunner, parts: tuple[Candidate, ...], **more: float) -> Trial:
    return runner.run(Proposal(cover=parts, profiles=5, **more))  # type: ignore[arg-type]


def part(name: str, place: int = 0) -> str:
    return candidate_on(instance(name), (place,)).id


def test_partitions_and_what_is_between_them_are_told_apart(script: Script, tmp_path: Path) -> None:
    with script.runner(tmp_path) as runner:
        trial = profiled(runner, cover("a", 2))
        assert trial.partitions_us == {part("a"): 5.0, part("a", 1): 5.0}
        assert trial.between_us == 1.5
        assert not trial.failures and trial.max_rel_error == 1e-6
        assert script.closed == []  # the reference stays until the end
    assert script.closed == ["a"]


def test_profiles_are_those_at_the_references_first_speed(script: Script, tmp_path: Path) -> None:
    with script.runner(tmp_path) as runner:
        profiled(runner, cover("a"))
        # The machine slows down, more and more; the reference is profiled beside each of them.
        script.slow = iter([1.5, 1.5, 2.0, 2.0, 3.0, 3.0, 5.0, 5.0, 7.0, 7.0])
        trial = profiled(runner, cover("b", 2))
    assert trial.partitions_us == pytest.approx({part("b"): 5.0, part("b", 1): 5.0})
    assert trial.between_us == pytest.approx(1.5)
    assert script.closed == ["b", "a"]


def test_partitions_without_a_kernel_take_nothing(script: Script, tmp_path: Path) -> None:
    script.views = {("a", 1)}
    with script.runner(tmp_path) as runner:
        assert profiled(runner, cover("a", 2)).partitions_us == {part("a"): 5.0, part("a", 1): 0.0}


def test_a_placement_of_views_only_is_no_reference_to_divide_by(
    script: Script, tmp_path: Path
) -> None:
    script.views = {("a", 0)}
    script.between_us = 0.0
    with script.runner(tmp_path) as runner:
        views, kernels = profiled(runner, cover("a")), profiled(runner, cover("b"))
        assert (views.partitions_us, views.between_us) == ({part("a"): 0.0}, 0.0)
        assert (kernels.partitions_us, kernels.between_us) == ({part("b"): 5.0}, 0.0)


def test_what_fails_is_a_sentence_and_ends_nothing(script: Script, tmp_path: Path) -> None:
    script.refuse_build["a"] = "x cannot take nn.conv3d"
    script.profile_raises["b"] = ToolchainError("the child ended with signal 11")
    with script.runner(tmp_path) as runner:
        assert profiled(runner, cover("a")).failures == ("x cannot take nn.conv3d",)
        assert profiled(runner, cover("b")).failure == "the child ended with signal 11"
        assert script.closed == ["b"]
        assert not profiled(runner, cover("d")).failures


def test_a_reference_that_fails_is_followed_by_the_next_placement(
    script: Script, tmp_path: Path
) -> None:
    with script.runner(tmp_path) as runner:
        profiled(runner, cover("a"))
        script.profile_raises["a"] = ToolchainError("the child is gone")
        assert not profiled(runner, cover("b", 2)).failures
        assert script.closed == ["a"]
        script.slow = itertools.repeat(3.0)
        trial = profiled(runner, cover("c"))
        assert trial.partitions_us[part("c")] == pytest.approx(5.0)
    assert script.closed == ["a", "c", "b"]


@pytest.mark.parametrize("which", ["a", "b"])
def test_cancelling_is_no_failure_of_a_placement(
    script: Script, tmp_path: Path, which: str
) -> None:
    with script.runner(tmp_path) as runner:
        profiled(runner, cover("a"))
        script.profile_raises[which] = Cancelled("stopped by the user")
        with pytest.raises(Cancelled):
            profiled(runner, cover("b"))
    assert sorted(script.closed) == ["a", "b"]


def test_a_cancel_stops_the_build(script: Script, tmp_path: Path) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with script.runner(tmp_path, cancelled=cancelled) as runner, pytest.raises(Cancelled):
        profiled(runner, cover("a"))


def test_only_the_error_may_be_wanted(script: Script, tmp_path: Path) -> None:
    script.errors["bad"] = (0.5, 0.25)
    with script.runner(tmp_path) as runner:
        good, bad = (runner.run(Proposal(cover=cover(name))) for name in ("good", "bad"))
        assert good == Trial(max_rel_error=1e-6)
        assert bad.max_rel_error == 0.25
        told = "wrong numbers in the output 'y': relative error 0.25, 0.0001 is allowed"
        assert bad.refused and bad.failures == (told,)
        assert not script.loaded and not script.rounds
        assert not list(tmp_path.rglob("model.so"))


def test_a_proposal_may_bring_its_own_tolerance(script: Script, tmp_path: Path) -> None:
    script.errors = {"a": (0.5, 0.25), "nonsense": (9.0, 9.0)}
    with script.runner(tmp_path) as runner:
        assert not runner.run(Proposal(cover=cover("a"), tolerance=1.0)).failures
        assert runner.run(Proposal(cover=cover("nonsense"), tolerance=1.0)).failures
        assert runner.run(Proposal(cover=cover("a"))).failures


def test_every_output_is_held_to_its_own_bound(script: Script, tmp_path: Path) -> None:
    one = np.ones(1, "float32")
    sample = Sample({"x": one}, {"y": one}, {"boxes": 1e-4, "scores": 1e-2, "ids": 0.0})
    script.outputs = {"boxes": "float32", "scores": "float32", "ids": "int32"}
    right = {"boxes": (5e-5, 5e-5), "scores": (5e-3, 5e-3), "ids": (0.0, 0.0)}
    script.errors = dict.fromkeys(("good", "bad", "shifted"), (0.5, 5e-3))
    script.output_errors["good"] = right
    script.output_errors["bad"] = right | {"boxes": (5e-3, 5e-3)}
    script.output_errors["shifted"] = right | {"ids": (14.0, 4.9e-8)}
    with script.runner(tmp_path, 1e-2, sample=sample) as runner:
        assert not runner.run(Proposal(cover=cover("good"))).failures
        (told,) = runner.run(Proposal(cover=cover("bad"))).failures
        assert (
            told == "wrong numbers in the output 'boxes': relative error 0.005, 0.0001 is allowed"
        )
        shifted = runner.run(Proposal(cover=cover("shifted")))
        assert shifted.refused and shifted.failures == (
            "wrong numbers in the output 'ids': off by 14 in int32",
        )
        # Whoever takes larger errors takes them of any output.
        assert not runner.run(Proposal(cover=cover("bad"), tolerance=1.0)).failures
