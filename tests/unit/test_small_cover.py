"""The cover of the smallest candidates, against brute force and under pins and limits."""

from __future__ import annotations

from typing import Any

from collage_engine.search.check import check_cover
from collage_engine.search.problem_json import problem_from
from collage_engine.search.small_cover import small_cover
from tests.support.search_instances import BruteForce, random_problem


def test_what_it_returns_is_always_a_cover_and_mostly_it_finds_one() -> None:
    """It never contradicts brute force, and finds a cover for most problems that have one."""
    feasible = found = 0
    for seed in range(600):
        data = random_problem(seed, cyclic=seed % 3 == 0)
        pins = data.get("pins", [])
        truth = BruteForce(data)
        honoured = {frozenset(cover) for _, cover in truth.honoured(pins)}
        cover = small_cover(problem_from(data))
        feasible += bool(honoured)
        if cover is not None:
            found += 1
            assert frozenset(truth.indices(cover)) in honoured, f"seed {seed}"
    assert feasible > 150
    assert found > 0.6 * feasible


def _chain(**more: Any) -> dict[str, Any]:
    """Three nodes in a row, each alone on a and on b, and the last two together on b."""
    candidates = [
        {"id": f"{name}{node}", "nodes": [node], "toolchain": name, "cost_us": 1.0}
        for node in range(3)
        for name in "ab"
    ]
    candidates.append({"id": "pair", "nodes": [1, 2], "toolchain": "b", "cost_us": 1.0})
    nodes = [{"id": node, "inputs": [node - 1] if node else []} for node in range(3)]
    return {"nodes": nodes, "candidates": candidates, **more}


def test_nodes_that_a_pin_keeps_together_get_their_candidate_first() -> None:
    problem = problem_from(_chain(pins=[{"nodes": [1, 2], "together": True}]))
    cover = small_cover(problem)
    assert cover is not None and set(cover) in ({"pair", "a0"}, {"pair", "b0"})


def test_it_keeps_to_the_allowed_runtimes_and_to_their_number() -> None:
    cover = small_cover(problem_from(_chain(constraints={"allow": ["b"]})))
    assert cover is not None and set(cover) == {"b0", "b1", "b2"}
    data = _chain(constraints={"max_runtimes": 1})
    data["candidates"] = [c for c in data["candidates"] if c["id"] != "a1"]
    cover = small_cover(problem_from(data))  # a cannot run every node, b can
    assert cover is not None and set(cover) == {"b0", "b1", "b2"}


def test_candidates_that_nobody_measured_or_that_failed_are_not_chosen() -> None:
    data = _chain()
    for candidate in data["candidates"]:
        if candidate["toolchain"] == "a":
            candidate.update(state="invalid", cost_us=None)
    problem = problem_from(data)
    cover = small_cover(problem)
    assert cover is not None and isinstance(check_cover(problem, cover), float)
    assert set(cover) == {"b0", "b1", "b2"}


def test_where_a_node_has_no_candidate_there_is_none() -> None:
    data = _chain()
    data["candidates"] = [c for c in data["candidates"] if 1 not in c["nodes"]]
    assert small_cover(problem_from(data)) is None
