"""Constants of hand-overs and launches: arithmetic on a made-up machine."""

from __future__ import annotations

from itertools import pairwise

import pytest

from collage_engine.machine.constants import (
    LONG,
    SHORT,
    constants_from,
    measure_constants,
    wanted_chains,
)
from collage_engine.records.hand_over_constants import pair_name

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
    found = measure_constants(
        list(ALONE), ALONE.__getitem__, lambda chains: {c: chain_us(c) for c in chains}
    )
    assert found["launch"] == pytest.approx(0.5)
    assert found[pair_name("tvm", "tvm")] == pytest.approx(0.0)
    assert found[pair_name("ort", "ort")] == pytest.approx(1.0)
    assert found[pair_name("dnn", "dnn")] == pytest.approx(0.3)
    # Half of each one's own surplus, and the change itself.
    assert found[pair_name("dnn", "ort")] == pytest.approx(4.0 + 0.65)
    assert found[pair_name("ort", "dnn")] == found[pair_name("dnn", "ort")]
    assert found[pair_name("dnn", "tvm")] == pytest.approx(0.15)


def test_an_estimate_with_these_constants_matches_long_chains():
    found = measure_constants(
        list(ALONE), ALONE.__getitem__, lambda chains: {c: chain_us(c) for c in chains}
    )
    chain = ("tvm", "ort", "ort", "dnn", "tvm", "dnn", "ort") * 20
    estimate = sum(ALONE[n] + found["launch"] for n in chain)
    estimate += sum(found[pair_name(a, b)] for a, b in pairwise(chain))
    assert estimate == pytest.approx(chain_us(chain) - 100.0, rel=0.01)


def test_a_moment_of_the_machine_between_the_timings_is_no_hand_over():
    """What was timed before the rounds of the chains, at another speed, decides nothing."""

    def slow_chains(chains):
        return {c: 2.5 * chain_us(c) for c in chains}

    found = measure_constants(list(ALONE), ALONE.__getitem__, slow_chains)
    steady = measure_constants(
        list(ALONE), ALONE.__getitem__, lambda chains: {c: chain_us(c) for c in chains}
    )
    assert found == pytest.approx({name: 2.5 * us for name, us in steady.items()})


def test_noise_never_makes_a_constant_negative_and_missing_toolchains_are_left_out():
    def built(chains):
        return {c: 90.0 for c in chains if "dnn" not in c}

    def alone(name):
        if name == "cublas":
            raise KeyError(name)
        return ALONE[name]

    found = measure_constants(["tvm", "ort", "dnn", "cublas"], alone, built)
    assert found["launch"] == 0.0
    assert set(found) == {
        "launch",
        *(pair_name(a, b) for a in ("tvm", "ort") for b in ("tvm", "ort")),
    }
    assert all(us >= 0 for us in found.values())
    assert constants_from([], ChainTimesEmpty) == {"launch": 0.0}


class ChainTimesEmpty:
    alone: dict = {}
    chains: dict = {}


def test_chains_are_balanced():
    chains = wanted_chains(["a", "b"])
    assert ("a",) * SHORT in chains and ("a", "b") * (LONG // 2) in chains
    assert len(chains) == 6
