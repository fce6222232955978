"""How candidates are timed against each other: pure logic over functions that take time.

A *timed call* is a function ``calls -> seconds``. Those timed together do the same work on the same
inputs. They are timed in rounds, each round in another order, so that a slow moment of the machine
falls on all of them: what is compared are samples of the same round. One that is clearly slower is
dropped after a few rounds; the rest go on until the fastest is known or the budget is spent.

A sample is the mean of enough calls to last ``sample_s``: the timer's own cost and single
interruptions vanish, and the 20th and 80th percentile say what is left of the noise.

What disturbs a timing only ever lengthens it. Where a group's samples, of one thread, scatter more
than a calm machine's do, only the faster half of each one's samples counts.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from collage_engine.timing.order_statistics import percentile, sign_test_interval

TimedCall = Callable[[int], float]
"""Makes this many calls, and returns how many seconds they took."""

MOST_ROUNDS = 64
"""Rounds of a timing at most; chosen: as many repeats as a cost keeps."""


@dataclass(frozen=True)
class ProtocolSettings:
    """When samples are taken and when they are enough.

    The defaults measure some ten small candidates a second.
    """

    sample_s: float = 0.001
    """Seconds that a sample lasts at least; chosen: a thousand times the clock's own cost."""
    warm_calls: int = 2
    """Calls before the first sample; chosen."""
    probe_share: float = 0.25
    """Share of ``sample_s`` that a second look at a short call lasts, since the overhead of a
    single call is in the first; chosen."""
    probe_calls: int = 100
    """Calls in that look at most; chosen."""
    min_rounds: int = 7
    """Rounds before one is dropped for being clearly slower; chosen."""
    max_rounds: int = MOST_ROUNDS
    """Rounds that are taken at most."""
    budget_s: float = 0.06
    """Seconds per timed call, while it is known which is the fastest; chosen."""
    contested_budget_s: float = 0.1
    """Seconds per timed call, while the fastest is not known; chosen."""
    worse: float = 1.25
    """One is clearly slower when its 20th percentile lies above the fastest's 80th by this factor;
    chosen."""
    hopeless: float = 4.0
    """One that is slower by this factor already in the warm-up needs a few samples only; chosen."""
    hopeless_rounds: int = 3
    """Rounds after which such a one is dropped; chosen."""
    slow_s: float = 0.02
    """A call of this many seconds needs no second warm-up, and one sample if it is hopeless;
    chosen."""
    precise: float = 0.01
    """Half-width of the median's interval, relative, at which samples are enough; chosen."""
    enough_samples: int = 6
    """Samples from which on an interval decides anything; chosen, the fewest whose interval covers
    the median in 95 % of the cases."""
    retries: int = 2
    """How often a short sample that was interrupted is taken again; chosen."""
    long_sample: float = 5.0
    """A sample this many times ``sample_s`` long is not short: an interruption hardly shows;
    chosen."""
    irrelevant_s: float = 0.1e-6
    """Times nearer than this many seconds are equal: a launch alone costs more; chosen."""
    tie: float = 0.01
    """Times nearer than this share of the fastest are equal; chosen."""
    unsettled: float = 1.1
    """The machine was unsettled while a group was timed when the 80th percentile of its members
    lies above the 20th by this factor, in the middle one of them; chosen."""


DEFAULTS = ProtocolSettings()


@dataclass
class Timing:
    """The samples of one timed call, in seconds per call.

    Attributes:
        samples: one number each.
        calls: calls per sample.
        rounds: the round that each sample belongs to.
        dropped: it was clearly slower than the fastest.
        calm: only the faster half of the samples was kept.
    """

    samples: list[float] = field(default_factory=list)
    calls: int = 1
    rounds: list[int] = field(default_factory=list)
    dropped: bool = False
    calm: bool = False

    @property
    def median(self) -> float:
        """Return the median of the samples, in seconds per call."""
        return percentile(self.samples, 50)

    @property
    def low(self) -> float:
        """Return the 20th percentile of the samples, in seconds per call."""
        return percentile(self.samples, 20)

    @property
    def high(self) -> float:
        """Return the 80th percentile of the samples, in seconds per call."""
        return percentile(self.samples, 80)


