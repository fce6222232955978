"""Lazy measuring: leave unmeasured what cannot matter, and prove that it cannot.

Every unmeasured candidate has a lower bound (0 when none is known). Pricing the unmeasured ones at
their bounds gives a search whose least cost no real cover can undercut. As long as its best cover
contains unmeasured candidates, those are measured; once it contains none, that cover is real and no
other can be better, whatever the rest would have cost (Dellin and Srinivasa, "lazy shortest path",
2016, on the space of covers). An unmeasured candidate whose best cover, at the bounds, costs at
least what a measured cover costs cannot matter. The certificate is as good as the bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from collage_engine.search.a_star import enumerate_covers
from collage_engine.search.problem import CandidateId, Problem, ProblemCandidate
from collage_engine.search.search import Search
from collage_engine.search.solver import Solution

Bounds = Callable[[], Mapping[CandidateId, float]]
"""Returns lower bounds in microseconds of unmeasured candidates, as they are known by now."""
Measure = Callable[[list[CandidateId]], Mapping[CandidateId, float | None]]
"""Returns costs in microseconds of (some of) these candidates. None: the candidate is invalid; left
out: it was not measured."""

Ended = Literal["certified", "stopped", "unanswered", "search limit"]
"""Why lazy measuring ended: all is certain; ``stop`` said so; ``measure`` returned nothing new; or
the search could neither prove its best cover, all of it measured, nor find another in its time."""


class LazyResult(msgspec.Struct, frozen=True, kw_only=True):
    """What lazy measuring did."""

    problem: Problem
    """The problem with what was measured filled in."""
    measured: tuple[CandidateId, ...]
    """The measured candidates, in the order in which they were asked for."""
    skipped: tuple[CandidateId, ...]
    """The candidates that were never measured. When ``certified`` they cannot matter."""
    certified: bool
    """Whether no cover with a skipped candidate costs less than the best measured cover."""
    ended: Ended
    rounds: int
    cost_us: float | None
    """Cost of the best measured cover; None when there is none."""
    lower_bound_us: float | None
    """No cover at all costs less."""


class UnmeasuredCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """An unmeasured candidate: what its best cover costs at least, and whether it can matter."""

    candidate: CandidateId
    cost_us: float | None
    """None: it is in no cover."""
    can_matter: bool


def rank_unmeasured(
    problem: Problem, *, margin_us: float = 0.0, time_limit_s: float | None = None
) -> list[UnmeasuredCandidate]:
    """Return the unmeasured candidates in the order in which to measure them.

    Args:
        problem: The problem.
        margin_us: A candidate that could tie within this much can matter too.
        time_limit_s: Time limit of each of the two searches, in seconds.

    Returns:
        The candidates, those with the cheapest cover at the bounds first.
    """
    real = Search(problem, time_limit_s=time_limit_s)
    measured = real.find(problem.pins, regrets=False)
    search = Search(problem, optimistic=True, time_limit_s=time_limit_s)
    optimistic = search.find(problem.pins)
    limit = None if measured.cost is None else real.to_us(measured.cost) + margin_us
    ranked = []
    for index, candidate in enumerate(problem.candidates):
        if candidate.state != "unknown":
            continue
        total = optimistic.least_through.get(index, optimistic.lower_bound_through.get(index))
        cost = None if total is None else search.to_us(total)
        if cost is None and not optimistic.others_in_no_cover:
            cost = search.to_us(optimistic.lower_bound)  # there was no time to know more
        matters = cost is not None and (limit is None or cost < limit)
        ranked.append(UnmeasuredCandidate(candidate=candidate.id, cost_us=cost, can_matter=matters))
    return sorted(ranked, key=lambda each: (each.cost_us is None, each.cost_us or 0.0))


def measure_lazily(
    problem: Problem,
    measure: Measure,
    *,
    margin_us: float = 0.0,
    next_best: int = 0,
    stop: Callable[[], bool] = lambda: False,
    bounds: Bounds | None = None,
    time_limit_s: float | None = None,
) -> LazyResult:
    """Measure until the best cover is known, leaving out what cannot matter.

    Args:
        problem: The problem, with unmeasured candidates at their lower bounds.
        measure: Is asked for lists of candidates, those of one cover at a time.
        margin_us: Go on until every cover with an unmeasured candidate costs at least that much
            more than the best, so that ties within it are decided by measurements too.
        next_best: In each round ask also for the unmeasured candidates of that many next best
            covers: fewer, larger rounds.
        stop: Is asked between rounds; when it says True, the result is not certified.
        bounds: Is asked after each measuring: what was measured may tell more of the rest, upwards
            or downwards. By default the bounds of the problem stay.
        time_limit_s: Time limit in seconds of each search of a graph too wide for exact search.
    """
    return _LazyMeasuring(problem, measure, margin_us, next_best, bounds, time_limit_s).run(stop)


class _LazyMeasuring:
    """One run of lazy measuring: the optimistic search, and what is known so far."""

    def __init__(
        self,
        problem: Problem,
        measure: Measure,
        margin_us: float,
        next_best: int,
        bounds: Bounds | None,
        time_limit_s: float | None,
    ) -> None:
        self.problem = problem
        self.measure = measure
        self.margin_us = margin_us
        self.next_best = next_best
        self.bounds = bounds
        self.time_limit_s = time_limit_s
        self.search = Search(problem, optimistic=True, time_limit_s=time_limit_s)
        self.index_of = {c.id: i for i, c in enumerate(problem.candidates)}
        self.unknown = {i for i, c in enumerate(problem.candidates) if c.state == "unknown"}
        self.known_bounds = {i: problem.candidates[i].lower_bound_us or 0.0 for i in self.unknown}
        self.costs: dict[int, float | None] = {}
        self.asked: list[CandidateId] = []
        self.rounds = 0

    def run(self, stop: Callable[[], bool]) -> LazyResult:
        """Measure round by round until it ends."""
        self.search.reprice(self._changed_bounds())
        best = self.search.find(self.problem.pins, regrets=False)
        while True:
            wanted = self._wanted(best)
            if not wanted:
                proved = best.decided and (best.cost is None or best.optimal)
                return self._result(best, "certified" if proved else "search limit")
            if stop():
                return self._result(best, "stopped")
            self.rounds += 1
            if not self._measure(wanted):
                return self._result(best, "unanswered")
            best = self.search.find(self.problem.pins, regrets=False)

    def _measure(self, wanted: list[int]) -> bool:
        """Measure these candidates and price them; False when nothing new came back."""
        ids = [self.problem.candidates[i].id for i in wanted]
        self.asked += ids
        costs = {self.index_of[name]: us for name, us in self.measure(ids).items()}
        fresh = {i: us for i, us in costs.items() if i in self.unknown}
        self.costs.update(fresh)
        self.unknown -= fresh.keys()
        if fresh:
            self.search.reprice({**fresh, **self._changed_bounds()})
        return bool(fresh)

    def _changed_bounds(self) -> dict[int, float | None]:
        """Return the bounds of unmeasured candidates that differ from before."""
        changed: dict[int, float | None] = {}
        for name, us in (self.bounds() if self.bounds is not None else {}).items():
            index = self.index_of.get(name)
            if index is not None and index in self.unknown and us != self.known_bounds[index]:
                changed[index] = self.known_bounds[index] = us
        return changed

    def _wanted(self, best: Solution) -> list[int]:
        """Return the candidates to measure next: of the best cover and of the next best ones.

        When the best cover is measured, those that could still tie with it within the margin.
        """
        wanted = [c for c in best.cover if c in self.unknown]
        if not wanted:
            within = self.margin_us > 0 and best.cost is not None
            return self._within_margin(best.cost or 0) if within else []
        if self.next_best and best.labels is not None:
            for _, cover in enumerate_covers(best.labels, self.next_best + 1):
                wanted += [c for c in cover if c in self.unknown and c not in wanted]
        return wanted

    def _within_margin(self, least: int) -> list[int]:
        """Return unmeasured candidates with a cover that could cost within the margin."""
        best = self.search.find(self.problem.pins)
        through = {**best.lower_bound_through, **best.least_through}
        if not best.others_in_no_cover:  # there was no time to know more of the other candidates
            through = dict.fromkeys(self.unknown, best.lower_bound) | through
        return sorted(
            index
            for index in self.unknown
            if index in through
            and self.search.difference_us(through[index], least) < self.margin_us
        )

    def _result(self, best: Solution, ended: Ended) -> LazyResult:
        """Return what was done, where ``best`` is the last solution at the bounds."""
        candidates, search = self.problem.candidates, self.search
        final = _filled(
            self.problem,
            {candidates[i].id: us for i, us in self.costs.items()},
            {candidates[i].id: self.known_bounds[i] for i in self.unknown} if self.bounds else {},
        )
        certified = ended == "certified"
        real = best
        if not certified:
            real = Search(final, time_limit_s=self.time_limit_s).find(final.pins, regrets=False)
        return LazyResult(
            problem=final,
            measured=tuple(n for n in self.asked if self.index_of[n] not in self.unknown),
            skipped=tuple(candidates[i].id for i in sorted(self.unknown)),
            certified=certified,
            ended=ended,
            rounds=self.rounds,
            cost_us=None if real.cost is None else search.to_us(real.cost),
            lower_bound_us=search.to_us(best.lower_bound) if best.cost is not None else None,
        )


def _filled(
    problem: Problem,
    costs: Mapping[CandidateId, float | None],
    bounds: Mapping[CandidateId, float],
) -> Problem:
    """Return the problem with these costs (None: the candidate is invalid) and bounds."""

    def with_cost(candidate: ProblemCandidate) -> ProblemCandidate:
        if candidate.id not in costs:
            if candidate.id not in bounds:
                return candidate
            return msgspec.structs.replace(candidate, lower_bound_us=bounds[candidate.id])
        us = costs[candidate.id]
        state = "invalid" if us is None else "measured"
        return msgspec.structs.replace(candidate, cost_us=us, state=state)

    return msgspec.structs.replace(
        problem, candidates=tuple(with_cost(c) for c in problem.candidates)
    )
