"""How slow the machine is, by readings of a guard that are made up."""

from __future__ import annotations

import random

import pytest

from collage_engine.measure.guard import LEAST, Guard, Reading, reference, slowness


class Machine:
    """A guard's readings, some of them disturbed, and a clock they move on."""

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


def test_slowness_is_the_mean_of_both_kernels_and_little_is_nothing() -> None:
    known = (30e-6, 25e-6)
    assert slowness([(60e-6, 50e-6)] * 9, known, 50) == pytest.approx(2.0)
    assert slowness([(60e-6, 25e-6)] * 9, known, 50) == pytest.approx(2.0**0.5)
    assert slowness([(15e-6, 12.5e-6)] * 9, known, 50) == pytest.approx(0.5)
    assert slowness([(30e-6 * (1 + LEAST / 2), 25e-6)] * 9, known, 50) == 1.0
    assert slowness([], known, 50) == 1.0
    # Disturbed in half of the moments: the calmer quarter says what the calmer samples met.
    half = [(30e-6, 25e-6)] * 5 + [(60e-6, 50e-6)] * 5
    assert slowness(half, known, 25) == 1.0


def test_the_guard_takes_some_time_and_little() -> None:
    first, second = Guard().read()
    assert 0 < first < 1 and 0 < second < 1
