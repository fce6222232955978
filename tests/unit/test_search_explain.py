"""Explaining in words: pure functions of problem, answer and labels.

A candidate whose regret lies within the scatter of the repeats is tied with the chosen one.

The worked examples in the docstrings of the search say what the search does.
"""

from __future__ import annotations

import doctest
import importlib
from typing import Any

import pytest

from collage_engine.search.api import k_best, solve
from collage_engine.search.explain import (
    Labels,
    explain_node,
    explain_ranked_cover,
)
from collage_engine.search.problem_json import problem_from

DATA: dict[str, Any] = {
    "nodes": [
        {"id": 0},
        {"id": 1, "inputs": [0]},
        {"id": 2, "inputs": [1]},
        {"id": 3, "inputs": [2]},
    ],
    "candidates": [
        {"id": "d", "nodes": [0, 1, 2], "toolchain": "onednn", "cost_us": 41.0, "spread_us": 2.0},
        {"id": "o", "nodes": [0, 1, 2], "toolchain": "onnxruntime", "cost_us": 53.0},
        {"id": "t", "nodes": [0, 1, 2, 3], "toolchain": "tvm", "cost_us": 49.0, "spread_us": 2.0},
        {"id": "s", "nodes": [3], "toolchain": "tvm", "cost_us": 5.0},
        {"id": "w", "nodes": [1], "toolchain": "openblas", "cost_us": 9.0},
        {
            "id": "bad",
            "nodes": [0],
            "toolchain": "openvino",
            "state": "invalid",
            "reason": "wrong numbers",
        },
        {
            "id": "new",
            "nodes": [0, 1],
            "toolchain": "tvm",
            "state": "unknown",
            "lower_bound_us": 30.0,
        },
        {"id": "r", "nodes": [2], "toolchain": "tvm", "state": "unknown", "lower_bound_us": 21.0},
    ],
}
LABELS = Labels(
    nodes={0: "conv3", 1: "bias", 2: "relu", 3: "add"},
    toolchains={"onednn": "oneDNN", "onnxruntime": "ONNX Runtime", "tvm": "TVM"},
)


def test_a_node_in_words() -> None:
    problem = problem_from(DATA)
    answer = solve(problem)
    ranked_covers = k_best(problem, 2)
    told = explain_node(
        problem, answer, 0, LABELS, refusals={"cublas": "no GPU"}, runner_up=ranked_covers[1]
    )
    assert told.chosen == "d"
    assert told.text[0] == (
        "oneDNN runs conv3+bias+relu: 41.0 µs; by itself ONNX Runtime would take 12.0 µs more."
    )
    tied = "Not decided on this machine now: TVM's conv3+bias+relu+add."
    assert sum(text.startswith(tied) for text in told.text) == 1, "said once"
    assert not any("+3.00 µs" in text for text in told.text)
    assert told.text[-1] == (
        "The second-best placement has TVM's conv3+bias+relu+add instead of oneDNN's "
        "conv3+bias+relu, TVM's add and takes 3.00 µs longer."
    )
    away = explain_ranked_cover(problem, answer, ranked_covers[1], LABELS, node=9)
    assert away.startswith("The second-best placement has the same at node 9; elsewhere")
    found = [(line.candidate, line.status, line.whole_us) for line in told.alternatives]
    assert found == [
        ("d", "chosen", None),
        ("t", "tied", 3.0),
        ("o", "slower", 12.0),
        ("new", "unmeasured", 10.0),
        ("bad", "invalid", None),
        (None, "no candidate", None),
    ]
    lines = told.alternatives
    assert (lines[2].operators, lines[2].here_us) == ("conv3+bias+relu", 53.0)
    assert [lines[4].reason, lines[5].reason] == ["wrong numbers", "no GPU"]
    told = explain_node(problem, answer, 0, LABELS, noise_us=2.0)
    assert told.alternatives[1].status == "slower", "the noise of the run decides"
    told = explain_node(problem, answer, 0, LABELS, noise_us=12.0)
    statuses = [line.status for line in told.alternatives]
    assert statuses[:4] == ["chosen", "tied", "tied", "unmeasured"]


def test_a_candidate_in_no_cover_and_a_pin() -> None:
    problem = problem_from({**DATA, "pins": [{"nodes": [0], "toolchain": "onnxruntime"}]})
    told = explain_node(problem, solve(problem), 1, LABELS)
    assert told.text[0].startswith("ONNX Runtime runs conv3+bias+relu: 53.0 µs; by itself oneDNN")
    assert "no placement contains it: a pin" in told.text[0]
    ruled_out = {line.candidate for line in told.alternatives if line.status == "ruled out"}
    assert "w" in ruled_out
    told = explain_node(problem, solve(problem), 0, LABELS)
    assert "Pin 1: node 0 on onnxruntime: honoured, costs 12.0 µs" in told.text


MODULES = ("api", "label_setting", "states", "sweep_order")


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name: str) -> None:
    module = importlib.import_module(f"collage_engine.search.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
