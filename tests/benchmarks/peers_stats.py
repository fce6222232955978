"""What paired rounds say: the interval of a ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000


@dataclass(frozen=True)
class Ratio:
    """Median of paired ratios with its 95 % bootstrap interval."""

    middle: float
    low: float
    high: float


def paired_ratio(
    a: Sequence[float], b: Sequence[float], launches: int = 1, seed: int = 0
) -> Ratio | None:
    """Median over common rounds of ``a[k] / b[k]``; None below three of them.

    Efron's percentile bootstrap with a fixed seed: equal data, equal verdict. Rounds of several
    ``launches`` (as many in each, the first ones of one more) are drawn in two steps, launches
    first: what differs between processes is part of the interval.
    """
    size, more = divmod(min(len(a), len(b)), launches)
    ends = np.cumsum([size + (number < more) for number in range(launches)])
    groups: list[np.ndarray] = []
    for begin, end in zip([0, *ends], ends, strict=False):
        pairs = [
            x / y
            for x, y in zip(a[begin:end], b[begin:end], strict=True)
            if not math.isnan(x + y) and y > 0
        ]
        if pairs:
            groups.append(np.asarray(pairs))
    if sum(map(len, groups)) < 3:
        return None
    draw = np.random.default_rng(seed)
    medians = []
    for _ in range(RESAMPLES):
        chosen = draw.integers(0, len(groups), len(groups)) if len(groups) > 1 else [0]
        drawn = [groups[g][draw.integers(0, len(groups[g]), len(groups[g]))] for g in chosen]
        medians.append(np.median(np.concatenate(drawn)))
    low, high = np.percentile(medians, [2.5, 97.5])
    return Ratio(float(np.median(np.concatenate(groups))), float(low), float(high))
