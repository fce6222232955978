"""The race, with scripted processes in place of real ones."""

from __future__ import annotations

import math
import random
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from collage_engine.lowering.build import BuildCover
from collage_engine.planning.search_inputs import RUNNERS_UP
from collage_engine.records.candidate import UNKNOWN, Cost
from collage_engine.run.stages.whole_models import replaces
from collage_engine.support.errors import Cancelled, ToolchainError
from collage_engine.trials import race as race_module
from collage_engine.trials.contender import Contender, Sample
from collage_engine.trials.race import Race
from collage_engine.trials.race_clock import (
    MOST_RUNS_OF_LAYERS,
    RUNS_PER_PROFILE,
    layers_s,
    runs_of_layers,
)
from collage_engine.trials.standings import (
    COMMON_ROUNDS,
    ENOUGH_ROUNDS,
    MOST_ROUNDS,
    is_as_fast,
)
from collage_engine.trials.trial_job import TrialJob
from tests.support.scripted_workers import Script, cover


@pytest.fixture
def script():
    return Script()


def contender(name, partitions=1, kind="collage", **more):
    return Contender(name=name, kind=kind, cover=cover(name, partitions), **more)


class Clock:
    """A clock that the script moves: each reading takes a moment."""

    def __init__(self, step_s=0.0):
        self.now = 0.0
        self.step_s = step_s

    def __call__(self):
        self.now += self.step_s
        return self.now


@contextmanager
def race(script, tmp_path, *, ends_at=1e9, clock=None, runner=None, **more):
    with script.bench(tmp_path, **(runner or {})) as bench:
        yield Race(bench, ends_at, clock=clock or Clock(), seed=1, **more)


def raced(script, tmp_path, *contenders):
    """Return the result of a race of contenders that enter together."""
    with race(script, tmp_path) as going:
        going.enter(contenders)
        return going.finish()


def noisy(us, seed=0, share=0.004):
    """Return a script of rounds that scatter a little."""
    draw = random.Random(seed)
    return lambda _: us * (1 + share * draw.uniform(-1, 1))


def result_of(found, name):
    return next(one for one in found.results if one.contender.name == name)


def test_a_clearly_slower_contender_leaves_after_six_common_rounds(script, tmp_path):
    script.us.update({"fast": noisy(100.0, 1), "slow": noisy(112.0, 2)})
    with race(script, tmp_path) as going:
        going.enter([contender("fast"), contender("slow")])
        assert [one.contender.name for one in going.standings.present] == ["fast"]
        assert script.rounds == {"fast": 2 * COMMON_ROUNDS, "slow": COMMON_ROUNDS}
        found = going.finish()
    assert found.winner.contender.name == "fast"
    assert result_of(found, "slow").measured_us / found.winner.measured_us == pytest.approx(
        1.12, rel=0.01
    )
    assert script.opened["slow"] == 1, "bad luck with a process makes no 12 %"
    assert not script.loaded, "every process was ended"


def test_two_percent_are_no_reason_to_leave(script, tmp_path):
    script.us.update({"fast": noisy(100.0, 1), "near": noisy(102.0, 2)})
    with race(script, tmp_path) as going:
        going.enter([contender("near"), contender("fast", 3)])
        assert len(going.standings.present) == 2
        found = going.finish()
    assert found.winner.contender.name == "fast", "no tie: two percent are more than one"
    assert found.named == "collage" and found.tied == ()


@pytest.mark.parametrize(("share", "goes_on"), [(0.002, False), (0.1, True)])
def test_the_race_goes_on_while_its_leader_is_not_decided(script, tmp_path, share, goes_on):
    with race(script, tmp_path) as going:
        going.enter([contender("fast"), contender("near")])
        for entry, us, seed in zip(going.standings.present, (100.0, 101.6), (1, 2), strict=True):
            draw = noisy(us, seed, share=share)
            entry.rounds = {number: (1, draw(number)) for number in range(ENOUGH_ROUNDS)}
        going.standings.lead()
        assert not going.standings.is_settled(ENOUGH_ROUNDS - 1)
        assert going.standings.is_settled(ENOUGH_ROUNDS) != goes_on
        assert going.standings.is_settled(MOST_ROUNDS)


