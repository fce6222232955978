"""The measurement protocol: interleaved rounds in random order, until the times are precise.

All candidates over the same operators are timed in the same rounds, so that a slow moment of the
machine meets all of them. A sample lasts at least a millisecond. Whatever is clearly slower than
the fastest is dropped; the others get samples until their medians are precise or their time is
over. As in Inductor's ``benchmark_cpu`` (PyTorch, ``runtime/benchmarking.py``), the median counts.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from collage_engine.records.placement import TIE_SHARE

TimedCall = Callable[[int], float]
"""Makes this many calls, and returns how many seconds they took."""


SAMPLE_S = 0.001
"""Seconds that a sample lasts at least: a thousand times the clock's own cost."""
BUDGET_S = 0.06
"""Seconds for each timed call, and for those that are left as many rounds at most as samples fit
in; chosen: some ten small candidates are measured a second."""
WORSE = 1.25
"""One is clearly slower when its 20th percentile lies above the fastest's 80th by this factor;
chosen."""
FEWEST_ROUNDS = 3
"""Rounds that are taken however long they last: the fewest whose median is not a mean."""
COMPARED_FROM = 6
"""Rounds from which on samples are compared: the fewest of which the 20th and the 80th percentile
leave one out at either end."""


@dataclass
class Timing:
    """The samples of one timed call.

    Attributes:
        samples: seconds per call, one number each.
        calls: calls per sample.
    """

    samples: list[float] = field(default_factory=list)
    calls: int = 1

    @property
    def median(self) -> float:
        """Return the median of the samples, in seconds per call."""
        return statistics.median(self.samples)

    @property
    def low(self) -> float:
        """Return the 20th percentile of the samples, in seconds per call."""
        return statistics.quantiles(self.samples, n=5, method="inclusive")[0]

    @property
    def high(self) -> float:
        """Return the 80th percentile of the samples, in seconds per call."""
        return statistics.quantiles(self.samples, n=5, method="inclusive")[-1]

    @property
    def standard_error(self) -> float:
        """Return the standard error of the median, in seconds per call.

        Of normally distributed samples 60 % lie within 1.683 standard deviations, and the median
        scatters 1.2533 times as much as the mean.
        """
        return 1.2533 * (self.high - self.low) / 1.683 / math.sqrt(len(self.samples))


def time_interleaved(
    timed_calls: Sequence[TimedCall],
    *,
    drops: bool = True,
    clock: Callable[[], float] = time.perf_counter,
    about_to_run: Callable[[int], None] = lambda _: None,
    seed: int = 0,
) -> list[Timing]:
    """Time these calls in interleaved rounds.

    Every one gets at least ``FEWEST_ROUNDS`` samples, whatever they cost.

    Args:
        timed_calls: what is timed.
        drops: whether the clearly slower are dropped, and the time ends once medians are precise;
            else all of the times are needed, and all time is used.
        clock: seconds, for the budget.
        about_to_run: is called with the place of a timed call before each of its samples, so that a
            crash has a culprit.
        seed: of the order within rounds.

    Returns:
        One timing each, in order.
    """
    if not timed_calls:
        return []
    rounds = _Rounds(timed_calls, about_to_run)
    rounds.warm_up()
    order, began = random.Random(seed), clock()  # a first call's own set-up is not the budget's
    for done in range(1, round(BUDGET_S / SAMPLE_S) + 1):
        order.shuffle(rounds.racing)
        rounds.take_samples()
        if drops and done >= COMPARED_FROM:
            rounds.drop_slower()
            if rounds.are_precise():
                break
        if done >= FEWEST_ROUNDS and clock() - began >= BUDGET_S * len(timed_calls):
            break
    return rounds.timings


@dataclass
class _Rounds:
    """The rounds of one group while they are taken."""

    timed_calls: Sequence[TimedCall]
    about_to_run: Callable[[int], None]

    def __post_init__(self) -> None:
        self.timings = [Timing() for _ in self.timed_calls]
        self.racing = list(range(len(self.timed_calls)))
        """Places of those that were not dropped."""

    def warm_up(self) -> None:
        """Call each timed call a few times, and find out how many calls its samples need."""
        for index, timing in enumerate(self.timings):
            self._sample(index, 1)
            seconds = self._sample(index, 1)
            if seconds < SAMPLE_S:
                # A single call's overhead is in there: ask again with a quarter of a sample.
                calls = max(1, min(100, round(SAMPLE_S / max(seconds, 1e-9) / 4)))
                seconds = min(seconds, self._sample(index, calls))
            timing.calls = self._calls_for(seconds)

    def take_samples(self) -> None:
        """Take one sample of each timed call that was not dropped."""
        for index in self.racing:
            timing = self.timings[index]
            seconds = self._sample(index, timing.calls)
            if timing.calls == 1 and seconds < SAMPLE_S / 2:
                # Only its first calls were slow: it set itself up.
                timing.calls = self._calls_for(seconds)
                seconds = self._sample(index, timing.calls)
            timing.samples.append(seconds)

    def drop_slower(self) -> None:
        """Drop the timed calls that are clearly slower."""
        best = min((self.timings[index] for index in self.racing), key=lambda each: each.median)
        self.racing = [
            index
            for index in self.racing
            if self.timings[index] is best or self.timings[index].low <= WORSE * best.high
        ]

    def are_precise(self) -> bool:
        """Tell whether the medians of all that were not dropped are precise.

        A median is precise once its standard error is ``TIE_SHARE`` of it.
        """
        timings = [self.timings[index] for index in self.racing]
        return all(one.standard_error <= TIE_SHARE * one.median for one in timings)

    def _sample(self, index: int, calls: int) -> float:
        """Return the seconds per call of so many calls, after noting who is about to run."""
        self.about_to_run(index)
        return self.timed_calls[index](calls) / calls

    def _calls_for(self, seconds: float) -> int:
        """Return how many calls of so many seconds last as long as a sample should."""
        return max(1, math.ceil(SAMPLE_S / max(seconds, 1e-9)))
