"""The course of a confirmation, with scripted children in place of real ones."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from collage_engine.build.build_job import BuildCover
from collage_engine.build.built import BuiltModule, Kernel, Part
from collage_engine.machine.worker import WorkerCrashed
from collage_engine.records.candidate import CoverPart
from collage_engine.records.errors import Cancelled, ToolchainError
from collage_engine.records.graph import TensorType
from collage_engine.records.memory import MemorySeen
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.trials import runner as field_module
from collage_engine.trials.confirmation import confirm
from collage_engine.trials.contender import Contender
from collage_engine.trials.runner import ConfirmSettings
from collage_engine.trials.trial_job import KernelTime, OpenPlacement, PeakMemory, RunRound


class Stage:
    """What every contender does, by its name (hidden in its instances' configuration)."""

    def __init__(self) -> None:
        self.us = defaultdict(lambda: 100.0)  # a number, or a function of the round
        self.errors = {}
        self.refuse_build = {}
        self.crash_in_round = {}
        self.loaded = set()
        self.most_loaded = 0
        self.rounds = defaultdict(int)
        self.opened = defaultdict(int)
        self.built = []
        self.environments = {}

    def worker(self, target, *, env=None, name=""):
        return ScriptedWorker(self, env or {})


class ScriptedWorker:
    def __init__(self, stage, env):
        self.stage, self.env, self.name = stage, env, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.stage.loaded.discard(self.name)

    def call(self, request, timeout_s, cancel=None):
        if cancel is not None and cancel.is_set():
            raise Cancelled("stopped")
        stage = self.stage
        if isinstance(request, BuildCover):
            name = request.cover[0].instance.option("name")
            if name in stage.refuse_build:
                raise ToolchainError(stage.refuse_build[name])
            stage.built.append(name)
            folder = Path(request.folder)
            folder.mkdir(parents=True)
            (folder / "model.so").write_text(name)
            parts = tuple(
                Part(instance=p.instance, operators=tuple(p.operators)) for p in request.cover
            )
            kernels = tuple(Kernel(name=f"k{k}", part=k) for k in range(len(parts)))
            return BuiltModule(
                parts=parts,
                kernels=kernels,
                libraries=(),
                threads=2,
                spin=False,
                environment={"RIVAL": name},
            )
        if isinstance(request, OpenPlacement):
            self.name = Path(request.module).read_text() if request.module else "session"
            stage.environments[self.name] = self.env
            stage.loaded.add(self.name)
            stage.opened[self.name] += 1
            stage.most_loaded = max(stage.most_loaded, len(stage.loaded))
            return stage.errors.get(self.name, (1e-6, 1e-6))
        if isinstance(request, RunRound):
            number = stage.rounds[self.name]
            stage.rounds[self.name] += 1
            if stage.crash_in_round.get(self.name) == number:
                raise WorkerCrashed("killed by SIGSEGV")
            us = stage.us[self.name]
            return [(us(number) if callable(us) else us) * 1e-6] * 2
        if isinstance(request, PeakMemory):
            return MemorySeen(peak_bytes=1 << 20)
        return [KernelTime(kernel="k0", us=5.0), KernelTime(kernel="cast", us=1.5)]


@pytest.fixture
def stage(monkeypatch):
    made = Stage()
    monkeypatch.setattr(field_module, "Worker", made.worker)
    monkeypatch.setattr(field_module, "REST_S", 0.0)
    return made


def contender(name, partitions=1, kind="collage", order=0, **more):
    instance = ToolchainInstance(toolchain="x", config=(("name", name),), threads=2)
    cover = tuple(CoverPart(instance, (number,)) for number in range(partitions))
    return Contender(name=name, kind=kind, cover=cover, order=order, **more)


def go(tmp_path, contenders, cancel=None, on_progress=None, **settings):
    kind = TensorType((1,), "float32")
    model = SimpleNamespace(
        inputs=(("x", kind),),
        outputs=(("y", kind),),
        record=SimpleNamespace(path=__file__, shapes={}, weights_bytes=0, sha256=""),
    )
    one = np.ones(1, "float32")
    return confirm(
        model,
        contenders,
        inputs={"x": one},
        truth={"y": one},
        tolerance=1e-4,
        folder=tmp_path,
        settings=ConfirmSettings(**settings),
        cancel=cancel,
        on_progress=on_progress,
    )


def test_the_fastest_wins_and_is_reported_from_fresh_rounds(stage, tmp_path):
    stage.us["fast"] = lambda n: 50.0 if n < 7 else 55.0
    done = go(
        tmp_path, [contender("slow"), contender("fast", 3), contender("tvm", kind="whole-model")]
    )
    assert done.named == "collage" and done.winner.contender.name == "fast"
    assert done.winner.measured_us == pytest.approx(55.0)
    assert done.winner.selection_us[0] == pytest.approx(50.0)
    assert (done.winner.folder / "model.so").read_text() == "fast"
    assert stage.environments["fast"]["RIVAL"] == "fast"
    assert done.winner.peak_memory_bytes == 1 << 20
    assert not stage.loaded  # every child was ended


def test_the_luck_of_a_process_does_not_win(stage, tmp_path):
    """What lies well in memory in one process does not in the next."""
    stage.us["lucky"] = lambda _: 96.0 if stage.opened["lucky"] == 1 else 104.0
    stage.us["far"] = 150.0
    done = go(
        tmp_path, [contender("lucky", 3), contender("steady"), contender("far", kind="whole-model")]
    )
    assert done.winner.contender.name == "steady"
    assert stage.opened == {"lucky": 2, "steady": 2, "far": 1}


def test_one_that_nobody_comes_near_is_not_opened_again(stage, tmp_path):
    stage.us["far"] = 150.0
    go(tmp_path, [contender("fast"), contender("far", kind="whole-model")])
    assert stage.opened == {"fast": 1, "far": 1}


def test_in_place_times_and_strangers_are_told(stage, tmp_path):
    done = go(tmp_path, [contender("a", 2)])
    assert done.in_place_us == (5.0, 0.0)
    assert [(k.kernel, k.us) for k in done.residual] == [("cast", 1.5)]


def test_a_baseline_that_wins_is_named(stage, tmp_path):
    stage.us["tvm"] = 10.0
    done = go(tmp_path, [contender("a", 2), contender("tvm", kind="whole-model")])
    assert done.named == "tvm"


def test_a_cover_equal_to_a_baseline_is_built_once_and_goes_by_its_name(stage, tmp_path):
    tvm = contender("tvm", kind="whole-model")
    ours = Contender(name="collage", kind="collage", cover=tvm.cover)
    done = go(tmp_path, [ours, tvm, contender("b")])
    assert sorted(stage.built) == ["b", "tvm"]
    assert done.named == "tvm"
    assert [o.contender.name for o in done.outcomes] == ["collage", "tvm", "b"]
    assert done.outcomes[0].measured_us == done.outcomes[1].measured_us


def test_a_tie_goes_to_fewer_partitions(stage, tmp_path):
    wobble = [1.0, -1.0, 0.5, -0.5, 0.0, 0.8, -0.8]
    stage.us["many"] = lambda n: 99.9 + wobble[n % 7]
    stage.us["few"] = lambda n: 100.0 - wobble[n % 7]
    done = go(tmp_path, [contender("many", 5), contender("few", 2)])
    assert done.winner.contender.name == "few"
    assert done.tied == ("many",)
    assert done.differences["many"].tied


def test_onnx_runtime_in_python_is_timed_and_its_artifact_twin_exported(stage, tmp_path):
    stage.us["session"] = 20.0
    stage.us["ort"] = 21.0
    baseline = contender("ort", kind="whole-model", python_session=True)
    done = go(tmp_path, [contender("a"), baseline])
    assert done.named == "ort"
    assert done.winner.contender.name == "ort (artifact)"
    assert done.winner.measured_us == pytest.approx(21.0)
    assert done.outcomes[1].measured_us == pytest.approx(20.0)


def test_a_selection_that_noise_misled_is_made_again(stage, tmp_path):
    # "lucky" was quick in the seven rounds of the selection only.
    stage.us["lucky"] = lambda n: 50.0 if n < 7 else 120.0
    done = go(tmp_path, [contender("lucky"), contender("steady", 2)], drop_beyond=9.0)
    assert done.winner.contender.name == "steady"
    assert done.winner.measured_us == pytest.approx(100.0)


def test_wrong_numbers_never_win_however_fast(stage, tmp_path):
    stage.us["wrong"] = 1.0
    stage.errors["wrong"] = (3.0, 0.5)
    stage.us["nan"] = 1.0
    stage.errors["nan"] = (float("nan"), float("nan"))
    done = go(tmp_path, [contender("wrong"), contender("nan"), contender("right")])
    assert done.winner.contender.name == "right"
    assert "max_rel_error 0.5 is above 0.0001" in done.outcomes[0].reason
    assert done.outcomes[0].measured_us is None
    assert done.outcomes[1].reason is not None


def test_a_refusal_and_a_crash_cost_only_their_rival(stage, tmp_path):
    stage.refuse_build["shy"] = "x cannot take nn.conv3d"
    stage.crash_in_round["wild"] = 4
    stage.us["wild"] = 1.0
    told = contender("whole", kind="whole-model", reason="cannot take nn.gru")
    done = go(tmp_path, [contender("shy"), contender("wild"), told, contender("good")])
    assert done.winner.contender.name == "good"
    assert [o.reason for o in done.outcomes] == [
        "x cannot take nn.conv3d",
        "killed by SIGSEGV",
        "cannot take nn.gru",
        None,
    ]


def test_when_nothing_can_be_built_every_reason_is_told(stage, tmp_path):
    stage.refuse_build = {"a": "no a", "b": "no b"}
    with pytest.raises(ToolchainError, match="a: no a; b: no b"):
        go(tmp_path, [contender("a"), contender("b")])


def test_the_slow_sit_out_and_the_hopeless_sooner(stage, tmp_path):
    stage.us.update(slow=150.0, hopeless=5000.0, endless=2e6)
    done = go(
        tmp_path,
        [contender("best"), contender("slow"), contender("hopeless"), contender("endless")],
    )
    assert stage.rounds == {"best": 16, "slow": 6, "hopeless": 4, "endless": 2}
    assert done.outcomes[2].measured_us == pytest.approx(5000.0)


def test_bad_luck_in_some_rounds_makes_nobody_sit_out(stage, tmp_path):
    # Threads that spin on a busy machine: some rounds are a thousand times too long.
    stage.us["unlucky"] = lambda n: 60000.0 if n in (0, 2, 8) else 60.0
    done = go(tmp_path, [contender("steady"), contender("unlucky")])
    assert done.winner.contender.name == "unlucky"
    assert done.winner.measured_us == pytest.approx(60.0)


def test_where_memory_is_short_the_slow_leave_in_heats(stage, tmp_path):
    contenders = [contender(f"r{k}") for k in range(12)]
    for k in range(12):
        stage.us[f"r{k}"] = 200.0 - 10 * k
    done = go(tmp_path, contenders, most_at_once=5)
    assert stage.most_loaded <= 5
    assert done.winner.contender.name == "r11"
    assert [o.measured_us for o in done.outcomes] == pytest.approx(
        [200.0 - 10 * k for k in range(12)]
    )
    assert len(list(tmp_path.glob("contender*/model.so"))) <= 5


def test_the_budget_ends_the_rounds_but_not_before_the_least(stage, tmp_path):
    done = go(tmp_path, [contender("a"), contender("b")], budget_s=0.0)
    assert stage.rounds == {"a": 6, "b": 6}
    assert done.winner.measured_us == pytest.approx(100.0)


def test_a_cancel_ends_every_child(stage, tmp_path):
    cancel = threading.Event()

    def progress(done, total, now):
        assert done <= total
        if now.startswith("round 2"):
            cancel.set()

    with pytest.raises(Cancelled):
        go(tmp_path, [contender("a"), contender("b")], cancel=cancel, on_progress=progress)
    assert not stage.loaded


def test_a_baseline_that_breaks_a_pin_is_timed_but_cannot_win(stage, tmp_path):
    stage.us["tvm"] = 10.0
    done = go(tmp_path, [contender("a", 2), contender("tvm", kind="whole-model", eligible=False)])
    assert done.named == "collage" and done.winner.contender.name == "a"
    assert done.outcomes[1].measured_us == pytest.approx(10.0)
    assert not done.differences["tvm"].tied


def test_a_wide_tie_gets_more_rounds_while_the_budget_lasts(stage, tmp_path):
    swing = [0.0, 30.0, -25.0, 8.0, -12.0, 20.0, -18.0]
    stage.us["a"] = lambda n: 100.0 + swing[n % 7]
    go(tmp_path, [contender("a", 2), contender("b")])
    assert stage.rounds["a"] > 16
    assert stage.rounds["a"] <= 2 * ConfirmSettings().most_rounds


def test_rounds_are_joined_for_those_in_both_sets():
    from collage_engine.trials.confirmation import _joined

    first = {1: [(10.0, [10.0])], 2: [(20.0, [20.0])]}
    second = {1: [(11.0, [11.0])], 3: [(30.0, [30.0])]}
    assert _joined(first, second) == {1: [(10.0, [10.0]), (11.0, [11.0])]}
