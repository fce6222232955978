"""Covers of a small model built, run, looked into and refined in real child processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from collage_engine.control.run_control import RunControl
from collage_engine.lowering.reference import original_outputs
from collage_engine.model.importer import import_model
from collage_engine.records.candidate import CoverPart
from collage_engine.records.errors import MeasureError
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.search import refine
from collage_engine.search.problem import CandidateId, Problem
from collage_engine.search.problem_json import problem_from
from collage_engine.trials.refinement import EndToEnd, refine_covers
from tests.support.artifact_cases import MNIST

ORT = ToolchainInstance(toolchain="onnxruntime", threads=1)
DNN = ToolchainInstance(toolchain="onednn", threads=1)
FRONT, BACK = tuple(range(4)), tuple(range(4, 11))
WHOLE = (*FRONT, *BACK)
PARTS = {
    "ort-front": CoverPart(ORT, FRONT),
    "ort-back": CoverPart(ORT, BACK),
    "dnn-front": CoverPart(DNN, FRONT),
    "dnn-back": CoverPart(DNN, BACK),
    "none": CoverPart(DNN, WHOLE[1:]),
}


def problem() -> Problem:
    """Of two halves on two toolchains; by their costs, ONNX Runtime throughout is best."""
    return problem_from(
        {
            "nodes": [{"id": k, "inputs": [k - 1] if k else []} for k in WHOLE],
            "candidates": [
                {
                    "id": name,
                    "nodes": list(part.operators),
                    "toolchain": part.instance.toolchain,
                    "cost_us": 1.0 if part.instance is ORT else 1.5,
                }
                for name, part in PARTS.items()
                if name != "none"
            ],
        }
    )


@pytest.fixture
def whole(tmp_path: Path) -> EndToEnd:
    model = import_model(MNIST)
    assert len(model.graph.operators) == len(WHOLE)
    inputs = model.random_inputs(0)

    def parts_of(cover: Sequence[CandidateId]) -> tuple[CoverPart, ...]:
        return tuple(PARTS[str(name)] for name in cover)

    return EndToEnd(
        model, parts_of, inputs, original_outputs(model, inputs), 1e-4, tmp_path, RunControl()
    )


def test_refinement_measures_whole_covers_and_looks_inside(
    whole: EndToEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refine, "CONTENDERS", 1)  # to save time
    start = ("ort-front", "ort-back")
    found = refine_covers(problem(), [start], whole, 600.0, lambda trial: None, None, RunControl())
    tried = {frozenset(map(str, t.cover)) for t in found.trials}
    assert tried == {
        frozenset((a, b)) for a in ("ort-front", "dnn-front") for b in ("ort-back", "dnn-back")
    }, "all that there are, and no more"
    for trial in found.trials[:4]:
        assert trial.us is not None and trial.us > 0 and trial.error_us is not None
        assert set(trial.inside) == set(trial.cover)
        assert all(us > 0 for us in trial.inside.values())
        # What is between the partitions takes the rest.
        assert sum(trial.inside.values()) <= trial.us * 1.001
    assert found.us is not None and found.start_us is not None and found.us <= found.start_us


def test_covers_are_timed_in_the_same_rounds(whole: EndToEnd) -> None:
    try:
        both = whole.together([("dnn-front", "dnn-back"), ("ort-front", "dnn-back")], 4)
        assert [len(rounds) for rounds in both] == [4, 4]
        assert all(us > 0 for rounds in both for us in rounds)
        assert whole.measure(("none",)).state == "invalid"
        with pytest.raises(MeasureError, match="cannot be timed again"):
            whole.together([("none",)], 1)
    finally:
        whole.close()
