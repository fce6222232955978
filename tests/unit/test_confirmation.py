"""The course of a confirmation, with scripted children in place of real ones."""

from __future__ import annotations

import threading

import pytest

from collage_engine.build.build_job import BuildCover
from collage_engine.records.errors import Cancelled, ToolchainError
from collage_engine.trials.confirmation import (
    CapacitySettings,
    ConfirmationSettings,
    confirm,
    joined,
)
from collage_engine.trials.contender import Contender
from collage_engine.trials.rounds import WithdrawalSettings
from collage_engine.trials.trial_job import OpenPlacement, ProfilePlacement, RunRound
from tests.support.scripted_workers import Script, cover


@pytest.fixture
def script():
    return Script()


def contender(name, partitions=1, kind="collage", order=0, **more):
    return Contender(name=name, kind=kind, cover=cover(name, partitions), order=order, **more)


def go(
    script,
    tmp_path,
    contenders,
    cancelled=None,
    on_progress=None,
    trials_us=None,
    hurry=lambda: False,
    reserve=None,
    **settings,
):
    with script.runner(tmp_path, cancelled=cancelled) as runner:
        return confirm(
            runner,
            contenders,
            settings=ConfirmationSettings(**settings),
            on_progress=on_progress,
            trials_us=trials_us,
            hurry=hurry,
            reserve=reserve,
        )


class ScriptedReserve:
    """Gives batches of contenders one after the other."""

    def __init__(self, *batches):
        self.batches = list(batches)
        self.asked = 0

    def further(self):
        self.asked += 1
        return self.batches.pop(0) if self.batches else []

    def settings(self):
        return ConfirmationSettings(selection_rounds=11)


def test_who_was_left_out_may_win_where_time_is_left(script, tmp_path):
    script.us.update({"fuse-ops": 80.0, "greedy": 120.0})
    reserve = ScriptedReserve(
        [contender("fuse-ops", 4, kind="fuse-ops")], [contender("greedy", 2, kind="greedy")]
    )
    done = go(script, tmp_path, [contender("tvm", kind="whole-model")], reserve=reserve)
    assert done.winner.contender.name == "fuse-ops"
    assert [one.contender.name for one in done.results] == ["tvm", "fuse-ops", "greedy"]
    assert all(one.measured_us for one in done.results)
    assert reserve.asked == 3
    assert set(done.differences) == {"tvm", "greedy"}


def test_a_module_that_takes_part_already_is_not_built_again(script, tmp_path):
    first = contender("tvm", kind="whole-model")
    reserve = ScriptedReserve([contender("again", kind="greedy"), first])
    reserve.batches[0][0] = Contender(name="again", kind="greedy", cover=first.cover, order=1)
    done = go(script, tmp_path, [first], reserve=reserve)
    assert script.opened == {"tvm": 1}
    assert [one.measured_us for one in done.results] == [done.winner.measured_us] * 3


def test_in_a_hurry_nobody_is_asked_for(script, tmp_path):
    reserve = ScriptedReserve([contender("fuse-ops", kind="fuse-ops")])
    done = go(
        script, tmp_path, [contender("tvm"), contender("b")], reserve=reserve, hurry=lambda: True
    )
    assert reserve.asked == 0
    assert [one.contender.name for one in done.results] == ["tvm", "b"]


def test_the_fastest_wins_and_is_reported_from_fresh_rounds(script, tmp_path):
    script.us["fast"] = lambda n: 50.0 if n < 7 else 55.0
    done = go(
        script,
        tmp_path,
        [contender("slow"), contender("fast", 3), contender("tvm", kind="whole-model")],
    )
    assert done.named == "collage" and done.winner.contender.name == "fast"
    assert done.winner.measured_us == pytest.approx(55.0)
    assert (done.winner.folder / "model.so").read_text().startswith("fast ")
    assert script.environments["fast"]["PLACEMENT"] == "fast"
    assert done.winner.peak_memory_bytes == 1 << 20
    assert not script.loaded  # every child was ended


def test_the_luck_of_a_process_does_not_win(script, tmp_path):
    """What lies well in memory in one process does not in the next."""
    script.us["lucky"] = lambda _: 96.0 if script.opened["lucky"] == 1 else 104.0
    script.us["far"] = 150.0
    done = go(
        script,
        tmp_path,
        [contender("lucky", 3), contender("steady"), contender("far", kind="whole-model")],
    )
    assert done.winner.contender.name == "steady"
    assert script.opened == {"lucky": 2, "steady": 2, "far": 1}


