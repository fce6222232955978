"""Rounds over several placements, in changing order, with early withdrawal of the clearly slower.

In a round every placement runs for a moment, one after the other, so that a slow stretch of the
machine falls on all of them: what is compared are times of the same round.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

Entrant = TypeVar("Entrant")


Rounds: TypeAlias = dict[Entrant, list[float]]
"""By entrant: the median of its calls in each round, in µs; NaN in those after it withdrew."""


@dataclass(frozen=True, kw_only=True)
class WithdrawalSettings:
    """When a placement that is clearly slower than the best takes part no longer.

    The times compared are the slower one's best round and the best one's median: on a busy machine
    a placement with spinning threads may meet several bad rounds, and would withdraw for bad luck.
    """

    hopeless_factor: float = 3.0
    """Times the best from which two rounds are enough; chosen."""
    hopeless_call_us: float = 0.5e6
    """Such a one whose calls take more microseconds than this withdraws after one; chosen."""
    slow_factor: float = 1.25
    """Times the best from which ``least_rounds`` are enough; chosen."""
    near_factor: float = 1.08
    """Times the best from which twice as many are enough: the time goes to who may still win;
    chosen: some twice the few percent by which medians of different processes differ."""
    least_rounds: int = 3
    """Rounds before ``slow_factor`` holds, and rounds that no budget cuts off; chosen."""


def median_of(rounds_us: Sequence[float]) -> float:
    """Return the median of the rounds taken part in; NaN when there are none."""
    known = [us for us in rounds_us if not math.isnan(us)]
    return statistics.median(known) if known else math.nan


def shared_slowness(ratios: Sequence[float]) -> float:
    """Return by how much the machine was slower, as far as everyone who can tell agrees.

    One process alone cannot tell a slow machine from its own bad luck: a placement of 17 partitions
    took 3.1 ms in one set of rounds and 4.6 in the next, in which others took what they always did.
    Were these divided by its 1.5, they would seem faster than anything that was measured.

    Args:
        ratios: For each process that was timed before, its time now over its time then.

    Returns:
        The ratio nearest to 1 where there are several, all above or all below 1; else 1.
    """
    if len(ratios) < 2:
        return 1.0
    return max(1.0, min(ratios)) * min(1.0, max(ratios))


def slowness(sets: Sequence[Mapping[Entrant, Sequence[float]]]) -> list[float]:
    """Return how much slower the machine was in each set of rounds than it is most of the time.

    A virtual machine may be slower by half for seconds, and its load and clock say nothing of it:
    two threads of ONNX Runtime took 4.9 ms in most rounds and 7.1 ms in stretches of one to ten
    rounds of 0.15 s. Those who took part in several sets tell how these differ
    (``shared_slowness``).

    Args:
        sets: Rounds by entrant, in the order in which they were run.

    Returns:
        A factor for each set: 1.0 for the usual one, the middle of all (of two, the faster), and
        for a set of which fewer than two took part in an earlier one.
    """
    usual_us: dict[Entrant, float] = {}
    factors: list[float] = []
    for taken in sets:
        medians = {one: us for one, rounds in taken.items() if (us := median_of(rounds)) > 0}
        factors.append(
            shared_slowness([us / usual_us[one] for one, us in medians.items() if one in usual_us])
        )
        usual_us = {one: us / factors[-1] for one, us in medians.items()} | usual_us
    middle = statistics.median_low(factors) if factors else 1.0
    return [factor / middle for factor in factors]


@dataclass
class InterleavedRounds(Generic[Entrant]):
    """One set of rounds.

    Attributes:
        entrants: who takes part.
        take: one round of an entrant: its calls in µs, or None when it failed.
        may_win: whether the others are compared with this entrant.
        withdrawal: when the slower ones stop.
        taken: every round so far, by entrant; one that failed is no longer in it.
    """

    entrants: Sequence[Entrant]
    take: Callable[[Entrant], Sequence[float] | None]
    may_win: Callable[[Entrant], bool]
    withdrawal: WithdrawalSettings
    taken: Rounds[Entrant] = field(default_factory=dict)

    def run(
        self,
        count: int,
        budget_s: float,
        *,
        most: int | None = None,
        settled: Callable[[Mapping[Entrant, Sequence[float]]], bool] = lambda _: True,
        on_round: Callable[[int, int], None] = lambda number, racing: None,
        hurry: Callable[[], bool] = lambda: False,
    ) -> Rounds[Entrant]:
        """Run the rounds.

        Args:
            count: rounds wanted.
            budget_s: seconds after which no further round begins, except the least ones.
            most: rounds at most, while ``settled`` says no; None: ``count``.
            settled: asked after ``count`` rounds whether more would change nothing.
            on_round: called with a round's number (from 0) and how many take part in it.
            hurry: asked before each round; once it says so, no more than the least ones are run.

        Returns:
            The rounds of every entrant that did not fail.
        """
        self.taken = {one: [] for one in self.entrants}
        withdrawn: set[Entrant] = set()
        order = random.Random(count)
        end = time.monotonic() + budget_s
        for number in range(max(count, most or count)):
            if number >= self.withdrawal.least_rounds and (time.monotonic() > end or hurry()):
                break
            if number >= count and settled(self.taken):
                break
            withdrawn |= self._withdrawing(number)
            on_round(number, len(self.taken) - len(withdrawn))
            present = list(self.taken)
            for entrant in order.sample(present, len(present)):
                self._take_part(entrant, entrant in withdrawn)
        return self.taken

    def _take_part(self, entrant: Entrant, absent: bool) -> None:
        """Run one round of an entrant; NaN stands for a round in which it is absent."""
        if absent:
            self.taken[entrant].append(math.nan)
            return
        calls = self.take(entrant)
        if calls is None:
            del self.taken[entrant]
        else:
            self.taken[entrant].append(statistics.median(calls))

    def _withdrawing(self, number: int) -> set[Entrant]:
        """Return those that are too slow to take part from this round on."""
        limits = self.withdrawal
        if number == 1:
            return self._slower(limits.hopeless_factor, limits.hopeless_call_us)
        factor = {
            2: limits.hopeless_factor,
            limits.least_rounds: limits.slow_factor,
            2 * limits.least_rounds: limits.near_factor,
        }.get(number)
        return set() if factor is None else self._slower(factor)

    def _slower(self, factor: float, least_us: float = 0.0) -> set[Entrant]:
        """Return those whose best round is this many times the median of the best that may win."""
        medians = [median_of(us) for one, us in self.taken.items() if self.may_win(one)]
        limit = max(min(medians, default=math.inf) * factor, least_us)
        return {
            one
            for one, rounds in self.taken.items()
            if min(us for us in rounds if not math.isnan(us)) > limit
        }