def test_of_two_that_are_as_fast_the_one_with_fewer_partitions_wins(script, tmp_path):
    script.us.update({"mix": noisy(99.5, 1), "tvm": noisy(100.0, 2)})
    found = raced(script, tmp_path, contender("mix", 5), contender("tvm", kind="whole-model"))
    assert found.named == "tvm" and found.tied == ("mix",)


@pytest.mark.parametrize(
    ("one", "other", "is_tie"),
    [
        ((1010.0, 1000.0, 3000.0, 1020.0), (1780.0,) * 4, False),  # three of four are far apart
        ((318.0, 403.0, 547.0, 403.0), (471.0, 487.0, 440.0, 398.0), True),  # in no order
    ],
)
def test_few_rounds_tell_apart_what_is_so_in_most(script, tmp_path, one, other, is_tie):
    """As in a quick confirmation on a busy machine, where a round may be slow by chance."""
    with race(script, tmp_path) as going:
        going.enter([contender("one"), contender("other")])
        for entry, rounds in zip(going.standings.present, (one, other), strict=True):
            entry.rounds = {number: (1, us) for number, us in enumerate(rounds)}
        first, second = going.standings.present
        assert is_as_fast(second, first) == is_tie


def test_equal_covers_are_one_contender_with_all_of_its_names(script, tmp_path):
    same = cover("tvm")
    with race(script, tmp_path) as going:
        going.enter([Contender(name="collage", kind="collage", cover=same)])
        going.enter(
            [
                Contender(name="tvm", kind="whole-model", cover=same),
                Contender(name="greedy tvm", kind="greedy", cover=same),
                contender("other", kind="whole-model"),
            ]
        )
        found = going.finish()
    assert script.opened["tvm"] >= 1 and script.built.count("tvm") == 1
    assert [one.contender.name for one in found.results] == ["tvm", "other"]
    assert result_of(found, "tvm").names == ("greedy tvm",)


def test_no_time_of_another_moment_decides(script, tmp_path):
    """The machine is slower by half when the second one enters; it is faster all the same."""
    slow = 1.0
    script.us["first"] = lambda _: 100.0 * slow
    script.us["second"] = lambda _: 92.0 * slow
    with race(script, tmp_path) as going:
        going.enter([contender("first", kind="whole-model")])
        slow = 1.5
        going.enter([contender("second", 3)])
        assert going.leader.contender.name == "second"
        found = going.finish()
    assert found.winner.contender.name == "second"
    assert found.winner.measured_us == pytest.approx(138.0)
    assert result_of(found, "first").measured_us == pytest.approx(150.0)


def test_the_luck_of_a_process_does_not_win(script, tmp_path):
    """What lies well in memory in one process does not in the next."""
    script.us["lucky"] = lambda _: 94.0 if script.opened["lucky"] == 1 else 106.0
    script.us["steady"] = 98.0
    found = raced(script, tmp_path, contender("lucky", 3), contender("steady"))
    assert found.winner.contender.name == "steady"
    assert script.opened == {"lucky": 2, "steady": 3}


def test_the_bad_luck_of_a_process_does_not_lose(script, tmp_path):
    """Who has left for being eight percent slower is loaded again before the winner is chosen."""
    script.us["unlucky"] = lambda _: 108.0 if script.opened["unlucky"] == 1 else 90.0
    with race(script, tmp_path) as going:
        going.enter([contender("unlucky"), contender("steady")])
        assert [one.contender.name for one in going.standings.present] == ["steady"]
        found = going.finish()
    assert found.winner.contender.name == "unlucky"
    assert found.winner.measured_us == pytest.approx(90.0)


def test_a_few_at_most_are_loaded_again(script, tmp_path):
    with race(script, tmp_path) as going:
        going.enter([contender(f"c{k}") for k in range(2 * RUNNERS_UP + 2)])
        going.finish()
    assert sum(count > 1 for count in script.opened.values()) == RUNNERS_UP + 1


