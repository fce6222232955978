"""How slow the machine is, by readings of a speed probe that are made up."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from collage_engine.machine.risk_marker import RiskMarker
from collage_engine.records.cost import Cost
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.store.normalising import LEAST_CHANGE, geometric_mean_us, slowness_at
from collage_engine.timing import job
from collage_engine.timing.job import run_group
from collage_engine.timing.messages import OpenRequest, TimingReply, TimingRequest
from collage_engine.timing.speed_probe import NAME, Reading, SpeedProbe, reference, typical


class Machine:
    """A speed probe's readings, some of them disturbed, and a clock they move on."""

    def __init__(self, disturbed: float) -> None:
        self.random = random.Random(3)
        self.disturbed = disturbed
        self.now = 0.0

    def read(self) -> Reading:
        slow = 1.7 if self.random.random() < self.disturbed else 1.0
        noise = self.random.uniform(1.0, 1.01)
        self.now += 60e-6 * slow
        return 30e-6 * slow * noise, 25e-6 * slow * noise

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize("disturbed", [0.0, 0.4, 0.7])
def test_the_reference_is_that_of_calm_moments(disturbed: float) -> None:
    machine = Machine(disturbed)
    known = reference(machine.read, machine.clock)
    assert known == pytest.approx((30e-6, 25e-6), rel=0.02)
    # It looks longer where the machine does not settle.
    assert machine.now < 0.15 if disturbed == 0.0 else machine.now >= 1.0


def slowness(readings: list[Reading], known: Reading, percent: float) -> float:
    """How much slower than at the reference the machine was while it was read."""
    now = geometric_mean_us(typical(readings, percent))
    return slowness_at(now, geometric_mean_us(known))


def test_slowness_is_the_mean_of_both_kernels_and_little_is_nothing() -> None:
    known = (30e-6, 25e-6)
    assert slowness([(60e-6, 50e-6)] * 9, known, 50) == pytest.approx(2.0)
    assert slowness([(60e-6, 25e-6)] * 9, known, 50) == pytest.approx(2.0**0.5)
    assert slowness([(15e-6, 12.5e-6)] * 9, known, 50) == pytest.approx(0.5)
    assert slowness([(30e-6 * (1 + LEAST_CHANGE), 25e-6)] * 9, known, 50) == 1.0
    # Disturbed in half of the moments: the calmer quarter says what the calmer samples met.
    half = [(30e-6, 25e-6)] * 5 + [(60e-6, 50e-6)] * 5
    assert slowness(half, known, 25) == 1.0


def test_the_probe_takes_some_time_and_little() -> None:
    first, second = SpeedProbe().read()
    assert 0 < first < 1 and 0 < second < 1


class Slow(SpeedProbe):
    """A probe that says the machine is twice as slow as it was."""

    def read(self) -> Reading:
        return 60e-6, 50e-6


class Made:
    """A candidate that takes 100 µs or so a call, every other time half as much again if it is
    disturbed."""

    max_rel_error = 0.0

    def __init__(self, us: float, disturbed: bool) -> None:
        self.us = us
        self.disturbed = disturbed
        self.number = 0

    def time(self, calls: int) -> float:
        self.number += 1
        slow = 1.5 if self.disturbed and self.number % 2 else 1.0
        return self.us * 1e-6 * calls * slow * (1 + 0.0001 * (self.number % 3))

    def warm_inputs(self) -> None: ...

    def close(self) -> None: ...


class MadeBench:
    cold = False

    def __init__(self, disturbed: bool) -> None:
        self.disturbed = disturbed

    def prepare(self, nodes: tuple[int, ...], instance: ToolchainInstance, *_: object) -> Made:
        return Made({"a": 100.0, "b": 104.0}[instance.toolchain], self.disturbed)

    def evict(self) -> None: ...


@pytest.fixture(autouse=True)
def made_up_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No processor time passes here."""
    monkeypatch.setattr(job, "undisturbed", lambda seconds, threads: seconds())


def costs(
    folder: Path, threads: int, *, architecture: str = "", disturbed: bool = False
) -> dict[int, Cost]:
    """Of candidates of 100 and 104 µs, measured while the probe takes twice its reference."""
    marker = RiskMarker(folder / "marker", create=True)
    opened = OpenRequest("m.onnx", {}, "", str(marker.path), "here", probe_reference=(30e-6, 25e-6))
    instances = {
        place: ToolchainInstance(toolchain=name, threads=threads, architecture=architecture)
        for place, name in enumerate("ab")
    }
    found: dict[int, Cost] = {}

    def send(answer: TimingReply) -> None:
        if answer.cost is not None:
            found[answer.place] = answer.cost

    try:
        bench: Any = MadeBench(disturbed)
        run_group(bench, TimingRequest((0,), instances), opened, marker, send, Slow())
    finally:
        marker.close()
    return found


def test_costs_of_one_thread_are_told_at_the_reference_and_keep_their_order(tmp_path: Path) -> None:
    found = costs(tmp_path, 1)
    assert [found[k].slowness for k in (0, 1)] == pytest.approx([2.0, 2.0])
    reference_us = geometric_mean_us((30e-6, 25e-6))
    assert {(c.probe, c.probe_us) for c in found.values()} == {(NAME, reference_us)}
    assert [found[k].reading_us for k in (0, 1)] == pytest.approx([2 * reference_us] * 2)
    assert [found[k].median_us for k in (0, 1)] == pytest.approx([50.0, 52.0], rel=0.01)
    assert max(found[0].repeats_us) < 51.0


@pytest.mark.parametrize(("threads", "architecture"), [(2, ""), (1, "sm_90a")])
def test_the_probe_says_nothing_of_several_threads_or_of_a_device(
    tmp_path: Path, threads: int, architecture: str
) -> None:
    found = costs(tmp_path, threads, architecture=architecture)
    assert [found[k].slowness for k in (0, 1)] == [1.0, 1.0]
    assert {(c.probe, c.probe_us, c.reading_us) for c in found.values()} == {("", None, None)}
    assert [found[k].median_us for k in (0, 1)] == pytest.approx([100.0, 104.0], rel=0.01)


def test_the_calmer_half_counts_on_one_thread_only(tmp_path: Path) -> None:
    assert costs(tmp_path, 1, disturbed=True)[0].high_us == pytest.approx(50.0, rel=0.01)
    assert costs(tmp_path, 2, disturbed=True)[0].high_us == pytest.approx(150.0, rel=0.01)


def test_the_probe_runs_once_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first run pays for what another's work has pushed out of the caches."""
    probe = SpeedProbe()
    runs = iter([(9.0, 9.0), (1.0, 2.0)])
    monkeypatch.setattr(probe, "_work", lambda: next(runs))
    assert probe.read() == (1.0, 2.0)
