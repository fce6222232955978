"""The fastest cover whose rounding stays within a bound.

What partitions round away are independent small errors, so what they do to the result adds up as
variances do: a cover's *burden* is the sum of the squares of its candidates' isolated errors. The
question "least cost with at most this burden" is a constrained shortest path. It is answered by
the dual method of Handler and Zang (1980, "A dual algorithm for the constrained shortest path
problem", Networks 10): a price on burden is added to the costs, which any search then minimises;
the price is moved until the best cover under it just keeps the bound; the gap that prices cannot
close is closed by going through covers in the order of their priced costs until no later one can
be better.

How burden and the error of the whole model belong together is found out by measuring (the
pipeline's part): here burden has no unit.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from collage_engine.search.check import check_cover
from collage_engine.search.problem import CandidateId, Problem
from collage_engine.search.rivals import best_covers
from collage_engine.search.search import Search, usable_costs

RAISES = 40
"""Prices tried, each eight times the one before, to find any cover within the bound."""
STEPS = 30
"""Moves of the price; a few suffice."""
RANKED = 128
"""Covers gone through to close the gap."""
LEVEL = 1e-9
"""Two priced costs this near, relatively, are the same."""


class Bounded(msgspec.Struct, frozen=True, kw_only=True):
    """A cover within a bound on its burden."""

    cover: tuple[CandidateId, ...]
    cost_us: float
    burden: float
    lower_bound_us: float
    """No cover within the bound costs less; equal to the cost where this is proven the fastest."""


class BurdenedSearch:
    """Searches of one problem under bounds on burden; the state space is kept between them."""

    def __init__(self, problem: Problem, errors: Mapping[CandidateId, float]) -> None:
        """``errors``: isolated relative error by candidate; a missing one has none."""
        self.problem = problem
        self._search = Search(problem)
        _, costs = usable_costs(problem, False)
        self._costs = {index: cost for index, cost in enumerate(costs) if cost is not None}
        self._squares = {
            index: errors[candidate.id] ** 2
            for index, candidate in enumerate(problem.candidates)
            if index in self._costs and errors.get(candidate.id)
        }
        self._by_id = {c.id: index for index, c in enumerate(problem.candidates)}

    def burden(self, cover: tuple[CandidateId, ...]) -> float:
        return sum(self._squares.get(self._by_id[name], 0.0) for name in cover)

    def fastest(self, bound: float | None = None) -> Bounded | None:
        """The least-cost cover of at most this burden (None: of any); None when there is none."""
        free = self._best(0.0)
        if free is None or bound is None or free.burden <= bound:
            return free
        try:
            return self._within(free, bound)
        finally:
            self._search.reprice(self._costs)

    def _within(self, bad: Bounded, bound: float) -> Bounded | None:
        good = self._any(bad, bound)
        if good is None:
            return None
        price = 0.0
        for _ in range(STEPS):
            # Under this price the two cost the same; a cover in between is cheaper than both.
            price = max(0.0, (good.cost_us - bad.cost_us) / (bad.burden - good.burden))
            found = self._best(price)
            assert found is not None
            level = good.cost_us + price * good.burden
            if found.cost_us + price * found.burden >= level * (1 - LEVEL):
                break
            if found.burden <= bound:
                good = found
            else:
                bad = found
        return self._close_gap(good, price, bound)

    def _close_gap(self, best: Bounded, price: float, bound: float) -> Bounded:
        """Covers in the order of priced cost, until none that follows can be better."""
        self._reprice(price)
        proven = best.lower_bound_us
        for rival in best_covers(self._search, self.problem.pins, RANKED):
            # What costs this much under the price costs at least so much within the bound.
            proven = rival.cost_us - price * bound
            if proven >= best.cost_us * (1 - LEVEL):
                break
            cover = self._judged(rival.cover)
            if cover.burden <= bound and cover.cost_us < best.cost_us:
                best = cover
        return msgspec.structs.replace(best, lower_bound_us=min(best.cost_us, max(0.0, proven)))

    def _any(self, free: Bounded, bound: float) -> Bounded | None:
        """Some cover within the bound: the price is raised until it hurts enough."""
        price = free.cost_us / free.burden
        for _ in range(RAISES):
            found = self._best(price)
            if found is None or found.burden <= bound:
                return found
            price *= 8.0
        return None

    def _best(self, price: float) -> Bounded | None:
        self._reprice(price)
        found = best_covers(self._search, self.problem.pins, 1)
        return self._judged(found[0].cover) if found else None

    def _reprice(self, price: float) -> None:
        self._search.reprice(
            {index: self._costs[index] + price * square for index, square in self._squares.items()}
        )

    def _judged(self, cover: tuple[CandidateId, ...]) -> Bounded:
        cost = check_cover(self.problem, cover)
        assert isinstance(cost, float), cost
        return Bounded(cover=cover, cost_us=cost, burden=self.burden(cover), lower_bound_us=cost)