def test_the_winner_is_timed_in_a_fresh_process(script, tmp_path):
    script.us["tvm"] = lambda _: 100.0 if script.opened["tvm"] == 1 else 104.0
    with race(script, tmp_path) as going:
        going.enter([contender("tvm", 2), contender("slow")])
        script.us["slow"] = 150.0
        found = going.finish()
    assert found.fresh and found.winner.measured_us == pytest.approx(104.0)
    assert found.winner.memory.peak_bytes == 1 << 20
    assert found.in_model_us == {0: 5.0, 1: 5.0}
    assert (found.winner.folder / "model.so").is_file()


def test_a_winner_that_fails_in_its_fresh_process_does_not_win(script, tmp_path):
    script.us["fast"] = 50.0
    with race(script, tmp_path) as going:
        going.enter([contender("fast"), contender("slow", kind="whole-model")])
        script.crash_in_round["fast"] = script.rounds["fast"] + 3
        found = going.finish()
    assert found.winner.contender.name == "slow" and found.fresh
    assert "SIGSEGV" in result_of(found, "fast").reason


@pytest.mark.parametrize("at", [0, 3])
def test_the_crash_of_a_contender_ends_its_part_only(script, tmp_path, at):
    script.us["fast"] = 50.0
    script.crash_in_round["fast"] = at
    found = raced(script, tmp_path, contender("fast"), contender("slow"))
    assert found.winner.contender.name == "slow"
    assert "SIGSEGV" in result_of(found, "fast").reason


def test_wrong_numbers_and_refusals_are_told(script, tmp_path):
    script.errors["wrong"] = (1.0, 0.5)
    script.refuse_build["refused"] = "it takes no Loop"
    with race(script, tmp_path) as going:
        going.enter([contender("wrong"), contender("refused")])
        assert going.leader is None
        with pytest.raises(ToolchainError, match="it takes no Loop") as caught:
            going.finish()
    assert "wrong numbers" in str(caught.value)


def test_the_race_goes_on_until_there_is_an_answer(script, tmp_path):
    script.refuse_build.update({"a": "no", "b": "no"})
    clock = Clock(step_s=0.01)
    answers = []
    with race(
        script, tmp_path, ends_at=0.0, clock=clock, on_answer=lambda: answers.append(clock.now)
    ) as going:
        going.enter([contender(name) for name in "abcdef"])
        found = going.finish()
    assert found.winner.contender.name in "cd" and not found.fresh and len(answers) == 1
    assert found.left_out >= 2, "those after the first that ran were not begun"
    assert result_of(found, "e").reason and not result_of(found, "e").reached


def test_a_race_that_is_to_end_keeps_its_leader(script, tmp_path):
    keep = threading.Event()
    script.us["fast"] = 50.0
    with race(script, tmp_path, keep=keep) as going:
        going.enter([contender("slow"), contender("fast")])
        keep.set()
        going.enter([contender("late")])
        found = going.finish()
    assert found.winner.contender.name == "fast" and not found.fresh
    assert found.winner.measured_us == pytest.approx(50.0)
    assert "late" not in script.built


def test_a_cancel_ends_everything(script, tmp_path):
    cancelled = threading.Event()
    with race(script, tmp_path, runner={"cancelled": cancelled}) as going:
        going.enter([contender("a")])
        cancelled.set()
        with pytest.raises(Cancelled):
            going.enter([contender("b")])
    assert not script.loaded


def test_who_may_not_be_exported_is_timed_and_does_not_lead(script, tmp_path):
    script.us["barred"] = 50.0
    barred = contender("barred", kind="whole-model", barred="it breaks a pin")
    found = raced(script, tmp_path, barred, contender("ours"))
    assert found.winner.contender.name == "ours"
    assert result_of(found, "barred").measured_us == pytest.approx(50.0)
    assert result_of(found, "barred").contender.barred == "it breaks a pin"


