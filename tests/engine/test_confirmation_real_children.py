"""A small model confirmed in real child processes."""

from __future__ import annotations

import pytest

from collage_engine.artifact.artifact import ArtifactContents, write_artifact
from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.lowering.reference import original_outputs
from collage_engine.machine.worker import Worker
from collage_engine.model.importer import import_model
from collage_engine.records.candidate import CoverPart
from collage_engine.records.errors import ToolchainError
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.trials.confirmation import confirm
from collage_engine.trials.contender import Contender
from collage_engine.trials.memory import MemoryWatch
from collage_engine.trials.runner import ConfirmSettings, Field
from collage_engine.trials.trial_job import RunRound, TrialJob
from tests.support.artifact_cases import MNIST

ORT = ToolchainInstance(toolchain="onnxruntime", threads=1)
DNN = ToolchainInstance(toolchain="onednn", threads=1)
QUICK = ConfirmSettings(selection_rounds=3, fresh_rounds=3, round_s=0.005, builders=1)


def test_a_mixed_cover_and_its_baselines(tmp_path):
    model = import_model(MNIST)
    inputs = model.random_inputs(0)
    truth = original_outputs(model, inputs)
    count = len(model.graph.operators)
    everything = tuple(range(count))
    contenders = [
        Contender(
            name="collage",
            kind="collage",
            cover=(CoverPart(ORT, everything[:4]), CoverPart(DNN, everything[4:])),
        ),
        Contender(
            name="onnxruntime",
            kind="whole-model",
            cover=(CoverPart(ORT, everything),),
            order=1,
            python_session=True,
        ),
        Contender(name="tvm", kind="whole-model", order=2, reason="cannot take it"),
        Contender(name="broken", kind="user", order=3, cover=(CoverPart(DNN, everything[1:]),)),
    ]
    told = []
    done = confirm(
        model,
        contenders,
        inputs=inputs,
        truth=truth,
        tolerance=1e-4,
        folder=tmp_path / "work",
        settings=QUICK,
        on_progress=lambda d, t, now: told.append((d, t, now)),
    )
    collage, ort, tvm, broken = done.outcomes
    assert collage.reason is None and collage.measured_us > 0 and collage.max_rel_error < 1e-5
    assert ort.measured_us > 0 and ort.folder is None  # the Python session is no artifact
    assert tvm.reason == "cannot take it" and tvm.measured_us is None
    assert "no partition covers operators 0" in broken.reason
    assert collage.peak_memory_bytes > 50e6
    assert done.named in ("collage", "onnxruntime")
    assert done.winner.built is not None
    assert len(done.in_place_us) == len(done.winner.contender.cover)
    assert all(us > 0 for us in done.in_place_us)
    assert done.residual == ()
    assert [d for d, _, _ in told] == sorted(d for d, _, _ in told)
    assert all(d <= t for d, t, _ in told)

    out = write_artifact(
        model,
        done.winner.folder,
        tmp_path / "out",
        ArtifactContents(inputs=inputs, outputs=truth, tolerance=1e-4),
    )
    assert run_artifact(out)["max_rel_error"] < 1e-5


def test_what_may_win_is_timed_in_two_processes(tmp_path, monkeypatch):
    """In another its memory lies elsewhere. What is much slower keeps its own."""
    processes: dict[str, set[int]] = {}
    ask = Field.rounds

    def rounds(self, outcomes, *more):
        for outcome in outcomes:
            worker = self.workers.get(id(outcome))
            if worker is not None:
                processes.setdefault(outcome.contender.name, set()).add(worker.pid)
        found = ask(self, outcomes, *more)
        if not any(o.selection_us for o in outcomes):
            slow = next(o for o in outcomes if o.contender.name == "slow")
            found[id(slow)] = [(9 * median, calls) for median, calls in found[id(slow)]]
        return found

    monkeypatch.setattr(Field, "rounds", rounds)
    monkeypatch.setattr("collage_engine.trials.confirmation.NEAR_ENOUGH", 5.0)
    model = import_model(MNIST)
    inputs = model.random_inputs(0)
    everything = tuple(range(len(model.graph.operators)))
    cut = (CoverPart(DNN, everything[:4]), CoverPart(DNN, everything[4:]))
    contenders = [
        Contender(name="whole", kind="collage", cover=(CoverPart(DNN, everything),)),
        Contender(name="cut", kind="collage", cover=cut, order=1),
        Contender(name="slow", kind="whole-model", cover=(CoverPart(ORT, everything),), order=2),
    ]
    done = confirm(
        model,
        contenders,
        inputs=inputs,
        truth=original_outputs(model, inputs),
        tolerance=1e-4,
        folder=tmp_path / "work",
        settings=QUICK,
    )
    counts = {name: len(found) for name, found in processes.items()}
    assert counts == {"whole": 2, "cut": 2, "slow": 1}
    assert all(o.measured_us > 0 for o in done.outcomes)


def test_a_child_that_was_not_opened_says_so():
    with pytest.raises(ToolchainError, match="was not opened"):
        TrialJob()(RunRound(warm_s=0, seconds=0, least=1))


def test_a_module_that_kills_its_process_is_a_reason(tmp_path, monkeypatch):
    from collage_engine.trials import runner as field_module

    monkeypatch.setattr(
        field_module,
        "Worker",
        lambda target, **more: Worker(
            "tests.support.trial_targets:Suicidal" if "trial_job" in target else target,
            **more,
        ),
    )
    model = import_model(MNIST)
    inputs = model.random_inputs(0)
    everything = tuple(range(len(model.graph.operators)))
    with pytest.raises(ToolchainError, match="killed by SIGSEGV"):
        confirm(
            model,
            [Contender(name="x", kind="collage", cover=(CoverPart(DNN, everything),))],
            inputs=inputs,
            truth=original_outputs(model, inputs),
            tolerance=1e-4,
            folder=tmp_path,
            settings=QUICK,
        )


def test_loading_and_running_have_peaks_of_their_own():
    watch = MemoryWatch()
    block = bytearray(96 << 20)
    block[::4096] = b"x" * len(block[::4096])
    del block
    watch.loaded()
    seen = watch.seen()
    assert seen.load_peak_bytes >= seen.base_bytes + (90 << 20)
    assert seen.peak_bytes == max(seen.load_peak_bytes, seen.run_peak_bytes)
    assert seen.run_peak_bytes < seen.load_peak_bytes - (60 << 20)
    assert 0 < seen.private_bytes <= seen.loaded_bytes