def time_interleaved(
    timed_calls: Sequence[TimedCall],
    settings: ProtocolSettings | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
    about_to_run: Callable[[int], None] = lambda _: None,
    interruptions: Callable[[], int] = lambda: 0,
    seed: int = 0,
) -> list[Timing]:
    """Time these calls in interleaved rounds.

    Every one gets at least ``hopeless_rounds`` samples, whatever they cost; a slow and hopeless one
    gets a single one.

    Args:
        timed_calls: what is timed.
        settings: when samples are enough.
        clock: seconds, for the budget.
        about_to_run: is called with the place of a timed call before each of its samples, so that a
            crash has a culprit.
        interruptions: counts how often this process lost its processor to another one. A short
            sample during which that happened says nothing and is taken again.
        seed: of the order within rounds.

    Returns:
        One timing each, in order.
    """
    if not timed_calls:
        return []
    rounds = _Rounds(timed_calls, settings or DEFAULTS, clock, about_to_run, interruptions)
    rounds.warm_up()
    return rounds.run(random.Random(seed))


class _Rounds:
    """The rounds of one group while they are taken."""

    def __init__(
        self,
        timed_calls: Sequence[TimedCall],
        settings: ProtocolSettings,
        clock: Callable[[], float],
        about_to_run: Callable[[int], None],
        interruptions: Callable[[], int],
    ) -> None:
        self.timed_calls = timed_calls
        self.settings = settings
        self.clock = clock
        self.about_to_run = about_to_run
        self.interruptions = interruptions
        self.timings = [Timing() for _ in timed_calls]
        self.fastest_s = [0.0] * len(timed_calls)
        """By place: the fastest time of a call so far, the warm-up's included."""
        self.racing = list(range(len(timed_calls)))
        """Places that were not dropped."""

    def warm_up(self) -> None:
        """Call each timed call a few times, and find out how many calls its samples need."""
        settings = self.settings
        for place, timing in enumerate(self.timings):
            seconds = 0.0
            for _ in range(settings.warm_calls):
                seconds = self.sample(place, 1)
                if seconds > settings.slow_s:
                    break
            if seconds < settings.sample_s:
                # The single call's own overhead is in there: ask again with more.
                wanted = settings.sample_s * settings.probe_share / max(seconds, 1e-9)
                calls = max(1, min(settings.probe_calls, round(wanted)))
                seconds = min(seconds, self.sample(place, calls))
            self.fastest_s[place] = seconds
            timing.calls = self.calls_for(seconds)

    def run(self, order: random.Random) -> list[Timing]:
        """Take rounds until they are enough; return the timings in the order of the timed calls.

        Args:
            order: Shuffles the calls in each round.
        """
        began = self.clock()  # what a first call takes to set itself up is not the budget's
        for number in range(self.settings.max_rounds):
            order.shuffle(self.racing)
            for place in self.racing:
                self.take_sample(place, number)
            self.drop_slower(number + 1)
            if self.is_enough(number + 1, self.clock() - began):
                break
        keep_calm_samples(self.timings, self.settings)
        return self.timings

    # ------------------------------------------------------------------ one sample

    def sample(self, place: int, calls: int) -> float:
        """Return the seconds per call of so many calls, after noting who is about to run."""
        self.about_to_run(place)
        return self.timed_calls[place](calls) / calls

    def undisturbed_sample(self, place: int, calls: int) -> float:
        """Return the seconds per call of a sample that no interruption disturbed.

        A short sample that was interrupted is taken again, ``retries`` times at most; in a long one
        an interruption hardly shows.
        """
        settings = self.settings
        for _ in range(settings.retries + 1):
            before = self.interruptions()
            seconds = self.sample(place, calls)
            is_long = self.fastest_s[place] * calls > settings.long_sample * settings.sample_s
            if is_long or self.interruptions() == before:
                break
        return seconds

    def take_sample(self, place: int, number: int) -> None:
        """Take the sample of one timed call in one round.

        Args:
            place: The timed call.
            number: The round.
        """
        timing = self.timings[place]
        seconds = self.undisturbed_sample(place, timing.calls)
        if timing.calls == 1 and seconds < self.settings.sample_s / 2:
            # Only its first call was slow: it set itself up.
            self.fastest_s[place] = seconds
            timing.calls = self.calls_for(seconds)
            seconds = self.undisturbed_sample(place, timing.calls)
        self.fastest_s[place] = min(self.fastest_s[place], seconds)
        timing.samples.append(seconds)
        timing.rounds.append(number)

    def calls_for(self, seconds: float) -> int:
        """Return how many calls of so many seconds last as long as a sample should."""
        return max(1, math.ceil(self.settings.sample_s / max(seconds, 1e-9)))

    # ------------------------------------------------------------------ after a round

    def drop_slower(self, done: int) -> None:
        """Drop the timed calls that are clearly slower and have enough samples.

        Args:
            done: How many rounds were taken.
        """
        settings = self.settings
        hopeless_s = settings.hopeless * min(self.fastest_s)
        for place in self.racing:
            seconds = self.fastest_s[place]
            few_are_enough = done >= settings.hopeless_rounds or seconds > settings.slow_s
            if seconds > hopeless_s and few_are_enough:
                self.timings[place].dropped = True
        if done >= settings.min_rounds:
            racing = [self.timings[place] for place in self.racing]
            best = min(racing, key=lambda timing: timing.median)
            for timing in racing:
                timing.dropped |= timing is not best and timing.low > settings.worse * best.high
        self.racing = [place for place in self.racing if not self.timings[place].dropped]

    def is_enough(self, done: int, elapsed_s: float) -> bool:
        """Tell whether the rounds that were taken are enough.

        They are when the budget is spent, or when the fastest is known and every median of those
        that were not dropped is precise.

        Args:
            done: How many rounds were taken.
            elapsed_s: Seconds since the first of them began.
        """
        settings = self.settings
        everybody_s = settings.budget_s * len(self.timings)
        if done < settings.min_rounds and elapsed_s < everybody_s:
            return False
        if done < settings.hopeless_rounds:
            return False
        racing = [self.timings[place] for place in self.racing]
        contested = is_contested(racing, settings)
        each_s = settings.contested_budget_s if contested else settings.budget_s
        dropped = len(self.timings) - len(racing)
        if elapsed_s >= settings.budget_s * dropped + each_s * len(racing):
            return True
        return not contested and all(is_precise(timing, settings) for timing in racing)


