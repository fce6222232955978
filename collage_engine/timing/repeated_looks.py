"""Intervals of a median that keep their coverage though they are asked for after every round.

Whoever looks at an interval after every round, and stops when it excludes zero, is wrong more often
than a single look would be. So the error that is allowed is spent over the looks: each look may add
a little to the probability that any interval so far has missed the median, and all of them together
reach ``1 - confidence`` at the last planned look. This is alpha spending (K. K. G. Lan and
D. L. DeMets, Discrete sequential boundaries for clinical trials, Biometrika 70, 1983), with the
power family of spending functions, here for the sign test.

The probabilities are exact for signs that form a Markov chain: a value lies on the same side of the
median as the one before with probability ``(1 + correlation) / 2``. Independent values are the case
of correlation 0; a slow stretch of the machine that lasts longer than a round makes it positive.
Nothing else is assumed of the values: their distribution may have any tails.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from collage_engine.timing.order_statistics import CONFIDENCE, MedianInterval

SIGN_CORRELATION = 0.1
"""Correlation of the signs of successive paired differences that intervals allow for; chosen two
standard errors above what ``python -m tests.benchmarks.round_noise`` shows (-0.10 to 0.01 over 400
rounds on a busy machine)."""
SPENDING_POWER = 0.5
"""Of the spending function ``alpha * (n / last) ** power``; chosen below 1, so that the range of
nine values may decide, as it may where there is one look only."""


@dataclass(frozen=True)
class Looks:
    """After how many values an interval is asked for.

    Attributes:
        first: the fewest values. An interval of fewer is the single look at its values, and states
            the coverage that their range has.
        last: the most values. An interval is asked for after any number in between.
    """

    first: int
    last: int


def interval(
    values: Sequence[float],
    looks: Looks | None = None,
    confidence: float = CONFIDENCE,
    correlation: float = SIGN_CORRELATION,
) -> MedianInterval:
    """Return the interval of the median between two order statistics.

    Args:
        values: at least one, in any order.
        looks: when else it is asked for while the values grow in number; None: never, their number
            was fixed before the first of them.
        confidence: coverage that is aimed at, of all looks together.
        correlation: of the signs of successive values about the median.

    Returns:
        The shortest interval with that coverage, or the range of so few values, with the
        probability that it and all intervals before it hold the true median.
    """
    ordered = sorted(values)
    count = len(ordered)
    if looks is None or count < looks.first:
        looks = Looks(count, count)
    skipped, coverage = _boundaries(looks, confidence, correlation)[min(count, looks.last)]
    return MedianInterval(ordered[skipped], ordered[count - 1 - skipped], coverage)


@functools.cache
def _boundaries(
    looks: Looks, confidence: float, correlation: float
) -> dict[int, tuple[int, float]]:
    """Return how many values to leave out at either end, and the coverage until then.

    Both are given by the number of values.

    The chain of signs is followed value by value. ``paths[side][b]`` is the probability that ``b``
    values lie below the median, that the last one lies above (side 0) or below it (side 1), and
    that no interval so far has missed it. An interval that leaves out ``k`` values at either end
    misses the median when at most ``k`` values lie below it, or at most ``k`` above.
    """
    same = (1 + correlation) / 2
    paths = [[0.5, 0.0], [0.0, 0.5]]
    missed = 0.0
    found: dict[int, tuple[int, float]] = {}
    for count in range(1, looks.last + 1):
        if count > 1:
            above, below = paths
            stay = [same * a + (1 - same) * b for a, b in zip(above, below, strict=True)]
            move = [same * b + (1 - same) * a for a, b in zip(above, below, strict=True)]
            paths = [[*stay, 0.0], [0.0, *move]]
        if count < looks.first:
            continue
        allowed = (1 - confidence) * (count / looks.last) ** SPENDING_POWER
        skipped = 0
        while True:
            # The range is always an interval, whatever it covers.
            for end in (skipped, count - skipped):
                missed += paths[0][end] + paths[1][end]
                paths[0][end] = paths[1][end] = 0.0
            more = skipped + 1
            if 2 * more >= count:
                break
            further = sum(side[more] + side[count - more] for side in paths)
            if missed + further > allowed:
                break
            skipped = more
        found[count] = (skipped, max(0.0, 1.0 - missed))
    return found
