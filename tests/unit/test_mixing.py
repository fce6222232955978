"""The bound on what mixing toolchains could win, against brute force."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from collage_engine.drawing.facts import mixing_fact
from collage_engine.drawing.palette import toolchain_title
from collage_engine.planning.mixing import mixing_bound
from collage_engine.records.mixing import MixingBound
from collage_engine.search.problem_json import problem_from
from tests.support.search_instances import BruteForce, random_problem


def alone(data: dict[str, Any], name: str) -> Fraction | None:
    kept = [c for c in data["candidates"] if c["toolchain"].partition("[")[0] == name]
    return BruteForce(data | {"candidates": kept}).least([])


def test_it_is_a_bound_of_every_cover_and_names_the_best_toolchain_alone() -> None:
    bounded = unmeasured = 0
    for seed in range(9 * 10**8, 9 * 10**8 + 150):
        data = random_problem(seed, nodes=6)
        data.pop("pins", None)
        names = sorted({c["toolchain"].partition("[")[0] for c in data["candidates"]})
        costs = {n: cost for n in names if (cost := alone(data, n)) is not None}
        found = mixing_bound(problem_from(data), time_limit_s=60.0)
        if not costs:
            assert found is None, f"seed {seed}"
            continue
        assert found is not None
        assert found.alone_us == pytest.approx(float(min(costs.values())))
        assert costs[found.toolchain] == min(costs.values())
        assert found.bound_us <= float(BruteForce(data, optimistic=True).least([]) or 0) + 1e-6
        formats = [[*each[:3], 0.0] for each in data["transitions"].get("formats", ())]
        free = data | {"transitions": {"formats": formats}}
        least = BruteForce(free, optimistic=True).least([])
        assert least is not None
        assert found.bound_us == pytest.approx(float(min(least, *costs.values())))
        bounded += 1
        unmeasured += not found.proves
    assert bounded > 20 and 0 < unmeasured < bounded


def test_no_time_is_no_bound() -> None:
    data = {
        "nodes": [{"id": 0}],
        "candidates": [{"id": 0, "nodes": [0], "toolchain": "a", "cost_us": 1}],
    }
    assert mixing_bound(problem_from(data), time_limit_s=0.0) is None


def test_the_sentence_names_the_assumption() -> None:
    some = MixingBound(toolchain="onednn", alone_us=100.0, bound_us=88.0, proves=True)
    fact = mixing_fact(some)
    assert fact.value == (
        f"at most 12.0 % faster than {toolchain_title('onednn')} alone, if no candidate runs "
        "faster in the model than by itself"
    )
    none = MixingBound(toolchain="onednn", alone_us=100.0, bound_us=100.0, proves=False)
    assert mixing_fact(none).value.startswith("cannot be faster than ")
    assert mixing_fact(none).value.endswith("what is not measured counts at its lower bound")
