"""The timing protocol on a made-up clock: no second passes here.

Time on one thread does not hold what other programs ran in between.

A contender's threads are asleep before the next one's round.
"""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from collage_engine.records.placement import TIE_SHARE
from collage_engine.timing.child import timed, undisturbed
from collage_engine.timing.protocol import (
    COMPARED_FROM,
    FEWEST_ROUNDS,
    time_interleaved,
)
from collage_engine.trials.trial_job import PAUSE_S, TrialJob, until_asleep


class World:
    """A clock that only timed move on, with a machine speed that drifts."""

    def __init__(self, seed: int = 1, noise: float = 0.01) -> None:
        self.now = 0.0
        self.calls: list[tuple[str, int]] = []
        self.random = random.Random(seed)
        self.noise = noise
        self.slowness = lambda now: 1.0

    def clock(self) -> float:
        return self.now

    def timed_call(self, name: str, seconds: float, first: float = 0.0):
        fresh = [True]

        def run(calls: int) -> float:
            self.calls.append((name, calls))
            each = seconds * self.slowness(self.now) * (1 + abs(self.random.gauss(0, self.noise)))
            took = each * calls + (first if fresh[0] else 0.0)
            fresh[0] = False
            self.now += took
            return took

        return run

    def count(self, name: str) -> int:
        return sum(n == name for n, _ in self.calls)


def test_samples_last_long_enough_and_exclude_the_first_call():
    world = World()
    (timing,) = time_interleaved([world.timed_call("a", 2e-6, first=0.5)], clock=world.clock)
    assert timing.calls >= 490
    assert timing.median == pytest.approx(2e-6, rel=0.02)
    assert len(timing.samples) >= 5 and timing.low <= timing.median <= timing.high


def test_a_lone_steady_candidate_is_done_quickly():
    world = World(noise=0.002)
    (timing,) = time_interleaved([world.timed_call("a", 1e-4)], clock=world.clock)
    assert 6 <= len(timing.samples) <= 10
    assert world.now < 0.02


def test_samples_that_scatter_are_taken_until_their_median_is_precise():
    world = World(noise=0.05)
    (timing,) = time_interleaved([world.timed_call("a", 1e-3)], clock=world.clock)
    assert COMPARED_FROM < len(timing.samples) < 40
    assert timing.high - timing.low > 2 * TIE_SHARE * timing.median
    assert timing.standard_error <= TIE_SHARE * timing.median


def test_a_lone_noisy_candidate_stops_at_its_budget():
    world = World(noise=1.0)
    (timing,) = time_interleaved([world.timed_call("a", 1e-4)], clock=world.clock)
    assert 0.05 < world.now < 0.08 and len(timing.samples) > COMPARED_FROM


def test_clearly_worse_are_dropped_early():
    world = World(noise=0.1)
    timed = [
        world.timed_call("best", 1.00e-3),
        world.timed_call("near", 1.01e-3),
        world.timed_call("worse", 1.5e-3),
    ]
    timings = time_interleaved(timed, clock=world.clock)
    assert len(timings[2].samples) == COMPARED_FROM
    assert len(timings[0].samples) == len(timings[1].samples) > COMPARED_FROM


def test_slow_ones_get_as_few_samples_as_have_a_median():
    world = World()
    (timing,) = time_interleaved([world.timed_call("slow", 1.0)], clock=world.clock)
    assert len(timing.samples) == FEWEST_ROUNDS


def test_rounds_cancel_a_drifting_machine():
    """One machine slows down to half while measuring; the order of timed is still found."""
    right = 0
    for seed in range(20):
        world = World(seed=seed, noise=0.01)
        world.slowness = lambda now: 1.0 + now * 3
        a, b = time_interleaved(
            [world.timed_call("a", 1.05e-3), world.timed_call("b", 1.00e-3)],
            clock=world.clock,
            seed=seed,
        )
        right += b.median < a.median
    assert right >= 19


def taken_away() -> None:
    """As if another program had run: wall time passes, none of ours is used."""
    time.sleep(0.05)


def test_one_thread_is_not_charged_for_others() -> None:
    assert timed(taken_away, 1) < 0.02
    assert undisturbed(lambda: (taken_away(), 0.05)[1], 1) < 0.02


def test_several_threads_and_devices_take_the_time_on_the_wall() -> None:
    for threads in (0, 2):
        assert timed(taken_away, threads) >= 0.05
        assert undisturbed(lambda: (taken_away(), 0.05)[1], threads) == 0.05


class Process:
    """One whose threads use a processor for so long after a call."""

    def __init__(self, spins_s: float) -> None:
        self.now, self.spins_s = 0.0, spins_s

    def clock(self) -> float:
        return self.now

    def used(self) -> float:
        return min(self.now, self.spins_s)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def waited(spins_s: float) -> float:
    process = Process(spins_s)
    until_asleep(process.used, process.clock, process.sleep)
    return process.now


def test_it_waits_as_long_as_threads_spin() -> None:
    assert waited(0.0) == PAUSE_S
    assert 0.06 <= waited(0.06) <= 0.06 + 2 * PAUSE_S


def test_a_round_has_no_call_that_does_not_fit() -> None:
    calls: list[float] = []

    def call() -> None:
        calls.append(time.perf_counter())
        time.sleep(0.03)

    model: Any = SimpleNamespace(user_call=lambda sample: call)
    job: Any = TrialJob()
    job._model, job._sample = model, {}
    job._compare_again = lambda kept: None
    taken = job.round(warm_s=0.0, seconds=0.04, tail=True)
    assert len(taken) == 1 and len(calls) == 2, "the first one warms up"