def keep_calm_samples(timings: Sequence[Timing], settings: ProtocolSettings = DEFAULTS) -> None:
    """Keep the faster half of everyone's samples where the machine was unsettled.

    It was where the 80th percentile of the timings' samples lies above the 20th by the factor
    ``unsettled``, in the median over the timings.

    Args:
        timings: The timings, which are changed in place.
        settings: The factor, and how few samples tell nothing.
    """
    scatter = sorted(
        timing.high / timing.low
        for timing in timings
        if len(timing.samples) >= settings.enough_samples and timing.low > 0
    )
    if not scatter or scatter[len(scatter) // 2] <= settings.unsettled:
        return
    for timing in timings:
        count = len(timing.samples)
        fast = sorted(sorted(range(count), key=timing.samples.__getitem__)[: (count + 1) // 2])
        timing.samples = [timing.samples[k] for k in fast]
        timing.rounds = [timing.rounds[k] for k in fast]
        timing.calm = True


def is_precise(timing: Timing, settings: ProtocolSettings = DEFAULTS) -> bool:
    """Tell whether the interval of a timing's median is narrow enough."""
    interval = sign_test_interval(timing.samples)
    wide = 2 * max(settings.precise * timing.median, settings.irrelevant_s)
    enough = len(timing.samples) >= settings.enough_samples
    return enough and interval.high - interval.low <= wide


def is_contested(timings: Sequence[Timing], settings: ProtocolSettings = DEFAULTS) -> bool:
    """Tell whether the fastest of these timings is not yet known to be faster than the next one.

    That is decided on differences within rounds, in which a slow moment of the machine cancels out.
    A difference that is known to be below ``tie`` of the fastest, or below ``irrelevant_s``, is a
    tie and not contested.
    """
    if len(timings) < 2:
        return False
    ranked = sorted(timings, key=lambda timing: timing.median)
    best = dict(zip(ranked[0].rounds, ranked[0].samples, strict=True))
    equal_s = max(settings.tie * ranked[0].median, settings.irrelevant_s)
    for other in ranked[1:]:
        pairs = zip(other.rounds, other.samples, strict=True)
        differences = [seconds - best[number] for number, seconds in pairs if number in best]
        if len(differences) < settings.enough_samples:
            return True
        interval = sign_test_interval(differences)
        if interval.low <= 0 and interval.high > equal_s:
            return True
    return False


def time_cold(
    timed_call: TimedCall,
    evict: Callable[[], None],
    warm_inputs: Callable[[], None],
    *,
    rounds: int = 5,
    about_to_run: Callable[[], None] = lambda: None,
) -> float:
    """Return the median seconds of a single call with cold weights and hot activations.

    Args:
        timed_call: What is timed.
        evict: Empties the caches.
        warm_inputs: Reads the inputs again.
        rounds: How many single calls are timed; five are chosen.
        about_to_run: Is called before each of them.
    """
    found = []
    for _ in range(rounds):
        evict()
        warm_inputs()
        about_to_run()
        found.append(timed_call(1))
    return percentile(found, 50)
