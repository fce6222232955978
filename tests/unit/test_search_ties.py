"""A candidate whose regret lies within the scatter of the repeats is tied with the chosen one."""

from __future__ import annotations

from typing import Any

import pytest

from collage_engine.search.api import solve
from collage_engine.search.explain import explain_node, spread_of
from collage_engine.search.problem_json import problem_from


def two(cost_a: float, cost_b: float, spread: Any = 1.0) -> dict[str, Any]:
    return {
        "nodes": [{"id": 0}, {"id": 1, "inputs": [0]}],
        "candidates": [
            {"id": "a", "nodes": [0], "toolchain": "a", "cost_us": cost_a, "spread_us": spread},
            {"id": "b", "nodes": [0], "toolchain": "b", "cost_us": cost_b, "spread_us": spread},
            {"id": "c", "nodes": [1], "toolchain": "c", "cost_us": 50.0},
        ],
    }


def ties(data: dict[str, Any]) -> dict[Any, float | None]:
    problem = problem_from(data)
    lines = explain_node(problem, solve(problem), 0).alternatives
    return {line.candidate: line.whole_us for line in lines if line.status == "tied"}


def test_overlapping_spreads_are_ties() -> None:
    assert ties(two(10.0, 11.9)) == {"b": pytest.approx(1.9)}
    assert ties(two(10.0, 12.1)) == {}


def test_spreads_as_percentiles() -> None:
    data = two(10.0, 11.0)
    data["candidates"][1]["spread_us"] = [10.5, 14.0]
    assert spread_of(problem_from(data).candidates[1]) == (10.5, 14.0)
    assert list(ties(data)) == ["b"]