def test_when_the_time_is_over_the_fastest_stay_in_the_processes_that_they_have(script, tmp_path):
    script.us.update({"fast": 96.0, "near": 97.0, "far": 200.0})
    said = []

    def on_progress(done, total, now):
        said.append(now)

    done = go(
        script,
        tmp_path,
        [contender("far", kind="whole-model"), contender("near", 3), contender("fast", 2)],
        on_progress=on_progress,
        hurry=lambda: any(text.startswith("round") for text in said),
    )
    assert done.winner.contender.name == "fast"
    assert [one.reason for one in done.results] == [None, None, None]
    assert script.opened == {"far": 1, "near": 1, "fast": 1}, "none is loaded again"


def whole_model_in_an_unlucky_process(script, later_us):
    """A whole model that is slow in its first process, and a mix that is fast in its own."""
    script.us["tvm"] = lambda _: 115.0 if script.opened["tvm"] == 1 else later_us
    script.us["mix"] = lambda _: 100.0 if script.opened["mix"] == 1 else 113.0
    return [contender("mix", 6), contender("tvm", kind="whole-model", order=1)]


def test_a_confirmation_makes_no_answer_worse(script, tmp_path):
    """The whole model took less in its trial: it is loaded again, before a mix beats it."""
    both = whole_model_in_an_unlucky_process(script, 98.0)
    key = both[1].key
    without = go(script, tmp_path / "without", both)
    assert without.named == "collage", "no rounds of these processes tell that it is slower"
    script.opened.clear()
    done = go(script, tmp_path / "with", both, trials_us={key: 98.0})
    assert done.named == "tvm" and done.winner.measured_us == pytest.approx(98.0)
    assert script.opened["tvm"] > 1


def test_what_a_trial_found_faster_by_chance_does_not_win(script, tmp_path):
    both = whole_model_in_an_unlucky_process(script, 115.0)
    done = go(script, tmp_path, both, trials_us={both[1].key: 90.0})
    assert done.named == "collage" and done.winner.measured_us < 115.0


def test_a_machine_that_is_slower_than_in_the_trials_is_no_reason_to_time_again(script, tmp_path):
    script.us.update({"mix": 120.0, "tvm": 125.0, "lib": 130.0, "other": 140.0})
    four = [contender("mix", 6)] + [
        contender(name, kind="whole-model", order=k + 1)
        for k, name in enumerate(("tvm", "lib", "other"))
    ]
    usual_us = {"tvm": 104.0, "lib": 108.0, "other": 117.0}  # all of them a fifth faster
    trials_us = {one.key: usual_us[one.name] for one in four[1:]}
    done = go(script, tmp_path / "slower", four, trials_us=trials_us)
    assert done.named == "collage" and script.opened["tvm"] == 2  # once more after the selection
    assert done.pace == pytest.approx(1.2, rel=0.01)
    script.opened.clear()
    trials_us[four[2].key], trials_us[four[3].key] = 130.0, 140.0  # only tvm was faster
    done = go(script, tmp_path / "same", four, trials_us=trials_us)
    assert done.named == "collage" and script.opened["tvm"] == 3


def test_two_that_are_compared_again_are_compared_within_sets_of_rounds(script, tmp_path):
    """The machine is slower by half when both are loaded again; the mix is faster all the same."""

    def slow(name):
        return 1.5 if script.opened[name] > 1 else 1.0

    script.us["mix"] = lambda _: 100.0 * slow("mix")
    script.us["tvm"] = lambda _: 108.0 * slow("tvm")
    both = [contender("mix", 6), contender("tvm", kind="whole-model", order=1)]
    done = go(script, tmp_path, both, trials_us={both[1].key: 90.0})
    assert script.opened == {"mix": 2, "tvm": 2}
    assert done.named == "collage" and done.winner.measured_us == pytest.approx(150.0)


def test_a_winner_that_keeps_up_with_the_trials_is_not_timed_again(script, tmp_path):
    script.us["far"] = 150.0
    far = contender("far", kind="whole-model", order=1)
    done = go(script, tmp_path, [contender("fast"), far], trials_us={far.key: 149.0})
    assert done.named == "collage" and script.opened == {"fast": 1, "far": 1}
    assert done.pace is None, "one trial tells nothing of the machine"