def test_what_is_timed_apart_is_no_contender(script, tmp_path):
    script.us.update({"full": 100.0, "half": 60.0})
    half = contender("half", kind="whole-model", barred="it is timed only")
    with race(script, tmp_path) as going:
        going.enter([contender("full")])
        assert going.time_without_entering([half], ends_at=1e9) == {"half": pytest.approx(60.0)}
        assert [one.contender.name for one in going.standings.present] == ["full"]
        found = going.finish()
    assert [one.contender.name for one in found.results] == ["full"]


def test_memory_bounds_how_many_are_loaded(script, tmp_path, monkeypatch):
    monkeypatch.setattr(race_module, "most_loaded", lambda *_: 3)
    with race(script, tmp_path) as going:
        script.us.update({f"c{k}": 100.0 + k / 10 for k in range(8)})
        going.enter([contender(f"c{k}") for k in range(8)])
    assert script.most_loaded == 3


def part(name, place=0):
    return cover(name, place + 1)[place].id


def test_partitions_and_what_is_between_them_are_told_apart(script, tmp_path):
    script.views = {("a", 1)}
    with race(script, tmp_path) as going:
        trial = going.try_cover(contender("a", 3))
        assert trial.partitions_us == {part("a"): 5.0, part("a", 1): 0.0, part("a", 2): 5.0}
        assert trial.between_us == 1.5
        assert going.standings.call_us == 2.5, "what a call does besides"
        assert trial.reason is None and trial.max_rel_error == 1e-6
        assert [one.contender.cover for one in going.standings.profiled()] == [cover("a", 3)]
        whole = going.try_cover(contender("b"))
    assert whole.partitions_us == pytest.approx({part("b"): 100.0})


def test_a_profile_that_fails_leaves_what_was_timed(script, tmp_path):
    script.profile_raises["b"] = ToolchainError("the child ended with signal 11")
    with race(script, tmp_path) as going:
        trial = going.try_cover(contender("b", 2))
        assert not trial.partitions_us and trial.reason is None
        assert going.leader.contender.name == "b"


def test_every_output_is_held_to_its_own_bound(script, tmp_path):
    one = np.ones(1, "float32")
    sample = Sample({"x": one}, {"y": one}, {"boxes": 1e-4, "scores": 1e-2, "ids": 0.0})
    script.outputs = {"boxes": "float32", "scores": "float32", "ids": "int32"}
    right = {"boxes": (5e-5, 5e-5), "scores": (5e-3, 5e-3), "ids": (0.0, 0.0)}
    script.errors = dict.fromkeys(("good", "bad", "shifted"), (0.5, 5e-3))
    script.output_errors["good"] = right
    script.output_errors["bad"] = right | {"boxes": (5e-3, 5e-3)}
    script.output_errors["shifted"] = right | {"ids": (14.0, 4.9e-8)}
    with race(script, tmp_path, runner={"tolerance": 1e-2, "sample": sample}) as going:
        assert going.try_cover(contender("good")).reason is None
        bad, shifted = going.try_cover(contender("bad")), going.try_cover(contender("shifted"))
        assert bad.max_rel_error == 5e-3 and bad.reason == (
            "wrong numbers in the output 'boxes': relative error 0.005, 0.0001 is allowed"
        )
        assert shifted.reason == "wrong numbers in the output 'ids': off by 14 in int32"


def test_what_cannot_be_tried_for_want_of_time_is_no_contender(script, tmp_path):
    with race(script, tmp_path) as going:
        going.enter([contender("a")])
        assert going.try_cover(contender("b", 2), ends_at=0.0).reason
        found = going.finish()
    assert [one.contender.name for one in found.results] == ["a"] and found.left_out == 0


REQUESTS = [BuildCover, TrialJob.open, TrialJob.round, TrialJob.profile]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda kind: kind.__name__)
def test_a_process_that_is_killed_from_outside_is_started_again(script, tmp_path, request_):
    script.kills.append(("only", request_))
    found = raced(script, tmp_path, contender("only", 2))
    assert found.winner.contender.name == "only" and found.in_model_us == {0: 5.0, 1: 5.0}
    assert not script.kills and not script.loaded


