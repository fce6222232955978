"""The problem's public format: what is malformed is said, with its place."""

from __future__ import annotations

import copy
import doctest
import importlib
import json
from typing import Any

import pytest

from collage_engine.search.problem_json import main_search, read_problem
from collage_engine.support.errors import UsageError

GOOD: dict[str, Any] = {
    "nodes": [
        {"id": 0, "op": "conv", "inputs": []},
        {"id": 1, "op": "relu", "inputs": [0]},
        {"id": 2, "op": "add", "inputs": [1, 0]},
    ],
    "outputs": [2],
    "candidates": [
        {"id": "a0", "nodes": [0], "toolchain": "a", "cost_us": 5.0},
        {"id": "a1", "nodes": [1], "toolchain": "a", "cost_us": 2.0},
        {"id": "b2", "nodes": [2], "toolchain": "b", "cost_us": 3.0, "state": "measured"},
        {"id": "b01", "nodes": [0, 1], "toolchain": "b", "cost_us": 6.5},
        {
            "id": "x",
            "nodes": [0, 1, 2],
            "toolchain": "b",
            "cost_us": None,
            "state": "invalid",
            "reason": "crashed",
        },
        {"id": "u", "nodes": [1, 2], "toolchain": "b", "state": "unknown"},
    ],
    "transitions": {"launch_us": 1.0, "pairs": [["a", "b", 0.5], ["b", "b", 0.25]]},
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(GOOD), **changes}


def candidate(**changes: Any) -> dict[str, Any]:
    data = copy.deepcopy(GOOD)
    data["candidates"][3].update(changes)
    return data


def test_answer_in_the_public_format() -> None:
    answer = main_search(json.dumps(GOOD))
    # a0+a1+b2 = 10 + 3 launches + 0.5 (value 0 to b) + 0.5 (value 1 to b) = 14;
    # b01+b2 = 9.5 + 2 + 0.25 + 0.25 = 12.
    assert answer["cost_us"] == 12.0 and answer["lower_bound_us"] == 12.0
    assert answer["optimal"] is True and answer["cover"] == ["b01", "b2"]
    assert answer["regrets"] == {"a0": 2.0, "a1": 2.0, "b2": 0.0, "b01": 0.0}
    assert answer["verdicts"] == [] and answer["states"] > 0 and answer["seconds"] > 0
    assert "infeasible" not in answer
    json.dumps(answer)


def test_infeasible_in_the_public_format() -> None:
    pins = [
        {"nodes": [0], "toolchain": "b"},
        {"nodes": [1], "toolchain": "a"},
        {"nodes": [2], "toolchain": "b"},
    ]
    answer = main_search(json.dumps(changed(pins=pins)))
    assert answer["infeasible"]["pins"] == [0, 1]
    assert answer["infeasible"]["nodes"] == [0]
    assert "node 0 on b" in answer["infeasible"]["reason"]
    states = [v["state"] for v in answer["verdicts"]]
    assert states == ["infeasible", "infeasible", "pending"]
    assert answer["verdicts"][0]["contradicts"] == [1]
    assert "cost_us" not in answer


def test_a_candidate_that_waits_for_itself_is_in_no_cover() -> None:
    around = candidate(id="around", nodes=[0, 2], cost_us=0.1)
    answer = main_search(json.dumps(around))
    assert answer["cover"] == ["a0", "a1", "b2"] and answer["regrets"]["around"] is None


MALFORMED = [
    ("{", "the problem"),
    (json.dumps(changed(outputs=[7])), "outputs: there is no node 7"),
    (json.dumps(changed(nodes=[{"id": 0, "inputs": [0]}])), "nodes[0].inputs"),
    (json.dumps(changed(nodes=[{"id": 0}, {"id": 0}])), "nodes[1]"),
    (json.dumps(changed(nodes=[{"id": 0, "op": 7}])), "nodes[0].op"),
    (json.dumps(candidate(nodes=[9])), "candidates[3].nodes: there is no node 9"),
    (json.dumps(candidate(id="a0")), "candidates[3]: a0 is listed twice"),
    (json.dumps(candidate(cost_us=-1)), "candidates[3].cost_us"),
    (json.dumps(candidate(state="slow")), "candidates[3].state"),
    (
        json.dumps(changed(transitions={"pairs": [["a", "b", 1], ["a", "b", 2]]})),
        "transitions.pairs[1]",
    ),
    (json.dumps(changed(pins=[{"nodes": [0]}])), "pins[0]: it says nothing"),
    (json.dumps(changed(pins=[{"nodes": [5], "toolchain": "a"}])), "pins[0].nodes"),
]


@pytest.mark.parametrize(("text", "place"), MALFORMED)
def test_malformed_problems_say_where(text: str, place: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_problem(text)
    assert place in str(caught.value)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("name", ["api", "label_setting", "state_space"])
def test_examples_in_docstrings_hold(name: str) -> None:
    module = importlib.import_module(f"collage_engine.search.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0
