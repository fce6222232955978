"""Limits on which runtimes a cover may use: exact, by looking through sets of runtimes.

A limit (see :mod:`~collage_engine.search.limits`) looks at nothing but the set of runtimes that a
cover uses, and every subset of an allowed set is allowed. So whatever is asked of the covers within
the limits is asked of each maximal allowed set, with the other runtimes' candidates excluded, and
the least of the answers is the answer. Nine runtimes have 126 such sets at most; each is a solve,
of 20 to 200 ms on models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from collage_engine.search.label_setting import Solution
from collage_engine.search.limits import RuntimeLimits, runtime_of, violated_limits

if TYPE_CHECKING:
    from collage_engine.search.problem import Problem


class RuntimeSets:
    """The sets of runtimes that the limits of a problem allow; a set is written as a bit mask."""

    def __init__(self, problem: Problem, limits: RuntimeLimits) -> None:
        """Find the maximal sets.

        Args:
            problem: The problem, whose candidates need the runtimes.
            limits: The limits, which need not be those of the problem.
        """
        self.limits = limits
        names = [runtime_of(c.toolchain) for c in problem.candidates]
        self.names = sorted(set(names))
        """The runtime of each bit."""
        bit_of = {name: 1 << bit for bit, name in enumerate(self.names)}
        self.used = [bit_of[name] for name in names]
        """Per candidate the runtime that it needs."""
        self.maximal = list(self._maximal_sets())
        """The allowed sets that no runtime can join: every allowed cover lies within one."""

    def violates(self, mask: int) -> bool:
        """Tell whether a cover with exactly these runtimes is not allowed."""
        used = [name for bit, name in enumerate(self.names) if mask >> bit & 1]
        return bool(violated_limits(self.limits, used))

    def _maximal_sets(self) -> Iterator[int]:
        every = (1 << len(self.names)) - 1
        waiting, seen = [every], {every}
        while waiting:
            mask = waiting.pop()
            if self.violates(mask):
                core = self._minimal_violation(mask)
                for bit in range(len(self.names)):
                    fewer = mask & ~(core & 1 << bit)
                    if fewer not in seen:
                        seen.add(fewer)
                        waiting.append(fewer)
            elif all(mask >> b & 1 or self.violates(mask | 1 << b) for b in range(len(self.names))):
                yield mask

    def _minimal_violation(self, mask: int) -> int:
        """Return a minimal set within ``mask`` that is not allowed, found by deletion."""
        for bit in range(len(self.names)):
            fewer = mask & ~(1 << bit)
            if fewer != mask and self.violates(fewer):
                mask = fewer
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


def solve_within_limits(
    solve: Callable[[list[int]], Solution], sets: RuntimeSets, *, regrets: bool
) -> Solution:
    """Find the least-cost cover within the limits.

    Args:
        solve: Solves under fixed pins without some candidates, given by index, limits aside.
        sets: What the limits allow.
        regrets: Whether ``solve`` computes the least covers through all candidates too.
    """
    if not regrets:
        free = solve([])  # where its cover keeps to the limits, none within them costs less
        if free.cost is None and free.decided:
            return free
        if free.cost is not None and not sets.violates(sets.of(free.cover)):
            return free
    solutions = [solve(sets.excluded(mask)) for mask in sets.maximal]
    able = [solution for solution in solutions if solution.cost is not None or not solution.decided]
    best = Solution(
        states=sum(solution.states for solution in solutions),
        decided=all(solution.decided for solution in able),
        lower_bound=min((solution.lower_bound for solution in able), default=0),
        others_in_no_cover=all(solution.others_in_no_cover for solution in able),
    )
    for solution in able:
        if solution.cost is not None and (
            best.cost is None
            or (solution.cost, sorted(solution.cover)) < (best.cost, sorted(best.cover))
        ):
            best.cost, best.cover = solution.cost, solution.cover
        for index, cost in solution.least_through.items():
            best.least_through[index] = min(cost, best.least_through.get(index, cost))
    best.decided = best.decided or best.cost is not None
    bounded = {index for solution in able for index in solution.lower_bound_through}
    if bounded or not best.others_in_no_cover:
        # A set without an exact answer may hold a cheaper cover through any candidate.
        bounded.update(best.least_through)
        best.least_through = {}
        best.lower_bound_through = dict.fromkeys(bounded, best.lower_bound)
    return best