@pytest.mark.parametrize("request_", REQUESTS[:3], ids=lambda kind: kind.__name__)
def test_one_that_is_killed_again_and_again_is_left_out(script, tmp_path, request_):
    script.kills += [("often", request_)] * 2
    found = raced(script, tmp_path, contender("often"), contender("tvm", kind="whole-model"))
    assert found.named == "tvm"
    assert result_of(found, "often").reason == "tvm: killed by SIGKILL"


def test_a_build_that_hangs_ends_with_the_time_once_there_is_an_answer(script, tmp_path):
    script.hang_in_build = {"c", "d"}
    with race(script, tmp_path, clock=time.monotonic, ends_at=math.inf) as going:
        going.enter([contender(name, kind="whole-model") for name in "ab"])
        going.clock.ends_at = time.monotonic() + 10.0
        going.enter(
            [contender(name, kind="whole-model") for name in "cd"], ends_at=time.monotonic() + 2.0
        )
        found = going.finish()
    assert found.named in "ab" and found.left_out == 2


def test_what_is_ready_is_an_answer_though_the_first_one_takes_long(script, tmp_path, monkeypatch):
    monkeypatch.setattr(race_module, "LEAST_S", 0.1)
    script.hang_in_build = {"slow"}
    until = time.monotonic() + 2.0
    with race(script, tmp_path, clock=time.monotonic, ends_at=until) as going:
        going.enter([contender(name, kind="whole-model") for name in ("slow", "ready")])
        found = going.finish()
    assert found.named == "ready" and found.left_out == 1


def test_modules_that_were_built_before_are_taken(script, tmp_path):
    with race(script, tmp_path / "one") as going:
        going.enter([contender(name, kind="whole-model") for name in "ab"])
        modules = going.standings.modules
    with race(script, tmp_path / "two", runner={"modules": modules}) as going:
        going.enter([contender(name, kind="whole-model") for name in "ab"])
        assert going.leader is not None
    assert sorted(script.built) == ["a", "b"], "nothing was built again"
    assert all((folder / "model.so").exists() for folder, _ in modules.values())


def test_a_trial_replaces_a_cost_from_a_busy_moment_and_no_other():
    slow = Cost(state="measured", median_us=3550.0)
    wrong = Cost(state="invalid", reason="wrong numbers")
    assert replaces(1900.0, UNKNOWN, is_whole=False)
    assert replaces(1900.0, slow, is_whole=True)
    assert not replaces(3600.0, slow, is_whole=True), "what else the machine does adds time"
    assert not replaces(1900.0, slow, is_whole=False), "a part of a trial is no isolated cost"
    assert not replaces(1900.0, wrong, is_whole=True)


def test_layers_of_the_winner_and_of_other_toolchains_are_timed_at_the_end(script, tmp_path):
    script.us.update({"fast": 40.0, "slow": 80.0, "mix": 60.0})
    with race(script, tmp_path) as going:
        going.enter([contender("fast", kind="whole-model"), contender("slow", kind="whole-model")])
        going.enter([contender("mix", 2)])
        found = going.finish()
    layers = {one.contender.name: one.layers for one in found.results}
    assert layers["fast"] == found.winner.layers and not layers["mix"]
    assert [one.partition for one in layers["fast"]] == [0, None]
    assert layers["slow"], "it had left the race, and was loaded again"


def test_layers_are_timed_where_there_was_no_time_for_a_fresh_process(script, tmp_path):
    script.us["only"] = 40.0
    with race(script, tmp_path) as going:
        going.enter([contender("only", kind="whole-model")])
        going.clock.ends_at = going.clock.now()
        found = going.finish()
    assert not found.fresh and found.winner.layers


def test_profiles_of_layers_have_some_runs_and_time_of_their_own(script, tmp_path):
    runs = [runs_of_layers(us) for us in (10.0, 10_000.0, 1e6)]
    assert runs == [MOST_RUNS_OF_LAYERS, 50, RUNS_PER_PROFILE]
    script.us["slow"] = 100_000.0
    with race(script, tmp_path) as going:
        going.enter([contender("slow")])
        assert going.clock.last_steps_s > layers_s(90_000.0) > 1.0
