"""The winner of the timed contenders follows from paired differences; simplicity settles ties.

Rounds of one confirmation are paired: in round k every contender ran within the same second or two,
so a slow stretch of the machine falls on all of them and cancels in the difference. Their intervals
are asked for again after every round while rounds are added; they cover what they state all the
same (``timing.repeated_looks``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from collage_engine.records.same_work import SAME_WORK_FACTOR
from collage_engine.timing.order_statistics import CONFIDENCE
from collage_engine.timing.repeated_looks import Looks, interval
from collage_engine.trials.contender import Contender


@dataclass(frozen=True, kw_only=True)
class RankingSettings:
    """When two contenders count as equally fast."""

    confidence: float = CONFIDENCE
    """Coverage that intervals of a difference aim at; chosen, the usual one."""
    least_rounds: int = 3
    """Common rounds below which nothing is said of a difference; chosen. The interval of three
    covers 70 %, and says so."""
    looks: Looks = field(default_factory=lambda: Looks(first=9, last=120))
    """When ties are looked for while rounds are added; chosen: from the rounds that a selection
    has at least, to the selection's most and as many fresh ones."""
    near: float = 0.01
    """Medians within this share of the fastest are as fast, where the rounds cannot tell either;
    chosen: medians of one module in different processes differ by more."""
    same_work: float = SAME_WORK_FACTOR
    """Times the fastest's median up to which fewer partitions are worth having, where the rounds
    cannot tell."""
    precise: float = 0.01
    """Ties are settled when their intervals are narrower than this share of the fastest to either
    side; chosen, as ``near``."""


RANKING = RankingSettings()


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Median of the paired differences ``a − b``, with the sign test's interval.

    Attributes:
        us: the median, in µs.
        low_us: lower end of its interval.
        high_us: upper end.
        coverage: how often this interval, and all that were asked for before it while rounds were
            added, hold the true median (``tests/unit/test_interval_coverage.py``).
        rounds: how many rounds both took part in.
    """

    us: float
    low_us: float
    high_us: float
    coverage: float
    rounds: int

    @property
    def tied(self) -> bool:
        """Tell whether the interval holds 0."""
        return self.low_us <= 0.0 <= self.high_us

    def __add__(self, other: Difference) -> Difference:
        """Return ``a − c``, where this is ``a − b`` and the other one ``b − c``.

        Its interval holds the sum of the true medians wherever both intervals hold theirs.
        """
        return Difference(
            us=self.us + other.us,
            low_us=self.low_us + other.low_us,
            high_us=self.high_us + other.high_us,
            coverage=max(0.0, self.coverage + other.coverage - 1.0),
            rounds=min(self.rounds, other.rounds),
        )


def difference(
    a: Sequence[float],
    b: Sequence[float],
    settings: RankingSettings = RANKING,
    *,
    fixed_rounds: bool = False,
) -> Difference | None:
    """Return how much longer ``a`` took than ``b``, round by round.

    Args:
        a: median call of every round, in µs; NaN where it took no part.
        b: the same of the other contender, in the same rounds.
        settings: the coverage aimed at, and how few rounds are too few.
        fixed_rounds: the number of rounds was settled before the first of them, so that this is
            the only look at them, and the interval is shorter.

    Returns:
        The difference; None below ``settings.least_rounds`` common rounds.
    """
    pairs = [x - y for x, y in zip(a, b, strict=False) if not math.isnan(x - y)]
    if len(pairs) < settings.least_rounds:
        return None
    looks = None if fixed_rounds else settings.looks
    found = interval(pairs, looks, settings.confidence)
    return Difference(
        us=float(np.median(pairs)),
        low_us=found.low,
        high_us=found.high,
        coverage=found.coverage,
        rounds=len(pairs),
    )


@dataclass(frozen=True)
class Timed:
    """A contender and the median call of every round, in µs; NaN where it took no part."""

    contender: Contender
    rounds_us: Sequence[float]

    @property
    def median_us(self) -> float:
        """Return the median of the rounds it took part in; NaN when there are none."""
        known = [us for us in self.rounds_us if not math.isnan(us)]
        return float(np.median(known)) if known else math.nan


def choose(
    entries: Sequence[Timed], settings: RankingSettings = RANKING, *, fixed_rounds: bool = False
) -> list[Timed]:
    """Return all that are tied with the fastest, the winner first.

    Of tied contenders the one with the fewest partitions wins, then the first in the user's order,
    then the one with the smallest median. What wins for its simplicity has to be as fast for it,
    within ``settings.same_work``, and what wins by order within ``settings.near``; that the rounds
    scatter too much to tell them apart is not enough. One that withdrew was clearly slower; too few
    rounds cannot make it a tie again.

    Args:
        entries: the contenders with their rounds.
        settings: when two count as equally fast.
        fixed_rounds: as for ``difference``.

    Raises:
        ValueError: nothing was timed.
    """
    timed = [entry for entry in entries if not math.isnan(entry.median_us)]
    if not timed:
        raise ValueError("no contender was timed")
    best = min(timed, key=lambda entry: entry.median_us)

    def is_tied(entry: Timed) -> bool:
        if entry.median_us <= best.median_us:
            return True
        if any(map(math.isnan, entry.rounds_us)):
            return False
        apart = difference(entry.rounds_us, best.rounds_us, settings, fixed_rounds=fixed_rounds)
        return apart is not None and apart.tied

    return sorted(
        filter(is_tied, timed),
        key=lambda entry: (
            entry.median_us > best.median_us * settings.same_work,
            len(entry.contender.cover),
            entry.median_us > best.median_us * (1 + settings.near),
            entry.contender.order,
            entry.median_us,
        ),
    )


def settled(entries: Sequence[Timed], settings: RankingSettings = RANKING) -> bool:
    """Tell whether more rounds would hardly change the verdict.

    Every tie is then a tie within ``settings.precise`` of the fastest, not one for want of rounds.
    """
    tied = choose(entries, settings)
    fastest = min(tied, key=lambda entry: entry.median_us)
    widest = 2 * fastest.median_us * settings.precise
    for entry in tied:
        apart = difference(entry.rounds_us, fastest.rounds_us, settings)
        if entry is not fastest and apart is not None and apart.high_us - apart.low_us > widest:
            return False
    return True
