"""Merges of touching partitions that a search proposes."""

from __future__ import annotations

from collage_engine.search.api import check, k_best
from collage_engine.search.coalesce import coalesce
from collage_engine.search.problem_json import problem_from
from tests.support.search_instances import BruteForce, random_problem


def test_proposed_merges_are_valid_and_acyclic() -> None:
    merged = 0
    for seed in range(6 * 10**8, 6 * 10**8 + 200):
        data = random_problem(seed, cyclic=seed % 2 == 0)
        problem = problem_from(data)
        ranked_covers = k_best(problem, 2)
        have = [(frozenset(c.nodes), c.toolchain, c.takes, c.gives) for c in problem.candidates]
        for proposal in coalesce(problem, [r.cover for r in ranked_covers]):
            merged += 1
            made = (proposal.toolchain, proposal.takes, proposal.gives)
            assert (frozenset(proposal.nodes), *made) not in have
            assert len(proposal.parts) >= 2
            data["candidates"].append(
                {
                    "id": "merged",
                    "nodes": list(proposal.nodes),
                    "cost_us": 0.0,
                    "toolchain": proposal.toolchain,
                    "takes": {str(n): name for n, name in proposal.takes.items()},
                    "gives": {str(n): name for n, name in proposal.gives.items()},
                }
            )
            for ranked in ranked_covers:
                if set(proposal.parts) <= set(ranked.cover):
                    cover = [c for c in ranked.cover if c not in proposal.parts]
                    grown = problem_from(data)  # raises when the merge is not convex
                    judged = BruteForce({**data, "pins": []})
                    chosen = judged.indices([*cover, "merged"])
                    assert not judged._has_cycle(chosen), f"seed {seed}"
                    assert "wait for each other" not in str(check(grown, [*cover, "merged"]))
            data["candidates"].pop()
    assert merged > 50


def test_merges_stop_at_what_would_wait_for_each_other() -> None:
    """A defect of upstream: a→{b,d}, c→{b,d} with a, b on one toolchain and c, d on another."""
    problem = problem_from(
        {
            "nodes": [
                {"id": 0},
                {"id": 1},
                {"id": 2, "inputs": [0, 1]},
                {"id": 3, "inputs": [0, 1]},
            ],
            "candidates": [
                {"id": n, "nodes": [i], "toolchain": t, "cost_us": 1.0}
                for n, i, t in (("a", 0, "s"), ("c", 1, "t"), ("b", 2, "s"), ("d", 3, "t"))
            ],
        }
    )
    found = {p.parts for p in coalesce(problem, [["a", "c", "b", "d"]])}
    # Either merge alone is fine, so both are offered; as candidates, the search keeps them apart.
    assert found == {("a", "b"), ("c", "d")}
    assert coalesce(problem, [["a", "c", "b", "d"]], may_merge=lambda nodes, t: t == "s")[0].parts
