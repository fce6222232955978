"""Trials of whole models: the first answer comes whatever the time, later ones only improve it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from collage_engine.build.built import MODULE_FILE
from collage_engine.records.cost import UNKNOWN, Cost
from collage_engine.run.stages.whole_models import replaces
from collage_engine.trials.contender import Contender
from collage_engine.trials.proposals import Proposal
from collage_engine.trials.rounds import shared_slowness, slowness
from collage_engine.trials.runner import NOT_REACHED
from collage_engine.trials.whole_models import TrialTime, WholeModels, time_whole_models
from tests.support.scripted_workers import Script, cover


@pytest.fixture
def script() -> Script:
    return Script()


def whole(name: str, partitions: int = 1) -> Contender:
    return Contender(name=name, kind="whole-model", cover=cover(name, partitions))


class Listener:
    """Gathers the answers, and gives as much time as a test says."""

    def __init__(self, *left_s: float) -> None:
        self.left_s = list(left_s)
        self.answers: list[str] = []

    def time(self) -> TrialTime:
        return TrialTime(left_s=self.left, on_answer=self.answer)

    def left(self) -> float:
        return self.left_s.pop(0) if len(self.left_s) > 1 else self.left_s[0]

    def answer(self, known: WholeModels) -> None:
        assert known.best is not None
        self.answers.append(known.best.contender.name)


def tried(script: Script, folder: Path, listener: Listener, *contenders: Contender) -> WholeModels:
    with script.runner(folder) as runner:
        return time_whole_models(runner, contenders, listener.time())


def test_each_faster_one_is_a_new_answer(script: Script, tmp_path: Path) -> None:
    script.us.update(a=300.0, b=200.0, c=250.0, d=100.0)
    listener = Listener(1e6)
    known = tried(script, tmp_path, listener, *map(whole, "abcd"))
    assert listener.answers == ["b", "d"]
    assert [one.contender.name for one in known.timed] == ["d", "b", "c", "a"]
    assert known.best is not None and known.best.measured_us == pytest.approx(100.0)
    assert not known.unreached
    assert script.most_loaded == 3, "the fastest so far beside two further ones; a is far slower"
    assert not script.loaded, "no process is left"


def test_without_any_time_one_is_timed_all_the_same(script: Script, tmp_path: Path) -> None:
    listener = Listener(0.0)
    known = tried(script, tmp_path, listener, *map(whole, "abcd"))
    assert len(listener.answers) == 1 and known.best is not None
    assert len(known.results) + len(known.unreached) == 4 and len(known.unreached) >= 2


def test_what_fails_is_no_answer_and_the_next_ones_are_tried(
    script: Script, tmp_path: Path
) -> None:
    script.refuse_build["a"] = "x cannot take nn.conv3d"
    script.errors["b"] = (1.0, 0.5)
    listener = Listener(0.0)
    known = tried(script, tmp_path, listener, *map(whole, "abcd"))
    assert listener.answers in (["c"], ["d"])
    reasons = {one.contender.name: one.reason for one in known.results}
    assert reasons["a"] == "x cannot take nn.conv3d"
    assert "wrong numbers" in (reasons["b"] or "")
    assert NOT_REACHED not in reasons.values(), "it is listed as unreached instead"


def test_one_that_may_not_win_is_timed_and_is_no_answer(script: Script, tmp_path: Path) -> None:
    script.us.update(a=10.0, b=100.0)
    listener = Listener(0.0)
    barred = replace(whole("a"), eligible=False)
    known = tried(script, tmp_path, listener, barred, whole("b"))
    assert listener.answers == ["b"]
    assert known.best is not None and known.best.contender.name == "b"


def test_a_build_that_hangs_ends_with_the_time_once_there_is_an_answer(
    script: Script, tmp_path: Path
) -> None:
    script.hang_in_build = {"c", "d"}
    listener = Listener(*[1e6] * 20, 0.0)
    known = tried(script, tmp_path, listener, *map(whole, "abcd"))
    assert known.best is not None and [one.name for one in known.unreached] == ["c", "d"]


def test_no_batch_begins_that_is_not_likely_to_end_in_time(script: Script, tmp_path: Path) -> None:
    listener = Listener(1e6, 1e6, 1e6, 1e6, 1e6, 1e-9)
    known = tried(script, tmp_path, listener, *map(whole, "abcdef"))
    assert 2 <= len(known.results) < 6
    assert [one.name for one in known.unreached] == list("abcdef")[len(known.results) :]


def test_variants_are_left_out_where_their_share_of_the_time_is_over(
    script: Script, tmp_path: Path
) -> None:
    given = replace(Listener(1e6).time(), is_wanted=lambda contender: contender.name in "ab")
    with script.runner(tmp_path) as runner:
        known = time_whole_models(runner, [*map(whole, "abcd")], given)
    assert [one.contender.name for one in known.results] == ["a", "b"]
    assert [one.name for one in known.unreached] == ["c", "d"]


def test_a_trial_leaves_a_module_of_others_where_it_is(script: Script, tmp_path: Path) -> None:
    known = tried(script, tmp_path / "one", Listener(1e6), whole("a"), whole("b"))
    with script.runner(tmp_path / "two", modules=known.modules) as runner:
        for name in "ab":  # the first one stays as the reference, the second one is discarded
            trial = runner.run(Proposal(cover=whole(name).cover, profiles=1))
            assert not trial.failures
    assert all((folder / MODULE_FILE).exists() for folder, _ in known.modules.values())
    assert sorted(script.built) == ["a", "b"], "nothing was built again"


def test_modules_are_kept_and_taken_by_another_runner(script: Script, tmp_path: Path) -> None:
    known = tried(script, tmp_path / "one", Listener(1e6), whole("a"), whole("b"))
    assert sorted(script.built) == ["a", "b"]
    with script.runner(tmp_path / "two", modules=known.modules) as runner:
        process = runner.process(whole("a"))
        runner.build([process])
        process.load()
        assert process.failure is None and process.loaded
    assert sorted(script.built) == ["a", "b"], "nothing was built again"


def test_several_partitions_are_profiled(script: Script, tmp_path: Path) -> None:
    known = tried(script, tmp_path, Listener(1e6), whole("a", 3), whole("b"))
    parts = {one.contender.name: one.parts_us for one in known.results}
    assert parts == {"a": (5.0, 5.0, 5.0), "b": ()}


def test_a_trial_replaces_a_cost_from_a_busy_moment_and_no_other() -> None:
    slow = Cost(state="measured", median_us=3550.0)
    wrong = Cost(state="invalid", reason="wrong numbers")
    assert replaces(1900.0, UNKNOWN, alone=False)
    assert replaces(1900.0, slow, alone=True)
    assert not replaces(3600.0, slow, alone=True), "what else the machine does adds time"
    assert not replaces(1900.0, slow, alone=False), "a part of a trial is no isolated cost"
    assert not replaces(1900.0, wrong, alone=True)


def test_two_that_ran_together_are_compared_round_by_round(script: Script, tmp_path: Path) -> None:
    script.us.update(
        a=lambda number: 1000.0 * (1 + number % 2),  # what slows the machine slows both
        b=lambda number: 1010.0 * (1 + number % 2),
    )
    known = tried(script, tmp_path, Listener(1e6), whole("a"), whole("b"))
    assert known.best is not None and known.best.contender.name == "a"
    apart = known.differences()["b"]
    assert apart.rounds == 5 and apart.high_us < 0.0, "paired, they are told apart"
    assert apart.us == pytest.approx(-10.0)


def test_who_did_not_run_with_the_fastest_is_compared_through_who_ran_with_both(
    script: Script, tmp_path: Path
) -> None:
    script.us.update(a=300.0, b=200.0, c=250.0, d=100.0)
    known = tried(script, tmp_path, Listener(1e6), *map(whole, "abcd"))
    apart = known.differences()
    assert set(apart) == {"a", "b", "c"}, "d is the fastest"
    assert apart["b"].us == pytest.approx(-100.0)
    assert apart["a"].us == pytest.approx(-200.0), "a ran with b, and b with d"
    assert apart["a"].coverage == pytest.approx(2 * apart["b"].coverage - 1)
    assert not any(one.tied for one in apart.values())


def test_a_slow_stretch_of_the_machine_is_no_time_of_who_ran_in_it(
    script: Script, tmp_path: Path
) -> None:
    """The second of three pairs met a machine that was slower by half, with the two before it."""

    def slow_later(us: float) -> Callable[[int], float]:
        return lambda number: us * (1.5 if 5 <= number < 10 else 1.0)  # its second five rounds

    script.us.update(
        a=slow_later(230.0),
        b=slow_later(200.0),
        c=240.0 * 1.5,
        d=lambda number: 220.0 * (1.5 if number < 5 else 1.0),
        e=235.0,
        f=225.0,
    )
    known = tried(script, tmp_path, Listener(1e6), *map(whole, "abcdef"))
    took = {one.contender.name: one.measured_us for one in known.timed}
    assert list(took) == ["b", "d", "f", "a", "e", "c"], "in the order of what they usually take"
    usual = {"a": 230.0, "b": 200.0, "c": 240.0, "d": 220.0, "e": 235.0, "f": 225.0}
    assert took == pytest.approx(usual)
    assert script.most_loaded == 4, "the two fastest so far beside two further ones"
    assert known.best is not None
    assert min(known.sets[1][known.best.contender.key]) == pytest.approx(300.0), "as measured"


def test_the_bad_luck_of_one_process_makes_no_other_seem_faster(
    script: Script, tmp_path: Path
) -> None:
    """The fastest so far becomes slower by half, while all others take what they always did."""
    script.us.update(
        a=230.0, b=lambda number: 200.0 * (1.5 if number >= 5 else 1.0), c=225.0, d=220.0
    )
    listener = Listener(1e6)
    known = tried(script, tmp_path, listener, *map(whole, "abcd"))
    took = {one.contender.name: one.measured_us for one in known.timed}
    assert {name: took[name] for name in "acd"} == pytest.approx({"a": 230, "c": 225, "d": 220})
    assert min(us for us in took.values() if us) > 199.9, "no time that nobody measured"


def test_the_usual_speed_is_the_middle_one() -> None:
    assert slowness([]) == []
    assert slowness([{"a": [100.0, 102.0]}]) == [1.0]
    slow = {"a": [150.0], "b": [165.0]}
    assert slowness([slow, {"a": [100.0], "b": [110.0], "c": [90.0]}]) == pytest.approx([1.5, 1.0])
    three = [slow, {"a": [100.0], "b": [110.0]}, {"a": [100.0, 101.0, math.nan], "b": [110.0]}]
    assert slowness(three) == pytest.approx([1.5, 1.0, 1.0], abs=0.01)
    assert slowness([{"a": [100.0]}, {"b": [400.0]}]) == [1.0, 1.0], "nobody took part in both"


def test_the_machine_was_as_slow_as_everyone_says_and_one_alone_does_not_count() -> None:
    assert shared_slowness([]) == shared_slowness([1.5]) == 1.0
    assert shared_slowness([1.5, 1.2, 1.3]) == pytest.approx(1.2)
    assert shared_slowness([0.5, 0.8]) == pytest.approx(0.8)
    assert shared_slowness([1.5, 0.9]) == 1.0, "they do not agree"
