"""Covers of a small model built, run, looked into and refined in real child processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collage_engine.lowering.reference import original_outputs
from collage_engine.model.importer import import_model
from collage_engine.records.candidate import Candidate
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.search import refine
from collage_engine.search.problem import Problem
from collage_engine.search.problem_json import problem_from
from collage_engine.trials.contender import Contender, Sample
from collage_engine.trials.placement_process import TrialModel
from collage_engine.trials.proposals import Proposal, run_proposals
from collage_engine.trials.refinement import measurement_of, refine_covers
from collage_engine.trials.runner import TrialRunner
from tests.support.artifact_cases import MNIST
from tests.support.covers import candidate_on

ORT = ToolchainInstance(toolchain="onnxruntime", threads=1)
DNN = ToolchainInstance(toolchain="onednn", threads=1)
FRONT, BACK = tuple(range(4)), tuple(range(4, 11))
WHOLE = (*FRONT, *BACK)
HALVES = {
    "ort-front": candidate_on(ORT, FRONT),
    "ort-back": candidate_on(ORT, BACK),
    "dnn-front": candidate_on(DNN, FRONT),
    "dnn-back": candidate_on(DNN, BACK),
}
BY_ID = {half.id: half for half in HALVES.values()}


def problem() -> Problem:
    """Of two halves on two toolchains; by their costs, ONNX Runtime throughout is best."""
    return problem_from(
        {
            "nodes": [{"id": k, "inputs": [k - 1] if k else []} for k in WHOLE],
            "candidates": [
                {
                    "id": half.id,
                    "nodes": list(half.nodes),
                    "toolchain": half.instance.toolchain,
                    "cost_us": 1.0 if half.instance is ORT else 1.5,
                }
                for half in HALVES.values()
            ],
        }
    )


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[TrialRunner]:
    model = import_model(MNIST)
    assert len(model.graph.operators) == len(WHOLE)
    inputs = model.random_inputs(0)
    sample = Sample(inputs, original_outputs(model, inputs))
    with TrialRunner(TrialModel.of(model), [sample], 1e-4, tmp_path) as runner:
        yield runner


def cover_of(*names: str) -> tuple[Candidate, ...]:
    return tuple(HALVES[name] for name in names)


def test_refinement_measures_whole_covers_and_looks_inside(
    runner: TrialRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refine, "CONFIRMED_COVERS", 1)  # to save time
    start = [half.id for half in cover_of("ort-front", "ort-back")]
    found = run_proposals(refine_covers(problem(), [start], BY_ID, 600.0), runner.run)
    tried = {frozenset(map(str, t.cover)) for t in found.trials}
    assert tried == {
        frozenset(half.id for half in cover_of(front, back))
        for front in ("ort-front", "dnn-front")
        for back in ("ort-back", "dnn-back")
    }, "all that there are, and no more"
    for trial in found.trials[:4]:
        assert trial.us is not None and trial.us > 0 and trial.error_us is not None
        assert set(trial.inside) == set(trial.cover)
        assert all(us > 0 for us in trial.inside.values())
        # What is between the partitions takes the rest.
        assert sum(trial.inside.values()) <= trial.us * 1.001
    assert found.us is not None and found.start_us is not None and found.us <= found.start_us


def test_a_cover_that_cannot_be_built_is_invalid_with_its_reason(runner: TrialRunner) -> None:
    cost = measurement_of(
        runner.run(Proposal(cover=(candidate_on(DNN, WHOLE[1:]),), rounds=7))
    ).cost
    assert cost.state == "invalid" and "no partition covers operators 0" in (cost.reason or "")


def test_processes_are_timed_round_by_round(runner: TrialRunner) -> None:
    covers = [("dnn-front", "dnn-back"), ("ort-front", "dnn-back")]
    both = [
        runner.process(Contender(name="x", kind="collage", cover=cover_of(*cover)))
        for cover in covers
    ]
    runner.build(both)
    runner.load(both)
    for process in both:
        assert process.failure is None and process.loaded and process.can_win
        calls = runner.timed_round(process)
        assert calls is not None and all(us > 0 for us in calls)
