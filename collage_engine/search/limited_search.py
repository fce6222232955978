"""Limits on which runtimes a cover may use: exact, by branch and bound over sets of runtimes.

A limit (see :mod:`~collage_engine.search.limits`) looks at nothing but the set of runtimes that a
cover uses, and every subset of an allowed set is allowed. So the least-cost cover within the limits
is the least over the allowed sets of runtimes, each a solve with the other runtimes' candidates
excluded. Instead of all sets only those that can matter are solved: the solve over a set of
runtimes that need not be allowed is a relaxation; where its best cover uses an allowed set, nothing
within it is better; where not, the cover's runtimes hold a smallest forbidden set, and every
allowed cover goes without one member of that, which gives one branch for each. Best bound first,
the first allowed cover is the least one (Land and Doig's branch and bound). Bounds are those of the
solver, so a graph too wide for exact search keeps its gap.

What solves is handed in as a function (:class:`RestrictedSolve`).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from collage_engine.search.a_star import enumerate_covers
from collage_engine.search.limits import RuntimeLimits, violated_limits
from collage_engine.search.solver import Solution

if TYPE_CHECKING:
    from collage_engine.search.problem import Problem

MOST_REGRETS_S = 10.0
"""Seconds at most for the regrets, or the ranked covers, over all allowed sets of runtimes; what
they leave out is bounded from below (chosen)."""
MOST_SETS = 128
"""Allowed sets of runtimes that regrets and ranked covers look through (a count; chosen: as many
maximal sets as seven independent pairs of alternatives have)."""


class RestrictedSolve(Protocol):
    """A function that solves a problem under fixed pins, limits aside."""

    def __call__(
        self, excluded: Iterable[int], *, regrets: bool = False, keep_labels: bool = False
    ) -> Solution:
        """Solve without some candidates.

        Args:
            excluded: Indices of the candidates that may not be chosen.
            regrets: Whether to compute the least covers through all candidates too.
            keep_labels: Whether the caller needs ``Solution.labels``.
        """
        ...


class RuntimeSets:
    """The sets of runtimes that the limits of a problem allow; a set is written as a bit mask."""

    def __init__(self, problem: Problem, limits: RuntimeLimits) -> None:
        self.limits = limits
        names = {c.toolchain: limits.runtimes_of(c.toolchain) for c in problem.candidates}
        self.names = sorted({runtime for used in names.values() for runtime in used})
        """The runtime of each bit."""
        bit_of = {name: bit for bit, name in enumerate(self.names)}
        self.all = (1 << len(self.names)) - 1
        """The set of all runtimes."""
        masks = {name: sum(1 << bit_of[r] for r in used) for name, used in names.items()}
        self.used = [masks[c.toolchain] for c in problem.candidates]
        """Per candidate the runtimes that it needs."""

    def violates(self, mask: int) -> bool:
        """Tell whether a cover with exactly these runtimes is not allowed."""
        used = [name for bit, name in enumerate(self.names) if mask >> bit & 1]
        return bool(violated_limits(self.limits, used))

    def minimal_violation(self, mask: int) -> int:
        """Return a minimal set within ``mask`` that is not allowed, found by deletion."""
        for bit in range(len(self.names)):
            fewer = mask & ~(1 << bit)
            if fewer != mask and self.violates(fewer):
                mask = fewer
        return mask

    def maximal_sets(self) -> Iterator[int]:
        """Yield the allowed sets that no runtime can join: every allowed cover lies within one."""
        waiting, seen = [self.all], {self.all}
        while waiting:
            mask = waiting.pop()
            if self.violates(mask):
                core = self.minimal_violation(mask)
                for bit in range(len(self.names)):
                    fewer = mask & ~(core & 1 << bit)
                    if fewer != mask and fewer not in seen:
                        seen.add(fewer)
                        waiting.append(fewer)
                continue
            more = (mask | 1 << b for b in range(len(self.names)) if not mask >> b & 1)
            if all(self.violates(larger) for larger in more):
                yield mask

    def grow(self, mask: int) -> int:
        """Return a maximal allowed set that contains this allowed one."""
        for bit in range(len(self.names)):
            if not self.violates(mask | 1 << bit):
                mask |= 1 << bit
        return mask

    def of(self, cover: Iterable[int]) -> int:
        """Return the runtimes of these candidates."""
        mask = 0
        for index in cover:
            mask |= self.used[index]
        return mask

    def excluded(self, mask: int) -> list[int]:
        """Return the candidates that need a runtime outside ``mask``."""
        return [index for index, used in enumerate(self.used) if used & ~mask]


@dataclass
class BranchAndBound:
    """The outcome of branch and bound over sets of runtimes."""

    best: Solution | None = None
    """The least-cost cover within the limits; None when none was found."""
    states: int = 0
    lower_bound: int = 0
    """No cover within the limits costs less."""
    decided: bool = True
    """Whether it is known if there is a cover within the limits."""


def solve_within_limits(
    solve: RestrictedSolve, sets: RuntimeSets, *, regrets: bool, time_limit_s: float
) -> Solution:
    """Find the least-cost cover within the limits.

    Args:
        solve: Solves under the pins.
        sets: What the limits allow.
        regrets: Whether to compute the least covers through all candidates too.
        time_limit_s: The most time for these, in seconds.
    """
    outcome = branch_and_bound(solve, sets)
    states = outcome.states
    if outcome.best is None:
        return Solution(states=states, decided=outcome.decided, lower_bound=outcome.lower_bound)
    solution = replace(outcome.best)
    if regrets:
        mask = sets.grow(sets.of(solution.cover))
        again = solve(sets.excluded(mask), regrets=True)
        states += again.states
        if again.cost is not None and again.cost <= (solution.cost or 0):  # else: out of time
            solution = again
            states += _add_regrets_of_other_sets(solve, sets, mask, solution, time_limit_s)
    solution.lower_bound = min(outcome.lower_bound, solution.cost or 0)
    solution.states = states
    return solution


def branch_and_bound(solve: RestrictedSolve, sets: RuntimeSets) -> BranchAndBound:
    """Find the least-cost cover within the limits, and a bound on all of them.

    Args:
        solve: Solves under the pins.
        sets: What the limits allow.
    """
    outcome = BranchAndBound()
    closed_bound: int | None = None
    """The least bound of the sets that were closed without a proof."""
    waiting: list[tuple[int, int, Solution]] = []
    seen: set[int] = set()

    def open_set(mask: int) -> None:
        if mask in seen:
            return
        seen.add(mask)
        solution = solve(sets.excluded(mask))
        outcome.states += solution.states
        if solution.cost is not None or not solution.decided:
            heapq.heappush(waiting, (solution.lower_bound, -mask, solution))
        else:
            return
        outcome.decided = outcome.decided and solution.cost is not None

    open_set(sets.all)
    while waiting:
        bound, negative, solution = waiting[0]
        if outcome.best is not None and bound >= (outcome.best.cost or 0):
            break
        heapq.heappop(waiting)
        mask = -negative
        used = sets.of(solution.cover) if solution.cost is not None else mask
        violating = sets.violates(used)
        if solution.cost is not None and not violating:
            if outcome.best is None or solution.cost < (outcome.best.cost or 0):
                outcome.best = solution
            if not solution.optimal:
                closed_bound = bound if closed_bound is None else min(closed_bound, bound)
            continue
        if not violating:  # no cover was found, and none is proved not to exist
            closed_bound = bound if closed_bound is None else min(closed_bound, bound)
            continue
        core = sets.minimal_violation(used)
        for bit in range(len(sets.names)):
            if core >> bit & 1:
                open_set(mask & ~(1 << bit))
    bounds = [bound for bound, _, _ in waiting]
    if closed_bound is not None:
        bounds.append(closed_bound)
    if outcome.best is not None and outcome.best.cost is not None:
        bounds.append(outcome.best.cost)
    outcome.lower_bound = min(bounds, default=0)
    return outcome


def _add_regrets_of_other_sets(
    solve: RestrictedSolve, sets: RuntimeSets, chosen: int, solution: Solution, time_limit_s: float
) -> int:
    """Lower the least covers through every candidate to those over all allowed sets.

    Where time does not allow all sets, the solve without limits bounds what is left.

    Args:
        solve: Solves under the pins.
        sets: What the limits allow.
        chosen: The maximal set that ``solution`` is of.
        solution: The best solution, which is changed.
        time_limit_s: The most time, in seconds.

    Returns:
        How many states the solves had.
    """
    deadline = time.monotonic() + min(MOST_REGRETS_S, time_limit_s)
    through, floor = dict(solution.least_through), dict(solution.lower_bound_through)
    masks = list(islice(sets.maximal_sets(), MOST_SETS + 1))
    complete = len(masks) <= MOST_SETS and solution.others_in_no_cover
    states = 0
    for mask in masks[:MOST_SETS]:
        if mask == chosen:
            continue
        if time.monotonic() > deadline:
            complete = False
            break
        other = solve(sets.excluded(mask), regrets=True)
        states += other.states
        # Without a cover there is nothing to add, unless it is only that none was found in time.
        complete = complete and (other.others_in_no_cover or _proves_none(other))
        for index, cost in other.least_through.items():
            through[index] = min(cost, through.get(index, cost))
        for index, cost in other.lower_bound_through.items():
            floor[index] = min(cost, floor.get(index, cost))
    if not complete:
        relaxed = solve([], regrets=True)
        states += relaxed.states
        least = {**relaxed.lower_bound_through, **relaxed.least_through}
        # A set that was not searched may hold a cheaper cover through a candidate, but none below
        # the relaxation's. Where that is not known either, nothing is.
        through = {index: cost for index, cost in through.items() if least.get(index) == cost}
        floor = {index: cost for index, cost in least.items() if index not in through}
        complete = relaxed.others_in_no_cover
    for index, cost in floor.items():
        if cost < through.get(index, cost):
            del through[index]
    solution.least_through = through
    solution.lower_bound_through = {i: cost for i, cost in floor.items() if i not in through}
    solution.others_in_no_cover = complete
    return states


def _proves_none(solution: Solution) -> bool:
    """Tell whether a solve has proved that there is no cover."""
    return solution.cost is None and solution.decided


def ranked_covers_within_limits(
    solve: RestrictedSolve, sets: RuntimeSets, k: int, *, too_wide: bool, time_limit_s: float
) -> list[tuple[int, list[int]]]:
    """Return the k least-cost covers within the limits, the best first.

    Args:
        solve: Solves under the pins.
        sets: What the limits allow.
        k: How many covers are wanted.
        too_wide: Whether the graph is too wide for exact search, which then has labels only with
            regrets.
        time_limit_s: The most time for the covers after the first, in seconds.

    Returns:
        Per cover its cost and its candidates.
    """
    first = solve_within_limits(solve, sets, regrets=False, time_limit_s=time_limit_s)
    if first.cost is None or k < 1:
        return []
    known = {frozenset(first.cover): (first.cost, first.cover)}
    deadline = time.monotonic() + min(MOST_REGRETS_S, time_limit_s)
    cutoff: int | None = None
    for number, mask in enumerate(sets.maximal_sets()):
        if number == MOST_SETS or time.monotonic() > deadline:
            cutoff = first.cost
            break
        solution = solve(sets.excluded(mask), regrets=too_wide, keep_labels=True)
        if solution.cost is None:
            continue
        covers = [(solution.cost, solution.cover)]
        if solution.labels is not None:
            covers = enumerate_covers(solution.labels, k)
        if solution.cutoff is not None:
            cutoff = solution.cutoff if cutoff is None else min(cutoff, solution.cutoff)
        elif solution.labels is None:
            cutoff = first.cost
        for cost, cover in covers:
            known.setdefault(frozenset(cover), (cost, cover))
    ranked = sorted(known.values(), key=lambda entry: entry[0])
    return [e for e in ranked if cutoff is None or e[0] <= max(cutoff, first.cost)][:k]
