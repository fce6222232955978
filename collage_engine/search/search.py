"""The search of a problem under pins and limits on runtimes, again and again.

A :class:`Search` keeps what does not change between searches: pins come and go, the state space
stays. It turns pins and limits into choices of allowed candidates; a
:class:`~collage_engine.search.solver.Solver` solves each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.search.limited_search import RuntimeSets, solve_within_limits
from collage_engine.search.limits import limits_in_words
from collage_engine.search.problem import forbidden_by
from collage_engine.search.solver import Solver

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collage_engine.search.label_setting import Solution
    from collage_engine.search.problem import Problem, ProblemPin


class Search:
    """The search of a problem, for any pins."""

    def __init__(self, problem: Problem, *, time_limit_s: float | None = None) -> None:
        """Build the state space.

        Args:
            problem: The problem; its pins are ignored, its limits hold for every search.
            time_limit_s: Time limit of one solve, in seconds.
        """
        self.problem = problem
        self.solver = Solver(problem, time_limit_s=time_limit_s)
        limits = problem.limits
        self.runtime_sets = (
            RuntimeSets(problem, limits) if limits is not None and limits_in_words(limits) else None
        )
        """What the limits allow; None: there are no limits."""

    def allowed(self, pins: Iterable[ProblemPin], excluded: Iterable[int] = ()) -> list[bool]:
        """Return per candidate whether it may be chosen.

        Args:
            pins: The pins that hold.
            excluded: Indices of candidates that may not be chosen either.
        """
        allowed = [False] * len(self.problem.candidates)
        for index in self.solver.usable:
            allowed[index] = True
        for pin in pins:
            for index in forbidden_by(self.problem, pin):
                allowed[index] = False
        for index in excluded:
            allowed[index] = False
        return allowed

    def find(
        self,
        pins: Iterable[ProblemPin],
        *,
        regrets: bool = True,
        time_limit_s: float | None = None,
    ) -> Solution:
        """Find the least-cost cover under these pins and the problem's limits.

        Args:
            pins: The pins that hold.
            regrets: Whether to compute the least covers through all candidates too.
            time_limit_s: Time limit of one solve in seconds; by default the search's.
        """
        return self.within(pins, self.runtime_sets, regrets=regrets, time_limit_s=time_limit_s)

    def within(
        self,
        pins: Iterable[ProblemPin],
        sets: RuntimeSets | None,
        *,
        regrets: bool,
        time_limit_s: float | None = None,
    ) -> Solution:
        """Find the least-cost cover under these pins and other limits than the problem's.

        Args:
            pins: The pins that hold.
            sets: What the limits allow; None: there are no limits.
            regrets: Whether to compute the least covers through all candidates too.
            time_limit_s: Time limit of one solve in seconds; by default the search's.
        """
        pins = list(pins)
        if sets is not None and self.solver.too_wide:  # the sets of runtimes share the time
            most = self.solver.time_limit_s if time_limit_s is None else time_limit_s
            time_limit_s = most / max(len(sets.maximal), 1)

        def solve(excluded: Iterable[int]) -> Solution:
            return self.solver.solve(
                self.allowed(pins, excluded), regrets=regrets, time_limit_s=time_limit_s
            )

        return solve([]) if sets is None else solve_within_limits(solve, sets, regrets=regrets)

    def to_us(self, amount: int) -> float:
        """Convert an internal integer cost to microseconds."""
        return amount // self.solver.weights.scale / 1e9

    def difference_us(self, one: int, other: int) -> float:
        """Return ``one`` less ``other``, two internal integer costs, in microseconds."""
        scale = self.solver.weights.scale
        return (one // scale - other // scale) / 1e9
