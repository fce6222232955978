"""Which of the timed contenders wins: paired differences, ties settled by simplicity.

Rounds of one confirmation are paired: in round k every contender ran within the same second or two,
so a slow stretch of the machine falls on all of them and cancels in the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from collage_engine.trials.contender import ContenderResult, Difference

RESAMPLES = 2000
NEAR = 0.01
"""Medians within this share of the fastest are as fast, where the rounds cannot tell either."""


def difference(a: Sequence[float], b: Sequence[float], seed: int = 0) -> Difference | None:
    """Median of ``a[k] − b[k]`` and its 95 % bootstrap interval; None below 3 common rounds.

    Rounds in which either sat out (NaN, or past the shorter list) do not count. Efron's
    percentile bootstrap of the median, with a fixed seed: equal data, equal verdict.
    """
    pairs = [x - y for x, y in zip(a, b, strict=False) if not math.isnan(x - y)]
    if len(pairs) < 3:
        return None
    deltas = np.asarray(pairs)
    draws = np.random.default_rng(seed).integers(0, len(deltas), (RESAMPLES, len(deltas)))
    medians = np.median(deltas[draws], axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return Difference(us=float(np.median(deltas)), low_us=float(low), high_us=float(high))


def choose(
    rounds: Sequence[tuple[ContenderResult, Sequence[float]]],
) -> tuple[ContenderResult, list[ContenderResult]]:
    """The winner of some rounds, and all that are tied with the fastest (the winner first).

    Tied covers: fewer partitions first, then the user's order, then the smaller median; but what
    comes first in that order has to be as fast for it, within ``NEAR``, not only too noisy to be
    told apart.
    One that sat rounds out was clearly slower; too few rounds cannot make it a tie again.
    Raises ``ValueError`` when nothing was timed.
    """
    timed = [(o, r, _median(r)) for o, r in rounds if not math.isnan(_median(r))]
    if not timed:
        raise ValueError("no contender was timed")
    _, best_rounds, best = min(timed, key=lambda entry: entry[2])
    tied = []
    for outcome, times, median in timed:
        apart = None if any(map(math.isnan, times)) else difference(times, best_rounds)
        if median <= best or (apart is not None and apart.tied):
            tied.append((outcome, median))
    tied.sort(
        key=lambda entry: (
            entry[0].partitions,
            entry[1] > best * (1 + NEAR),
            entry[0].contender.order,
            entry[1],
        )
    )
    return tied[0][0], [outcome for outcome, _ in tied]


def settled(
    rounds: Sequence[tuple[ContenderResult, Sequence[float]]], precise: float = 0.01
) -> bool:
    """Whether more rounds would hardly change the verdict.

    Every tie is then a tie within ``precise`` of the fastest, not one for want of rounds.
    """
    _, tied = choose(rounds)
    times = {id(outcome): taken for outcome, taken in rounds}
    fastest = min(tied, key=lambda outcome: _median(times[id(outcome)]))
    near = _median(times[id(fastest)]) * precise
    for outcome in tied:
        apart = difference(times[id(outcome)], times[id(fastest)])
        if outcome is not fastest and apart is not None and apart.high_us - apart.low_us > 2 * near:
            return False
    return True


def _median(times: Sequence[float]) -> float:
    known = [t for t in times if not math.isnan(t)]
    return float(np.median(known)) if known else math.nan
