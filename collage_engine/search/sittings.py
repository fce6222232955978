"""How far another sitting's median may lie from this one's: stated so that it holds.

A *sitting* is one process measuring at one time. Repeats within it scatter; its median differs from
another sitting's by more than that: other places in memory, another load of the machine, another
clock. That *drift*, a share of the cost, is learnt from work that was measured in two sittings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, median

DRIFT = 0.25
"""How much medians of separate sittings differ besides their repeats' scatter (a share, which
nine of ten stay within), until a store has learnt its own. Measured by tests/benchmarks/bench_drift
on two processors at a load of 2 to 5: 20 % holds 88 and 89 %, 27 % holds 96 and 98 %."""
BUSY_DRIFT = 0.5
"""The same while other programs use the processors: at a load of 10 to 12, where 25 % held 66 %."""
ALIKE = 0.8
"""Part of the drift's variance that is common to candidates timed in the same rounds: of near
rivals, nine of ten differences move by 11 to 14 %, where the medians move by 18 to 24 %."""
SURE = 0.9
"""How sure a drift learnt from a sample is to be enough."""


def median_interval(
    repeats: Sequence[float], *, level: float = 0.9, drift: float = DRIFT
) -> tuple[float, float]:
    """Where the median of the same number of new repeats will lie, at least ``level`` sure.

    Never narrower than the 20th to 80th percentile that is shown; beyond that the standard error
    of a median (from the median absolute deviation, robust to outliers), twice (both medians
    scatter), and a drift between sessions.
    """
    if not repeats:
        raise ValueError("no repeats")
    ordered = sorted(repeats)
    centre = median(ordered)
    reach = _error(ordered, level) + drift * centre
    low = ordered[int(0.2 * (len(ordered) - 1))]
    high = ordered[math.ceil(0.8 * (len(ordered) - 1))]
    return max(0.0, min(low, centre - reach)), max(high, centre + reach)


def drift_between(
    sittings: Sequence[tuple[Sequence[float], Sequence[float]]], *, level: float = 0.9
) -> float:
    """How much medians of separate sittings differ besides their repeats' scatter: a share at which
    :func:`median_interval` holds another sitting's median in ``level`` of the cases.

    ``sittings``: repeats of the same work in one sitting and in another. They are a sample: to be
    ``SURE`` that the share is enough for work that is not in it, somewhat more of the sample than
    ``level`` has to be held, all of it when it is small (Wilks, "Determination of sample sizes
    for setting tolerance limits", 1941).
    """
    return drift_of([missing(ours, theirs, level=level) for ours, theirs in sittings], level=level)


def missing(ours: Sequence[float], theirs: Sequence[float], *, level: float = 0.9) -> float:
    """The least drift at which our interval holds their median; 0 where the scatter suffices."""
    centre, other = median(ours), median(theirs)
    low, high = median_interval(ours, level=level, drift=0.0)
    inside = low <= other <= high
    return 0.0 if inside else (abs(other - centre) - _error(ours, level)) / centre


def drift_of(missed: Sequence[float], *, level: float = 0.9) -> float:
    """The drift that a sample of :func:`missing` ones supports."""
    if not missed:
        raise ValueError("no sittings")
    ordered = sorted(missed)
    return ordered[_tolerance_rank(len(ordered), level) - 1]


def _tolerance_rank(count: int, level: float) -> int:
    """The least k for which the k-th smallest of ``count`` is above the ``level`` quantile of
    what they were drawn from, ``SURE`` sure; ``count`` when none is."""
    whole = math.lgamma(count + 1)
    below = 0.0
    for k in range(count):
        # The chance that exactly k of them lie below that quantile.
        ways = whole - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        below += math.exp(ways + k * math.log(level) + (count - k) * math.log1p(-level))
        if below >= SURE:
            return k + 1
    return count


def _error(repeats: Sequence[float], level: float) -> float:
    """How far new medians lie from this one by the repeats' scatter alone, ``level`` sure."""
    centre = median(repeats)
    deviation = 1.4826 * median(abs(x - centre) for x in repeats)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    return z * math.sqrt(2.0) * 1.2533 * deviation / math.sqrt(len(repeats))
