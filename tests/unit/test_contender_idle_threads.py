"""A contender's threads are asleep before the next one's round."""

from __future__ import annotations

from collage_engine.trials.trial_job import LONGEST_SPIN_WAIT_S, SPIN_CHECK_S, until_asleep


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
    assert waited(0.0) == SPIN_CHECK_S
    assert 0.06 <= waited(0.06) <= 0.06 + 2 * SPIN_CHECK_S


def test_threads_that_never_sleep_are_not_waited_for() -> None:
    assert LONGEST_SPIN_WAIT_S <= waited(1e9) <= LONGEST_SPIN_WAIT_S + SPIN_CHECK_S
