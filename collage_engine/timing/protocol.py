"""How rivals are timed against each other: pure logic over functions that take time.

A *rival* is a function ``calls -> seconds``. Rivals do the same work on the same inputs. They
are timed in rounds, each round in another order, so that a slow moment of the machine hits all
of them: what is compared are samples of the same round. A rival that is clearly worse is
dropped after a few rounds; the rest go on until the ranking is settled or the budget is spent.

A sample is the mean of enough calls to last ``sample_s``: the timer's own cost and single
interruptions vanish, and the 20th and 80th percentile say what is left of the noise.

What disturbs a timing only ever lengthens it. Where a group's samples, of one thread, scatter more
than a calm machine's do, only the faster half of each rival's samples counts.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from collage_engine.records.cost import Cost
from collage_engine.timing.order_statistics import percentile, sign_test_interval

TimedCall = Callable[[int], float]
KEPT_REPEATS = 64


@dataclass(frozen=True)
class ProtocolSettings:
    """Times in seconds. The defaults measure some ten small candidates a second."""

    sample_s: float = 0.001
    """A sample lasts at least so long."""
    warm_calls: int = 2
    min_rounds: int = 7
    max_rounds: int = KEPT_REPEATS
    budget_s: float = 0.06
    """Per rival, while nothing is contested."""
    contested_budget_s: float = 0.1
    """Per rival, while the best of them is not known."""
    worse: float = 1.25
    """Clearly worse: its 20th percentile lies above the best's 80th by this factor."""
    hopeless: float = 4.0
    """So much worse than the best already in the warm-up: a few samples will do."""
    hopeless_rounds: int = 3
    slow_s: float = 0.02
    """A call this long needs no second warm-up, and one sample if it is hopeless."""
    precise: float = 0.01
    """Half-width of the median's interval, relative, at which a rival needs no more samples."""
    retries: int = 2
    """How often a short sample that was interrupted is taken again."""
    irrelevant_s: float = 0.1e-6
    """Times nearer than this are equal: a launch alone costs more."""
    unsettled: float = 1.1
    """A rival's 80th percentile above its 20th, of the group's rivals the middle one's, from which
    the machine was unsettled while the group was timed."""


@dataclass
class Timing:
    """The samples of one rival, in seconds per call."""

    samples: list[float] = field(default_factory=list)
    calls: int = 1
    """Calls per sample."""
    rounds: list[int] = field(default_factory=list)
    """The round each sample belongs to."""
    spent_s: float = 0.0
    dropped: bool = False
    calm: bool = False
    """Only the faster half of the samples was kept."""

    @property
    def median(self) -> float:
        return percentile(self.samples, 50)

    @property
    def low(self) -> float:
        return percentile(self.samples, 20)

    @property
    def high(self) -> float:
        return percentile(self.samples, 80)


def time_interleaved(
    rivals: Sequence[TimedCall],
    settings: ProtocolSettings | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
    about_to_run: Callable[[int], None] = lambda _: None,
    interruptions: Callable[[], int] = lambda: 0,
    seed: int = 0,
) -> list[Timing]:
    """Time rivals in interleaved rounds; one ``Timing`` each, in order.

    ``interruptions`` counts how often this process lost its processor to another one. A short
    sample during which that happened says nothing about the rival and is taken again.

    ``about_to_run`` is told the rival's place before each of its samples, so that a crash has a
    culprit. Every rival gets at least ``hopeless_rounds`` samples, whatever they cost; a slow
    and hopeless one gets a single one.
    """
    s = settings or ProtocolSettings()
    timings = [Timing() for _ in rivals]

    def sample(place: int, calls: int) -> float:
        about_to_run(place)
        start = clock()
        seconds = rivals[place](calls)
        timings[place].spent_s += max(clock() - start, seconds)
        return seconds / calls

    def undisturbed(place: int, calls: int) -> float:
        for _ in range(s.retries + 1):
            before = interruptions()
            each = sample(place, calls)
            if interruptions() == before or rough[place] * calls > 5 * s.sample_s:
                break
        return each

    rough = [0.0] * len(rivals)
    for place, timing in enumerate(timings):
        for _ in range(s.warm_calls):
            rough[place] = sample(place, 1)
            if rough[place] > s.slow_s:
                break
        if rough[place] < s.sample_s:
            # The single call's own overhead is in there: ask again with more.
            probe = max(1, min(100, round(s.sample_s / 4 / max(rough[place], 1e-9))))
            rough[place] = min(rough[place], sample(place, probe))
        timing.calls = max(1, math.ceil(s.sample_s / max(rough[place], 1e-9)))
    if not rivals:
        return timings
    alive = list(range(len(rivals)))
    began = clock()  # what a first call takes to set itself up is not the budget's
    order = random.Random(seed)
    for number in range(s.max_rounds):
        order.shuffle(alive)
        for place in alive:
            timing = timings[place]
            seconds = undisturbed(place, timing.calls)
            if timing.calls == 1 and seconds < s.sample_s / 2:
                # Only its first call was slow: it set itself up.
                rough[place] = seconds
                timing.calls = math.ceil(s.sample_s / max(seconds, 1e-9))
                seconds = undisturbed(place, timing.calls)
            rough[place] = min(rough[place], seconds)
            timing.samples.append(seconds)
            timing.rounds.append(number)
        done = number + 1
        fastest = min(rough)
        for place in alive:
            if rough[place] <= s.hopeless * fastest:
                continue
            if done >= s.hopeless_rounds or rough[place] > s.slow_s:
                timings[place].dropped = True
        if done >= s.min_rounds:
            best = min((timings[p] for p in alive), key=lambda t: t.median)
            for place in alive:
                timing = timings[place]
                timing.dropped |= timing is not best and timing.low > s.worse * best.high
        alive = [p for p in alive if not timings[p].dropped]
        if done < s.min_rounds and clock() - began < s.budget_s * len(rivals):
            continue
        if done < s.hopeless_rounds:
            continue
        contested = is_contested([timings[p] for p in alive], s.irrelevant_s)
        limit = s.contested_budget_s if contested else s.budget_s
        if clock() - began >= s.budget_s * (len(rivals) - len(alive)) + limit * len(alive):
            break
        if not contested and all(is_precise(timings[p], s.precise, s.irrelevant_s) for p in alive):
            break
    keep_calm_samples(timings, s.unsettled)
    return timings


