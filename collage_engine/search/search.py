"""The search of a problem under pins and limits on runtimes, again and again.

A :class:`Search` keeps what does not change between searches: pins come and go, the state space
stays. It turns pins and limits into choices of allowed candidates, and solves each of them by label
setting (:mod:`collage_engine.search.label_setting`). Where the state space is too large for that,
it solves an integer program (:mod:`collage_engine.search.integer_program`), for good; where time
ends first, the best cover found comes with a bound on what a better one costs.

A limit (see :mod:`~collage_engine.search.limits`) looks at nothing but the set of runtimes that a
cover uses, and every subset of an allowed set is allowed. So whatever is asked of the covers within
the limits is asked of each maximal allowed set, with the other runtimes' candidates excluded, and
the least of the answers is the answer. Nine runtimes have 126 such sets at most; each is a solve,
of 20 to 200 ms on models.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from collage_engine.search.label_setting import LabelSetting, Solution, enumerate_covers
from collage_engine.search.limits import (
    RuntimeLimits,
    runtime_of,
    violated_limits,
)
from collage_engine.search.pricing import IMPOSSIBLE
from collage_engine.search.problem import forbidden_by
from collage_engine.search.state_space import SearchLimitExceeded, StateSpace
from collage_engine.search.weights import Weights
from collage_engine.support.time_limits import ANSWER_S, STEP_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from collage_engine.search.problem import Problem, ProblemPin

EXACT_S, EXACT_S_PER_NODE = 5.0, 1e-3
"""Seconds of label setting, and seconds for each node of the graph, after which the integer program
takes over. Measured with ``bench_search`` of commit ``4a516527``."""
WIDE_STATES = 45.0
"""Estimated states for each node from which on label setting is not even tried. Measured with
``bench_search`` of commit ``4a516527``: dense blocks have 39 and take it a second, NASNet has
50 and takes the integer program half as long; twenty models have 4 to 17."""


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
        return sum({self.used[index] for index in cover})

    def excluded(self, mask: int) -> list[int]:
        """Return the candidates that need a runtime outside ``mask``."""
        return [index for index, used in enumerate(self.used) if used & ~mask]


class Search:
    """The search of a problem, for any pins."""

    def __init__(self, problem: Problem, *, time_limit_s: float | None = None) -> None:
        """Build the state space.

        Args:
            problem: The problem; its pins are ignored, its limits hold for every search.
            time_limit_s: Time limit of one solve, in seconds.
        """
        self.problem = problem
        self.time_limit_s = ANSWER_S if time_limit_s is None else time_limit_s
        self.exact_s = EXACT_S + EXACT_S_PER_NODE * len(problem.nodes)
        self.deadline: float | None = None
        """When every solve ends, whatever its limit, in :func:`time.monotonic` seconds."""
        self.has_answered = False
        """Whether there is an answer already: then nothing is solved any more past ``deadline``."""
        self.usable = [
            index
            for index, candidate in enumerate(problem.candidates)
            if candidate.state == "measured" and candidate.cost_us is not None
        ]
        self.space = StateSpace(problem, self.usable)
        self.too_wide = self.space.mean_states > WIDE_STATES
        """Whether the state space is, or has proved, too large for exact search."""
        self.weights = Weights(problem, self.space)
        self._latest: tuple[tuple[bool, ...], Solution] | None = None
        """What was last proved to be the best, and for whom, where the graph is wide."""
        self.runtime_sets = RuntimeSets(problem, problem.limits or RuntimeLimits())
        """What the limits allow; without limits the set of all runtimes."""

    def allowed(self, pins: Iterable[ProblemPin], excluded: Iterable[int] = ()) -> list[bool]:
        """Return per candidate whether it may be chosen.

        Args:
            pins: The pins that hold.
            excluded: Indices of candidates that may not be chosen either.
        """
        usable = set(self.usable).difference(excluded)
        for pin in pins:
            usable.difference_update(forbidden_by(self.problem, pin))
        return [index in usable for index in range(len(self.problem.candidates))]

    def find(
        self, pins: Iterable[ProblemPin], *, sets: RuntimeSets | None = None, regrets: bool = True
    ) -> Solution:
        """Find the least-cost cover under these pins and limits.

        Args:
            pins: The pins that hold.
            sets: What the limits allow; by default those of the problem.
            regrets: Whether to compute the least covers through all candidates too.
        """
        pins, sets = list(pins), sets or self.runtime_sets
        shares = len(sets.maximal) if self.too_wide else 1

        def solve(excluded: Iterable[int]) -> Solution:
            return self.solve(self.allowed(pins, excluded), regrets=regrets, shares=shares)

        return _solve_within_limits(solve, sets, regrets=regrets)

    def uncovered(self, allowed: Sequence[bool]) -> list[int]:
        """Return the ids of the nodes that no allowed candidate holds."""
        held: set[int] = set()
        for nodes in self.space.node_sets:
            if any(allowed[c] for c in nodes.candidates):
                held.update(nodes.members)
        position = self.space.position
        return [n.id for index, n in enumerate(self.problem.nodes) if position[index] not in held]

    def solve(self, allowed: Sequence[bool], *, regrets: bool = True, shares: int = 1) -> Solution:
        """Find the least-cost cover of the allowed candidates.

        Args:
            allowed: Per candidate whether it may be chosen.
            regrets: Whether to compute the least covers through all candidates too.
            shares: Solves that the time limit is for, all together.
        """
        if self.uncovered(allowed):
            return Solution()
        began = time.monotonic()
        most = self.time_limit_s / max(shares, 1)
        limit = most
        if self.deadline is not None:
            limit = min(limit, self.deadline - began)
            if limit <= 0 and self.has_answered:
                return Solution(decided=False)
            self.has_answered = True
        if not self.too_wide:
            try:
                exact_s = min(self.exact_s, limit * STEP_SHARE)
                return self._exact(allowed, regrets, began + exact_s)
            except SearchLimitExceeded:
                # Cut short by earlier solves, it says nothing of how long a whole solve takes.
                self.too_wide = exact_s == self.exact_s or limit > STEP_SHARE * most
        return self._wide(allowed, regrets, began + limit)

    def _eligible(self, allowed: Sequence[bool]) -> list[list[int]]:
        """Return per node set the candidates that a cover may hold."""
        possible = [
            a and cost < IMPOSSIBLE for a, cost in zip(allowed, self.weights.cost, strict=True)
        ]
        return [[c for c in nodes.candidates if possible[c]] for nodes in self.space.node_sets]

    def _exact(self, allowed: Sequence[bool], regrets: bool, deadline: float) -> Solution:
        labels = LabelSetting(self.space, self.weights, self._eligible(allowed), deadline)
        least = labels.run_backward()
        solution = Solution(labels=labels)
        if least is None:
            return solution
        solution.cost = solution.lower_bound = least
        ((_, solution.cover),) = enumerate_covers(labels, 1)
        if regrets:
            labels.run_forward()
            solution.least_through = labels.least_through
            solution.others_in_no_cover = True
        solution.states = sum(map(len, labels.forward_labels)) + sum(
            map(len, labels.backward_labels)
        )
        return solution

    def _wide(self, allowed: Sequence[bool], regrets: bool, deadline: float) -> Solution:
        """Solve where the state space is too large, by an integer program."""
        from collage_engine.search.integer_program import IntegerProgram  # it loads NumPy

        key = tuple(allowed)
        if self._latest is not None and self._latest[0] == key:
            latest = self._latest[1]
            if latest.others_in_no_cover or not regrets:
                return replace(latest)
        program = IntegerProgram(self.space, self.weights, self._eligible(allowed))
        solution = program.solve(deadline, regrets=regrets)
        if solution.optimal:
            self._latest = key, solution
        return replace(solution)

    def to_us(self, amount: int) -> float:
        """Convert an internal integer cost to microseconds."""
        return amount // self.weights.scale / 1e9

    def difference_us(self, one: int, other: int) -> float:
        """Return ``one`` less ``other``, two internal integer costs, in microseconds."""
        scale = self.weights.scale
        return (one // scale - other // scale) / 1e9


def _solve_within_limits(
    solve: Callable[[list[int]], Solution], sets: RuntimeSets, *, regrets: bool
) -> Solution:
    """Find the least-cost cover within the limits.

    Args:
        solve: Solves under fixed pins without some candidates, given by index, limits aside.
        sets: What the limits allow.
        regrets: Whether ``solve`` computes the least covers through all candidates too.
    """
    if len(sets.maximal) == 1:
        return solve(sets.excluded(sets.maximal[0]))
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