def test_one_that_nobody_comes_near_is_not_opened_again(script, tmp_path):
    script.us["far"] = 150.0
    go(script, tmp_path, [contender("fast"), contender("far", kind="whole-model")])
    assert script.opened == {"fast": 1, "far": 1}


REQUESTS = [BuildCover, OpenPlacement, RunRound, ProfilePlacement]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda kind: kind.__name__)
def test_a_process_that_is_killed_from_outside_is_started_again(script, tmp_path, request_):
    script.kills.append(("only", request_))
    done = go(script, tmp_path, [contender("only", kind="whole-model")])
    assert done.winner.contender.name == "only" and done.in_place_us == (5.0,)
    assert not script.kills and not script.loaded


@pytest.mark.parametrize("request_", REQUESTS[:3], ids=lambda kind: kind.__name__)
def test_one_that_is_killed_again_and_again_is_left_out(script, tmp_path, request_):
    script.kills += [("often", request_)] * 2
    done = go(script, tmp_path, [contender("often"), contender("tvm", kind="whole-model")])
    assert done.named == "tvm"
    assert done.results[0].reason == "x: killed by SIGKILL"


def test_in_place_times_and_strangers_are_told(script, tmp_path):
    done = go(script, tmp_path, [contender("a", 2)])
    assert done.in_place_us == (5.0, 5.0)
    assert [(k.kernel, k.us) for k in done.residual] == [("to_nhwc", 1.5)]


def test_a_baseline_that_wins_is_named(script, tmp_path):
    script.us["tvm"] = 10.0
    done = go(script, tmp_path, [contender("a", 2), contender("tvm", kind="whole-model")])
    assert done.named == "tvm"


def test_a_cover_equal_to_a_baseline_is_built_once_and_goes_by_its_name(script, tmp_path):
    tvm = contender("tvm", kind="whole-model")
    ours = Contender(name="collage", kind="collage", cover=tvm.cover)
    done = go(script, tmp_path, [ours, tvm, contender("b")])
    assert sorted(script.built) == ["b", "tvm"]
    assert done.named == "tvm"
    assert [o.contender.name for o in done.results] == ["collage", "tvm", "b"]
    assert done.results[0].measured_us == done.results[1].measured_us


def test_a_tie_goes_to_fewer_partitions(script, tmp_path):
    wobble = [1.0, -1.0, 0.5, -0.5, 0.0, 0.8, -0.8]
    script.us["many"] = lambda n: 99.9 + wobble[n % 7]
    script.us["few"] = lambda n: 100.0 - wobble[n % 7]
    done = go(script, tmp_path, [contender("many", 5), contender("few", 2)])
    assert done.winner.contender.name == "few"
    assert done.tied == ("many",)
    assert done.differences["many"].tied


def test_onnx_runtime_in_python_is_timed_and_its_artifact_twin_exported(script, tmp_path):
    script.us["session"] = 20.0
    script.us["ort"] = 21.0
    baseline = contender("ort", kind="whole-model", python_session=True)
    done = go(script, tmp_path, [contender("a"), baseline])
    assert done.named == "ort"
    assert done.winner.contender.name == "ort (artifact)"
    assert done.winner.measured_us == pytest.approx(21.0)
    assert done.results[1].measured_us == pytest.approx(20.0)


def test_a_selection_that_noise_misled_is_made_again(script, tmp_path):
    # "lucky" was quick in the seven rounds of the selection only.
    script.us["lucky"] = lambda n: 50.0 if n < 7 else 120.0
    done = go(
        script,
        tmp_path,
        [contender("lucky"), contender("steady", 2)],
        withdrawal=WithdrawalSettings(slow_factor=9.0),
    )
    assert done.winner.contender.name == "steady"
    assert done.winner.measured_us == pytest.approx(100.0)


def test_wrong_numbers_never_win_however_fast(script, tmp_path):
    script.us["wrong"] = 1.0
    script.errors["wrong"] = (3.0, 0.5)
    script.us["nan"] = 1.0
    script.errors["nan"] = (float("nan"), float("nan"))
    done = go(script, tmp_path, [contender("wrong"), contender("nan"), contender("right")])
    assert done.winner.contender.name == "right"
    assert "relative error 0.5, 0.0001 is allowed" in done.results[0].reason
    assert done.results[0].measured_us is None
    assert done.results[1].reason is not None


