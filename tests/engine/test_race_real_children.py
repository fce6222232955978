"""A small model raced in real child processes."""

from __future__ import annotations

import pytest

from collage_engine.artifact.artifact import ArtifactContents, write_artifact
from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.lowering.reference import original_outputs
from collage_engine.machine.worker import Worker
from collage_engine.model.importer import import_model
from collage_engine.records.errors import ToolchainError
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.trials.contender import Contender, Sample
from collage_engine.trials.placement_process import (
    TRIAL_JOB,
    TrialBench,
    TrialSettings,
)
from collage_engine.trials.race import Race
from collage_engine.trials.runner import TrialRunner
from collage_engine.trials.trial_job import MemoryWatch, RunRound, TrialJob
from tests.support.artifact_cases import MNIST
from tests.support.covers import candidate_on

ORT = ToolchainInstance(toolchain="onnxruntime", threads=1)
DNN = ToolchainInstance(toolchain="onednn", threads=1)


def quick_runner(model, inputs, truth, folder, **more):
    settings = TrialSettings(round_s=0.005, at_once=1)
    sample = Sample(inputs, truth)
    return TrialRunner(TrialBench(model, [sample], 1e-4, folder, settings=settings, **more))


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
            cover=(candidate_on(ORT, everything[:4]), candidate_on(DNN, everything[4:])),
        ),
        Contender(
            name="onnxruntime",
            kind="whole-model",
            cover=(candidate_on(ORT, everything),),
            python_session=True,
        ),
        Contender(name="tvm", kind="whole-model", reason="cannot take it"),
        Contender(name="broken", kind="user", cover=(candidate_on(DNN, everything[1:]),)),
    ]
    told = []
    with Race(quick_runner(model, inputs, truth, tmp_path / "work")) as race:
        race.enter(contenders)
        done = race.finish(on_progress=lambda d, t, now: told.append((d, t, now)))
    collage, ort, tvm, broken = done.results
    assert collage.reason is None and collage.measured_us > 0 and collage.max_rel_error < 1e-5
    assert ort.measured_us > 0 and ort.folder is None  # the Python session is no artifact
    assert tvm.reason == "cannot take it" and tvm.measured_us is None
    assert "no partition covers operators 0" in broken.reason
    assert collage.peak_memory_bytes > 50e6
    assert done.named == "collage" and done.fresh
    assert done.winner.built is not None
    assert len(done.in_model_us) == len(done.winner.contender.cover)
    assert all(us > 0 for us in done.in_model_us)
    assert done.residual == ()
    assert all(d <= t for d, t, _ in told)

    out = write_artifact(
        model,
        done.winner.folder,
        tmp_path / "out",
        ArtifactContents(inputs=inputs, outputs=truth, tolerance=1e-4),
    )
    assert run_artifact(out)["max_rel_error"] < 1e-5


def test_a_child_that_was_not_opened_says_so():
    with pytest.raises(ToolchainError, match="was not opened"):
        TrialJob()(RunRound(warm_s=0, seconds=0))


def test_a_module_that_kills_its_process_is_a_reason(tmp_path):
    def start_worker(target, **more):
        crashing = "tests.support.trial_targets:CrashesOnLoad"
        return Worker(crashing if target == TRIAL_JOB else target, **more)

    model = import_model(MNIST)
    inputs = model.random_inputs(0)
    everything = tuple(range(len(model.graph.operators)))
    truth = original_outputs(model, inputs)
    alone = [Contender(name="x", kind="collage", cover=(candidate_on(DNN, everything),))]
    with Race(quick_runner(model, inputs, truth, tmp_path, start_worker=start_worker)) as race:
        race.enter(alone)
        with pytest.raises(ToolchainError, match="killed by SIGSEGV"):
            race.finish()


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


def test_a_profile_leaves_nothing_behind_in_the_process(tmp_path):
    """What watches the kernels in a profile would slow down every later round."""
    model = import_model(MNIST)
    inputs = model.random_inputs(0)
    everything = tuple(range(len(model.graph.operators)))
    cut = tuple(candidate_on(DNN, everything[k : k + 2]) for k in range(0, len(everything), 2))
    truth = original_outputs(model, inputs)
    with quick_runner(model, inputs, truth, tmp_path / "work") as runner:
        process = runner.process(Contender(name="cut", kind="collage", cover=cut))
        runner.build([process])
        process.load()
        before = min(process.timed_round())
        assert any(process.partition_times(5)[0])
        rounds = (min(process.timed_round()) for _ in range(20))
        assert any(after < 1.5 * before for after in rounds), "none of twenty is as fast"
