"""Unusual problems through the public command: what each must answer, worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collage_engine.search.command import main_search


def nodes(*inputs: list[int]) -> list[dict[str, Any]]:
    return [{"id": at, "inputs": given} for at, given in enumerate(inputs)]


def candidate(name: int | str, held: list[int], us: float, **more: Any) -> dict[str, Any]:
    return {"id": name, "nodes": held, "toolchain": "a", "cost_us": us, **more}


ONES = [candidate(0, [0], 1), candidate(1, [1], 1)]
CHAIN = nodes([], [0])
CROSSED = [candidate(0, [0, 3], 1), candidate(1, [1, 2], 1)]
FEASIBLE: dict[str, tuple[dict[str, Any], float, set[Any]]] = {
    "nothing": ({"nodes": [], "candidates": []}, 0, set()),
    "a node that reaches no output": (
        {"nodes": nodes([], [0], [0]), "outputs": [1], "candidates": [*ONES, candidate(2, [2], 5)]},
        7,
        {0, 1, 2},
    ),
    "a toolchain that hands over to itself at a price": (
        {
            "nodes": CHAIN,
            "candidates": [*ONES, candidate(2, [0, 1], 5)],
            "transitions": {"pairs": [["a", "a", 10]]},
        },
        5,
        {2},
    ),
    "one value taken twice is handed over once": (
        {
            "nodes": nodes([], [0, 0]),
            "candidates": [ONES[0], {**ONES[1], "toolchain": "b"}],
            "transitions": {"pairs": [["a", "b", 10]], "launch_us": 2},
        },
        16,
        {0, 1},
    ),
    "two nodes that have nothing to do with each other": (
        {"nodes": nodes([], []), "candidates": [*ONES, candidate("both", [0, 1], 1.5)]},
        1.5,
        {"both"},
    ),
    "the cheap pair waits for each other": (
        {
            "nodes": nodes([], [], [0], [1]),
            "candidates": [*CROSSED, candidate(2, [0], 9), candidate(3, [3], 9)],
        },
        19,
        {1, 2, 3},
    ),
    "an edge kept whole, ends in any order": (
        {
            "nodes": CHAIN,
            "candidates": [*ONES, candidate(2, [0, 1], 9)],
            "pins": [{"nodes": [1, 0], "unsplit": True}],
        },
        9,
        {2},
    ),
    "the host, where nothing says otherwise": (
        {
            "nodes": CHAIN,
            "candidates": [*ONES, candidate("g", [1], 0.5, device="cuda:0")],
            "pins": [{"nodes": [1], "device": "cpu"}],
        },
        2,
        {0, 1},
    ),
    "ids below zero": (
        {
            "nodes": [{"id": -5}, {"id": -2, "inputs": [-5]}],
            "candidates": [candidate(0, [-5], 1), candidate(1, [-2], 1)],
        },
        2,
        {0, 1},
    ),
}


@pytest.mark.parametrize("name", FEASIBLE)
def test_unusual_but_feasible(name: str) -> None:
    problem, cost, cover = FEASIBLE[name]
    answer = main_search(json.dumps(problem))
    assert answer["cost_us"] == cost and set(answer["cover"]) == cover and answer["optimal"]


INFEASIBLE: dict[str, tuple[dict[str, Any], list[int], list[int]]] = {
    "no candidates": ({"nodes": CHAIN, "candidates": []}, [], [0, 1]),
    "none that may be chosen": (
        {
            "nodes": nodes([]),
            "candidates": [
                candidate(0, [0], 1, state="invalid"),
                candidate(1, [0], 1, state="unknown"),
            ],
        },
        [],
        [0],
    ),
    "a partition that nobody offers": (
        {"nodes": CHAIN, "candidates": ONES, "pins": [{"nodes": [0, 1], "exactly": True}]},
        [0],
        [0, 1],
    ),
    "alone and together": (
        {
            "nodes": CHAIN,
            "candidates": [*ONES, candidate(2, [0, 1], 1)],
            "pins": [
                {"nodes": [1], "toolchain": "a"},
                {"nodes": [0], "exactly": True},
                {"nodes": [0, 1], "together": True},
            ],
        },
        [1, 2],
        [0, 1],
    ),
    "a device that is not there": (
        {"nodes": CHAIN, "candidates": ONES, "pins": [{"nodes": [1], "device": "cuda:0"}]},
        [0],
        [1],
    ),
    "only such as wait for each other": (
        {"nodes": nodes([], [], [0], [1]), "candidates": CROSSED},
        [],
        [0],
    ),
}


@pytest.mark.parametrize("name", INFEASIBLE)
def test_unusual_and_infeasible(name: str) -> None:
    problem, pins, held = INFEASIBLE[name]
    answer = main_search(json.dumps(problem))
    why = answer["infeasible"]
    assert why["pins"] == pins and why["nodes"] == held and why["reason"]
    assert "cost_us" not in answer