def test_a_refusal_and_a_crash_cost_only_their_contender(script, tmp_path):
    script.refuse_build["shy"] = "x cannot take nn.conv3d"
    script.crash_in_round["wild"] = 4
    script.us["wild"] = 1.0
    told = contender("whole", kind="whole-model", reason="cannot take nn.gru")
    done = go(script, tmp_path, [contender("shy"), contender("wild"), told, contender("good")])
    assert done.winner.contender.name == "good"
    assert [o.reason for o in done.results] == [
        "x cannot take nn.conv3d",
        "x: killed by SIGSEGV",
        "cannot take nn.gru",
        None,
    ]


def test_when_nothing_can_be_built_every_reason_is_told(script, tmp_path):
    script.refuse_build = {"a": "no a", "b": "no b"}
    with pytest.raises(ToolchainError, match="a: no a; b: no b"):
        go(script, tmp_path, [contender("a"), contender("b")])


def test_the_slow_sit_out_and_the_hopeless_sooner(script, tmp_path):
    script.us.update(slow=150.0, hopeless=5000.0, endless=2e6)
    done = go(
        script,
        tmp_path,
        [contender("best"), contender("slow"), contender("hopeless"), contender("endless")],
    )
    assert script.rounds == {"best": 19, "slow": 6, "hopeless": 4, "endless": 2}
    assert done.results[2].measured_us == pytest.approx(5000.0)


def test_bad_luck_in_some_rounds_makes_nobody_sit_out(script, tmp_path):
    # Threads that spin on a busy machine: some rounds are a thousand times too long.
    script.us["unlucky"] = lambda n: 60000.0 if n in (0, 2, 8) else 60.0
    done = go(script, tmp_path, [contender("steady"), contender("unlucky")])
    assert done.winner.contender.name == "unlucky"
    assert done.winner.measured_us == pytest.approx(60.0)


def test_where_memory_is_short_the_slow_leave_in_heats(script, tmp_path):
    contenders = [contender(f"r{k}") for k in range(12)]
    for k in range(12):
        script.us[f"r{k}"] = 200.0 - 10 * k
    done = go(script, tmp_path, contenders, capacity=CapacitySettings(most_at_once=5))
    assert script.most_loaded <= 5
    assert done.winner.contender.name == "r11"
    assert [o.measured_us for o in done.results] == pytest.approx(
        [200.0 - 10 * k for k in range(12)]
    )
    assert len(list(tmp_path.glob("placement*/model.so"))) <= 5


def test_the_budget_ends_the_rounds_but_not_before_the_least(script, tmp_path):
    done = go(script, tmp_path, [contender("a"), contender("b")], budget_s=0.0)
    assert script.rounds == {"a": 6, "b": 6}
    assert done.winner.measured_us == pytest.approx(100.0)


def test_a_cancel_ends_every_child(script, tmp_path):
    cancelled = threading.Event()

    def progress(done, total, now):
        assert done <= total
        if now.startswith("round 2"):
            cancelled.set()

    with pytest.raises(Cancelled):
        go(
            script,
            tmp_path,
            [contender("a"), contender("b")],
            cancelled=cancelled,
            on_progress=progress,
        )
    assert not script.loaded


def test_a_baseline_that_breaks_a_pin_is_timed_but_cannot_win(script, tmp_path):
    script.us["tvm"] = 10.0
    done = go(
        script, tmp_path, [contender("a", 2), contender("tvm", kind="whole-model", eligible=False)]
    )
    assert done.named == "collage" and done.winner.contender.name == "a"
    assert done.results[1].measured_us == pytest.approx(10.0)
    assert not done.differences["tvm"].tied


def test_a_wide_tie_gets_more_rounds_while_the_budget_lasts(script, tmp_path):
    swing = [0.0, 30.0, -25.0, 8.0, -12.0, 20.0, -18.0]
    script.us["a"] = lambda n: 100.0 + swing[n % 7]
    go(script, tmp_path, [contender("a", 2), contender("b")])
    assert script.rounds["a"] > 16
    assert script.rounds["a"] <= 2 * ConfirmationSettings().most_rounds


def test_rounds_arejoined_for_those_in_both_sets():
    assert joined({1: [10.0], 2: [20.0]}, {1: [11.0], 3: [30.0]}) == {1: [10.0, 11.0]}
