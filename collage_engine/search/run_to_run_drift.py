"""Run-to-run drift: how far medians of the same work, measured at two times, lie apart.

A measuring *session* is one process that measures at one time. Repeats within it scatter; its
median differs from another session's by more than that: other places in memory, another load of the
machine, another clock. That *drift*, a share of the cost, is learnt from work that was measured in
two sessions, and widens the interval in which a repeated measurement will find the median.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, median

DEFAULT_DRIFT = 0.25
"""Drift until a store has learnt its own: the share of the cost by which medians of separate
sessions differ besides their repeats' scatter, in nine of ten cases. Measured with
``python -m tests.benchmarks.bench_drift`` on two processors at a load of 2 to 5: 20 % holds 88 and
89 %, 27 % holds 96 and 98 %."""
BUSY_DRIFT = 0.5
"""The same while other programs use the processors. Measured with the same benchmark at a load of
10 to 12, where 25 % held 66 %."""
SHARED_DRIFT_VARIANCE = 0.8
"""Share of the drift's variance that candidates timed in the same rounds have in common. Measured
with the same benchmark: of candidates on the same nodes, nine of ten differences move by 11 to 14
%, where the medians move by 18 to 24 %."""
LEARNT_CONFIDENCE = 0.9
"""Probability with which a drift that was learnt from a sample is to be large enough (chosen)."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median relative to that of a mean, of normal data: the root of pi / 2."""
DEVIATION_OF_MAD = 1.4826
"""Standard deviation relative to the median absolute deviation, of normal data."""


def remeasured_median_interval(
    repeats: Sequence[float], *, level: float = 0.9, drift: float = DEFAULT_DRIFT
) -> tuple[float, float]:
    """Return where the median of the same number of new repeats will lie.

    It is never narrower than the 20th to 80th percentile that is shown. Beyond that it has the
    standard error of a median (from the median absolute deviation, robust to outliers), twice (both
    medians scatter), and the drift between sessions.

    Args:
        repeats: Single times.
        level: The probability with which the new median lies in the interval, at least.
        drift: The drift, as a share of the cost.

    Raises:
        ValueError: There are no repeats.
    """
    if not repeats:
        raise ValueError("no repeats")
    ordered = sorted(repeats)
    centre = median(ordered)
    reach = _reach_of_scatter(ordered, level) + drift * centre
    low = ordered[int(0.2 * (len(ordered) - 1))]
    high = ordered[math.ceil(0.8 * (len(ordered) - 1))]
    return max(0.0, min(low, centre - reach)), max(high, centre + reach)


def required_drift(ours: Sequence[float], theirs: Sequence[float], *, level: float = 0.9) -> float:
    """Return the least drift at which the interval of one session holds the other's median.

    It is a share of the cost; 0 where the scatter of the repeats explains the difference.
    """
    centre, other = median(ours), median(theirs)
    low, high = remeasured_median_interval(ours, level=level, drift=0.0)
    inside = low <= other <= high
    return 0.0 if inside else (abs(other - centre) - _reach_of_scatter(ours, level)) / centre


def drift_tolerance_bound(required: Sequence[float], *, level: float = 0.9) -> float:
    """Return the drift that a sample of :func:`required_drift` supports.

    At it :func:`remeasured_median_interval` holds another session's median in ``level`` of the
    cases. What was measured twice is a sample: for ``LEARNT_CONFIDENCE`` that the drift is enough
    for work that is not in it, somewhat more of the sample than ``level`` has to be held, all of it
    when it is small (Wilks, "Determination of sample sizes for setting tolerance limits", 1941).

    Raises:
        ValueError: The sample is empty.
    """
    if not required:
        raise ValueError("no work was measured in two sessions")
    ordered = sorted(required)
    return ordered[_tolerance_rank(len(ordered), level) - 1]


def _tolerance_rank(count: int, level: float) -> int:
    """Return the least k for which the k-th smallest of a sample bounds a quantile.

    It is above the ``level`` quantile of what the sample was drawn from with
    ``LEARNT_CONFIDENCE``; k is ``count`` when no rank is.
    """
    whole = math.lgamma(count + 1)
    below = 0.0
    for k in range(count):
        # The probability that exactly k of them lie below that quantile.
        ways = whole - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        below += math.exp(ways + k * math.log(level) + (count - k) * math.log1p(-level))
        if below >= LEARNT_CONFIDENCE:
            return k + 1
    return count


def _reach_of_scatter(repeats: Sequence[float], level: float) -> float:
    """Return how far new medians lie from this one by the repeats' scatter alone."""
    centre = median(repeats)
    deviation = DEVIATION_OF_MAD * median(abs(x - centre) for x in repeats)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    return z * math.sqrt(2.0) * MEDIAN_ERROR * deviation / math.sqrt(len(repeats))
