"""What paired rounds say: medians, spreads, and the interval of a ratio."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.benchmarks.peers_report import OURS, PeerTime

RESAMPLES = 4000
QUIET = 0.1
"""Cores kept busy by others, up to which the wall clock decides at one thread."""
RIGHT = {"float32": 1e-3, "bf16": 5e-2, "int8": 1e-1}
"""Largest relative error with which a runtime still takes part in the verdict."""

Samples = Sequence[tuple[float, float]]
"""Per round the wall and CPU µs of the median call; negative: it sat out."""


@dataclass(frozen=True)
class Ratio:
    """Median of paired ratios with its 95 % bootstrap interval."""

    middle: float
    low: float
    high: float


def column(samples: Samples, clock: str) -> list[float]:
    """One clock's figures, NaN where it sat out."""
    place = 1 if clock == "cpu" else 0
    return [pair[place] if pair[place] >= 0 else math.nan for pair in samples]


def middle(values: Sequence[float]) -> float | None:
    known = [v for v in values if not math.isnan(v)]
    return float(np.median(known)) if known else None


def spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """20th and 80th percentile."""
    known = [v for v in values if not math.isnan(v)]
    if not known:
        return None, None
    low, high = np.percentile(known, [20, 80])
    return float(low), float(high)


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


def pick_clock(wanted: str, threads: int, load: float) -> str:
    """``auto``: CPU time at one thread on a machine that others keep busy, else the wall."""
    if wanted != "auto":
        return wanted
    return "cpu" if threads == 1 and load > QUIET else "wall"


def best_other(
    peers: Sequence[PeerTime], samples: Mapping[str, Samples], clock: str, allowed: Sequence[str]
) -> str | None:
    """The fastest of the others at one of these precisions, with right numbers.

    What is our own module again in another process is no other.
    """
    known = {
        p.name: us
        for p in peers
        if p.name != OURS
        and not p.same_module
        and p.reason is None
        and p.precision in allowed
        and (us := middle(column(samples[p.name], clock))) is not None
    }
    return min(known, key=lambda name: known[name]) if known else None


def against(
    samples: Mapping[str, Samples], other: str | None, clock: str, launches: int = 1
) -> Ratio | None:
    """Ours over another's, paired."""
    if other is None or OURS not in samples:
        return None
    return paired_ratio(column(samples[OURS], clock), column(samples[other], clock), launches)