def keep_calm_samples(timings: Sequence[Timing], unsettled: float) -> None:
    """Keep the faster half of every rival's samples, if the machine was unsettled."""
    scatter = sorted(t.high / t.low for t in timings if len(t.samples) >= 6 and t.low > 0)
    if not scatter or scatter[len(scatter) // 2] <= unsettled:
        return
    for timing in timings:
        count = len(timing.samples)
        fast = sorted(sorted(range(count), key=timing.samples.__getitem__)[: (count + 1) // 2])
        timing.samples = [timing.samples[k] for k in fast]
        timing.rounds = [timing.rounds[k] for k in fast]
        timing.calm = True


def is_precise(timing: Timing, relative: float, absolute: float = 0.0) -> bool:
    """Whether the median's interval is narrow enough."""
    interval = sign_test_interval(timing.samples)
    wide = 2 * max(relative * timing.median, absolute)
    return len(timing.samples) >= 6 and interval.high - interval.low <= wide


def is_contested(timings: Sequence[Timing], irrelevant: float = 0.0) -> bool:
    """Whether the best of these is not yet known to be better than the next.

    Decided on differences within rounds, which a slow moment of the machine cancels out of;
    one known to be below a percent, or ``irrelevant`` seconds, is a tie, and settled too.
    """
    if len(timings) < 2:
        return False
    ranked = sorted(timings, key=lambda t: t.median)
    best = dict(zip(ranked[0].rounds, ranked[0].samples, strict=True))
    for other in ranked[1:]:
        pairs = zip(other.rounds, other.samples, strict=True)
        differences = [seconds - best[number] for number, seconds in pairs if number in best]
        if len(differences) < 6:
            return True
        interval = sign_test_interval(differences)
        if interval.low <= 0 and interval.high > max(0.01 * ranked[0].median, irrelevant):
            return True
    return False


def time_cold(
    rival: TimedCall,
    evict: Callable[[], None],
    warm_inputs: Callable[[], None],
    *,
    rounds: int = 5,
    about_to_run: Callable[[], None] = lambda: None,
) -> float:
    """Median seconds of a single call with cold weights and hot activations."""
    found = []
    for _ in range(rounds):
        evict()
        warm_inputs()
        about_to_run()
        found.append(rival(1))
    return percentile(found, 50)


def kept(samples: Sequence[float], limit: int = KEPT_REPEATS) -> tuple[float, ...]:
    """At most ``limit`` samples, spread evenly over the time they were taken in."""
    if len(samples) <= limit:
        return tuple(samples)
    step = len(samples) / limit
    return tuple(samples[int(i * step)] for i in range(limit))


def cost_of(
    timing: Timing,
    *,
    threads: int,
    fingerprint: str | None = None,
    measured_at: str | None = None,
    max_rel_error: float | None = None,
    cold_s: float | None = None,
    slowness: float = 1.0,
) -> Cost:
    """The record of a timing, in microseconds, as it is on a machine ``slowness`` times as fast."""
    us = 1e6 / slowness
    return Cost(
        state="measured",
        median_us=timing.median * us,
        low_us=timing.low * us,
        high_us=timing.high * us,
        cold_us=None if cold_s is None else cold_s * us,
        count=len(timing.samples),
        repeats_us=tuple(s * us for s in kept(timing.samples)),
        max_rel_error=max_rel_error,
        threads=threads,
        fingerprint=fingerprint,
        measured_at=measured_at,
        slowness=slowness,
    )


def merged(old: Cost, new: Cost) -> Cost:
    """Two measurements of the same work as one: all repeats together, the newer's facts.

    The median of both sittings counts equally, however many samples each has: within a sitting
    the machine's state is one and the same.
    """
    if not (old.usable and new.usable and old.repeats_us and new.repeats_us):
        return new
    half = KEPT_REPEATS // 2
    repeats = kept(old.repeats_us, half) + kept(new.repeats_us, half)
    return Cost(
        state="measured",
        median_us=percentile(repeats, 50),
        low_us=percentile(repeats, 20),
        high_us=percentile(repeats, 80),
        cold_us=new.cold_us if new.cold_us is not None else old.cold_us,
        count=old.count + new.count,
        repeats_us=repeats,
        max_rel_error=new.max_rel_error,
        threads=new.threads,
        fingerprint=new.fingerprint,
        measured_at=new.measured_at,
        slowness=new.slowness,
    )


def sittings(old: Cost, both: Cost) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """The repeats of a cost, and of the sitting that was merged with it; None when none was."""
    first = kept(old.repeats_us, KEPT_REPEATS // 2)
    if both.count <= old.count or both.repeats_us[: len(first)] != first:
        return None
    second = both.repeats_us[len(first) :]
    return (old.repeats_us, second) if second else None
