"""The measurement protocol: interleaved rounds in random order, until the times are precise.

All candidates over the same operators are timed in the same rounds, so that a slow moment of the
machine meets all of them. A sample lasts at least a millisecond. Whatever is clearly slower than
the fastest is dropped; the others get samples until their medians are precise or their time is
over. As in Inductor's ``benchmark_cpu`` (PyTorch, ``runtime/benchmarking.py``), the median counts.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from collage_engine.records.placement import TIE_SHARE

TimedCall = Callable[[int], float]
"""Makes this many calls, and returns how many seconds they took."""


@dataclass(frozen=True)
class ProtocolSettings:
    """When samples are taken and when they are enough.

    The defaults measure some ten small candidates a second.
    """

    sample_s: float = 0.001
    """Seconds that a sample lasts at least: a thousand times the clock's own cost."""
    budget_s: float = 0.06
    """Seconds for each timed call, and for those that are left as many rounds at most as samples
    fit in; chosen."""
    precise: float = TIE_SHARE
    """A median is precise once its standard error is this share of it."""
    worse: float = 1.25
    """One is clearly slower when its 20th percentile lies above the fastest's 80th by this factor;
    chosen."""


FEWEST_ROUNDS = 3
"""Rounds that are taken however long they last: the fewest whose median is not a mean."""
COMPARED_FROM = 6
"""Rounds from which on samples are compared: the fewest of which the 20th and the 80th percentile
leave one out at either end."""
DEFAULTS = ProtocolSettings()
NOTHING_DROPPED = ProtocolSettings(worse=math.inf, precise=0.0)
"""Timing in which nothing is dropped and all time is used: all of the times are needed."""


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of some values, between order statistics.

    In pure Python, since it is asked between two timed samples: ``numpy.percentile`` takes some 40
    µs, a twentieth of a sample of one millisecond.
    """
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@dataclass
class Timing:
    """The samples of one timed call.

    Attributes:
        samples: seconds per call, one number each.
        calls: calls per sample.
        dropped: it was clearly slower than the fastest.
    """

    samples: list[float] = field(default_factory=list)
    calls: int = 1
    dropped: bool = False

    def at(self, percent: float) -> float:
        """Return a percentile of the samples, in seconds per call."""
        return percentile(self.samples, percent)

    @property
    def median(self) -> float:
        """Return the median of the samples, in seconds per call."""
        return self.at(50)

    @property
    def low(self) -> float:
        """Return the 20th percentile of the samples, in seconds per call."""
        return self.at(20)

    @property
    def high(self) -> float:
        """Return the 80th percentile of the samples, in seconds per call."""
        return self.at(80)

    @property
    def standard_error(self) -> float:
        """Return the standard error of the median, in seconds per call.

        Of normally distributed samples 60 % lie within 1.683 standard deviations, and the median
        scatters 1.2533 times as much as the mean.
        """
        return 1.2533 * (self.high - self.low) / 1.683 / math.sqrt(len(self.samples))


def time_interleaved(
    timed_calls: Sequence[TimedCall],
    settings: ProtocolSettings = DEFAULTS,
    *,
    clock: Callable[[], float] = time.perf_counter,
    about_to_run: Callable[[int], None] = lambda _: None,
    seed: int = 0,
) -> list[Timing]:
    """Time these calls in interleaved rounds.

    Every one gets at least ``FEWEST_ROUNDS`` samples, whatever they cost.

    Args:
        timed_calls: what is timed.
        settings: when samples are enough.
        clock: seconds, for the budget.
        about_to_run: is called with the place of a timed call before each of its samples, so that a
            crash has a culprit.
        seed: of the order within rounds.

    Returns:
        One timing each, in order.
    """
    if not timed_calls:
        return []
    rounds = _Rounds(timed_calls, settings, about_to_run)
    rounds.warm_up()
    order, began = random.Random(seed), clock()  # a first call's own set-up is not the budget's
    for done in range(1, round(settings.budget_s / settings.sample_s) + 1):
        order.shuffle(rounds.racing)
        rounds.take_samples()
        rounds.drop_slower(done)
        if rounds.is_enough(done, clock() - began):
            break
    return rounds.timings


class _Rounds:
    """The rounds of one group while they are taken.

    Attributes:
        timings: by place.
        racing: places that were not dropped.
    """

    def __init__(
        self,
        timed_calls: Sequence[TimedCall],
        settings: ProtocolSettings,
        about_to_run: Callable[[int], None],
    ) -> None:
        self._timed_calls = timed_calls
        self._settings = settings
        self._about_to_run = about_to_run
        self.timings = [Timing() for _ in timed_calls]
        self.racing = list(range(len(timed_calls)))

    def warm_up(self) -> None:
        """Call each timed call a few times, and find out how many calls its samples need."""
        sample_s = self._settings.sample_s
        for index, timing in enumerate(self.timings):
            self._sample(index, 1)
            seconds = self._sample(index, 1)
            if seconds < sample_s:
                # A single call's overhead is in there: ask again with a quarter of a sample.
                calls = max(1, min(100, round(sample_s / max(seconds, 1e-9) / 4)))
                seconds = min(seconds, self._sample(index, calls))
            timing.calls = self._calls_for(seconds)

    def take_samples(self) -> None:
        """Take one sample of each timed call that was not dropped."""
        for index in self.racing:
            timing = self.timings[index]
            seconds = self._sample(index, timing.calls)
            if timing.calls == 1 and seconds < self._settings.sample_s / 2:
                # Only its first calls were slow: it set itself up.
                timing.calls = self._calls_for(seconds)
                seconds = self._sample(index, timing.calls)
            timing.samples.append(seconds)

    def drop_slower(self, done: int) -> None:
        """Drop the timed calls that are clearly slower and have enough samples.

        Args:
            done: How many rounds were taken.
        """
        if done < COMPARED_FROM:
            return
        best = min((self.timings[index] for index in self.racing), key=lambda each: each.median)
        for index in self.racing:
            timing = self.timings[index]
            timing.dropped = timing is not best and timing.low > self._settings.worse * best.high
        self.racing = [index for index in self.racing if not self.timings[index].dropped]

    def is_enough(self, done: int, elapsed_s: float) -> bool:
        """Tell whether the samples that were taken are enough.

        They are when the budget is spent, or when the medians of all that were not dropped are
        precise.

        Args:
            done: How many rounds were taken.
            elapsed_s: Seconds since the first of them began.
        """
        settings = self._settings
        if done < FEWEST_ROUNDS:
            return False
        if elapsed_s >= settings.budget_s * len(self.timings):
            return True
        return done >= COMPARED_FROM and all(
            self.timings[index].standard_error <= settings.precise * self.timings[index].median
            for index in self.racing
        )

    def _sample(self, index: int, calls: int) -> float:
        """Return the seconds per call of so many calls, after noting who is about to run."""
        self._about_to_run(index)
        return self._timed_calls[index](calls) / calls

    def _calls_for(self, seconds: float) -> int:
        """Return how many calls of so many seconds last as long as a sample should."""
        return max(1, math.ceil(self._settings.sample_s / max(seconds, 1e-9)))
