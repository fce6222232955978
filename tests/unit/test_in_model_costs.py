"""What partitions take within a model: the fit, and costs as they are there.

Constants of transitions and launches: arithmetic on a made-up machine.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from collage_engine.records.candidate import Cost, CostTable, invalid
from collage_engine.records.format import pair_name
from collage_engine.timing.chain_bench import (
    constants_from,
    measure_constants,
)
from collage_engine.trials.in_model_costs import PartitionWork, fit


def true_time(toolchain: str, alone: float, weights: int, values: int, share: float) -> float:
    call, relative = {"tvm": (0.2, 0.05), "onednn": (4.0, 0.15)}[toolchain]
    return alone + (1 - share) * (call + relative * alone + 4e-5 * weights + 2e-5 * values)


def observations(count: int = 60, noise: float = 0.0) -> list[tuple[PartitionWork, float]]:
    draw = random.Random(3)
    found = []
    for number in range(count):
        name = ("tvm", "onednn")[number % 2]
        alone = 10 ** draw.uniform(0, 3)
        weights, values = draw.randrange(0, 4_000_000), draw.randrange(1_000, 900_000)
        work = PartitionWork(
            toolchain=name,
            isolated_us=alone,
            weight_bytes=weights,
            value_bytes=values,
            share=alone / 20_000,
        )
        us = true_time(name, alone, weights, values, work.share)
        found.append((work, us * (1 + draw.uniform(-noise, noise))))
    return found


def test_what_was_seen_is_told_again():
    seen = observations(noise=0.02)
    model = fit(seen)
    for work, us in seen:
        assert work.isolated_us + model.added_us(work) == pytest.approx(us, rel=0.1, abs=4)


def test_a_toolchain_seen_too_little_is_told_by_all_of_them():
    model = fit(observations()[:4])
    assert set(model.toolchains) == {""}


MEASURED = Cost(
    state="measured",
    median_us=10.0,
    low_us=9.0,
    high_us=12.0,
    count=3,
)


def test_what_is_measured_anew_keeps_its_place():
    fresh, refused = Cost(state="measured", median_us=20.0), invalid("it crashed")
    costs = CostTable({"a": MEASURED, "b": MEASURED, "c": MEASURED})
    costs = costs.with_in_model({"b": (15.0, "predicted"), "c": (15.0, "seen")})
    assert (costs.cost("a").us, costs.cost("b").us) == (10.0, 15.0)
    again = costs.with_isolated({"a": fresh, "b": fresh, "c": refused})
    assert again.cost("a") == fresh and again.cost("c") == refused
    assert (again.cost("b").median_us, again.cost("b").us) == (20.0, 30.0)
    assert again.cost("b").in_model == "predicted"
    assert again.with_in_model({}).cost("b") == fresh


ALONE = {"tvm": 5.0, "ort": 7.0, "dnn": 3.0}
LAUNCH_US = {"tvm": 0.5, "ort": 1.5, "dnn": 0.8}
PAIRS = {("dnn", "ort"): 4.0, ("ort", "tvm"): 0.3}


def chain_us(chain: tuple[str, ...]) -> float:
    """A made-up machine: 100 µs once, then parts, launches and changes; a chain of one is alone."""
    if len(chain) == 1:
        return ALONE[chain[0]]
    total = 100.0 + sum(ALONE[n] + LAUNCH_US[n] for n in chain)
    return total + sum(PAIRS.get(tuple(sorted(p)), 0.0) for p in pairwise(chain))


def test_constants_of_a_made_up_machine_are_found_again():
    found = measure_constants(list(ALONE), lambda chains: {c: chain_us(c) for c in chains})
    assert found["launch"] == pytest.approx(0.5)
    assert found[pair_name("tvm", "tvm")] == pytest.approx(0.0)
    assert found[pair_name("ort", "ort")] == pytest.approx(1.0)
    assert found[pair_name("dnn", "dnn")] == pytest.approx(0.3)
    # Half of each one's own surplus, and the change itself.
    assert found[pair_name("dnn", "ort")] == pytest.approx(4.0 + 0.65)
    assert found[pair_name("ort", "dnn")] == found[pair_name("dnn", "ort")]
    assert found[pair_name("dnn", "tvm")] == pytest.approx(0.15)


def test_noise_never_makes_a_constant_negative_and_missing_toolchains_are_left_out():
    def built(chains):
        able = [c for c in chains if not {"dnn", "cublas"}.intersection(c)]
        return {c: ALONE[c[0]] if len(c) == 1 else 90.0 for c in able}

    found = measure_constants(["tvm", "ort", "dnn", "cublas"], built)
    assert found["launch"] == 0.0
    assert set(found) == {
        "launch",
        *(pair_name(a, b) for a in ("tvm", "ort") for b in ("tvm", "ort")),
    }
    assert all(us >= 0 for us in found.values())
    assert constants_from({}, {}) == {"launch": 0.0}
