"""Time on one thread does not hold what other programs ran in between."""

from __future__ import annotations

import time

from collage_engine.timing.clock import timed, undisturbed


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


def test_work_of_our_own_counts_whole() -> None:
    def work() -> None:
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass

    assert timed(work, 1) >= 0.019


def test_a_timer_that_says_less_is_believed() -> None:
    assert undisturbed(lambda: 20e-6, 1) == 20e-6
