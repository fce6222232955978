"""Peaks and transition constants: arithmetic on made-up numbers, one look at this machine."""

from __future__ import annotations

from itertools import pairwise

import pytest

from collage_engine.machine import peaks as module
from collage_engine.machine.constants import (
    LONG,
    SHORT,
    constants_from,
    measure_constants,
    wanted_chains,
)
from collage_engine.machine.peaks import (
    FAR_MARGIN,
    Level,
    Peaks,
    combine,
    per_cycle,
    runs_in_halves,
)
from collage_engine.records.errors import MeasureError
from collage_engine.records.hand_over_constants import pair_name


def test_operations_per_cycle_follow_the_instruction_sets():
    assert per_cycle("float32", frozenset({"avx512f", "fma"})) == 64
    assert per_cycle("float32", frozenset({"fma", "avx2"})) == 32
    assert per_cycle("float32", frozenset()) == 16
    assert per_cycle("int8", frozenset({"amx_int8", "avx512_vnni"})) == 2048
    assert per_cycle("float64", frozenset({"avx512f"})) == 32


def test_zen_4_runs_512_bit_operations_in_halves():
    flags = frozenset({"avx512f", "avx512_vnni", "fma", "avx2"})
    assert runs_in_halves("AMD EPYC AuthenticAMD 25 17 1", flags)
    assert not runs_in_halves("AMD EPYC AuthenticAMD 26 2 1", flags)
    assert not runs_in_halves("Xeon GenuineIntel 6 143 8", flags)
    assert not runs_in_halves("AMD EPYC AuthenticAMD 25 1 1", flags - {"avx512f"})
    assert per_cycle("float32", flags, halves=True) == 32
    assert per_cycle("int8", flags, halves=True) == 128
    slow = combine(3e9, {"float32": 1e9, "float64": 1e9}, [(0, 1e9)], flags, halves=True)
    assert slow.flops["float32"] == pytest.approx(32 * 3e9 * 1.05)
    assert slow.levels[0].bytes_per_s == pytest.approx(3 * 32 * 3e9 * 1.05)


def test_the_larger_of_theory_and_measurement_counts():
    flags = frozenset({"avx512f", "fma"})
    slow = combine(3e9, {"float32": 1e9, "float64": 1e9}, [(0, 1e9)], flags)
    assert slow.flops["float32"] == pytest.approx(64 * 3e9 * 1.05)
    fast = combine(3e9, {"float32": 9e12, "float64": 1e9}, [(0, 1e9)], flags)
    assert fast.flops["float32"] == pytest.approx(9e12 * 1.05)
    blind = combine(0.0, {"float32": 1e9, "float64": 1e9}, [(0, 1e9), (100, 5e8)], frozenset())
    assert blind.flops["float32"] == pytest.approx(1e9 * FAR_MARGIN)
    assert blind.flops["int8"] > blind.flops["float16"] > blind.flops["float32"]
    assert blind.levels[1].bytes_per_s == 5e8 * FAR_MARGIN


def test_near_levels_are_as_wide_as_their_paths_and_far_ones_never_faster():
    found = combine(
        1e9,
        {"float32": 1.0, "float64": 1.0},
        [(0, 1.0), (10, 1.0), (20, 1e15)],
        frozenset({"avx512f"}),
    )
    rates = [level.bytes_per_s for level in found.levels]
    assert rates == pytest.approx([192e9 * 1.05, 64e9 * 1.05, 64e9 * 1.05])


def test_reading_time_counts_what_caches_cannot_keep():
    peaks = Peaks(flops={"float32": 1e9}, levels=(Level(0, 100.0), Level(50, 10.0)), hertz=1.0)
    assert peaks.read_s(40, 1) == pytest.approx(0.4)
    assert peaks.read_s(150, 1) == pytest.approx(10.0)
    assert peaks.read_s(150, 2) == pytest.approx(50 / 20)
    assert peaks.compute_s(4e9, "float32", 2) == pytest.approx(2.0)
    assert peaks.compute_s(1e9, "complex64", 1) == pytest.approx(1.0), "unknown: the best there is"


def test_this_machine():
    found = module.measure_peaks()
    assert found.flops["float32"] > 1e9
    assert found.flops["float64"] <= found.flops["float32"]
    assert all(a.holds < b.holds for a, b in pairwise(found.levels))
    assert all(a.bytes_per_s >= b.bytes_per_s for a, b in pairwise(found.levels))


def test_without_a_compiler_there_are_no_peaks(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    module._build.cache_clear()
    with pytest.raises(MeasureError, match="no C\\+\\+ compiler"):
        module.measure_peaks()
    module._build.cache_clear()


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
