"""The fastest cover whose rounding error stays within a bound.

What partitions round away are independent small errors, so what they do to the result adds up as
variances do: a cover's *squared error* is the sum of the squares of its candidates' isolated
errors. The question "least cost with at most this squared error" is a shortest path with a resource
constraint. It is answered by the dual method of Handler and Zang (1980, "A dual algorithm for the
constrained shortest path problem", Networks 10): a price on squared error is added to the costs,
which any search then minimises; the price is moved until the best cover under it just keeps the
bound; the gap that prices cannot close is closed by going through covers in the order of their
priced costs until no later one can be better.

How the squared error and the error of the whole model belong together is found out by measuring,
elsewhere: here squared error has no unit.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from collage_engine.search.check import check_cover
from collage_engine.search.problem import CandidateId, Problem
from collage_engine.search.ranked_covers import best_covers
from collage_engine.search.search import Search
from collage_engine.search.solver import usable_costs

PRICE_RAISES = 40
"""Prices tried, each ``PRICE_GROWTH`` times the one before, to find any cover within the bound (a
count; chosen: together they span 36 powers of ten)."""
PRICE_GROWTH = 8.0
"""Factor between two of these prices (chosen)."""
PRICE_STEPS = 30
"""Steps of the dual method at most (a count; chosen: three to six are usual in
tests/unit/test_tolerance.py)."""
RANKED_COVERS = 128
"""Covers gone through to close the gap (a count; chosen)."""
EQUAL_COST = 1e-9
"""Two priced costs that differ by less than this share are the same (chosen: above the rounding of
floats)."""


class CoverWithinBound(msgspec.Struct, frozen=True, kw_only=True):
    """A cover within a bound on its squared error."""

    cover: tuple[CandidateId, ...]
    cost_us: float
    squared_error: float


class ErrorBoundedSearch:
    """Searches of one problem under bounds on squared error; they share one state space."""

    def __init__(self, problem: Problem, errors: Mapping[CandidateId, float]) -> None:
        """Prepare the search.

        Args:
            problem: The problem.
            errors: Candidate to its isolated relative error; one that is left out has none.
        """
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

    def squared_error(self, cover: tuple[CandidateId, ...]) -> float:
        """Return the sum of the squares of the candidates' errors."""
        return sum(self._squares.get(self._by_id[name], 0.0) for name in cover)

    def fastest(self, bound: float | None = None) -> CoverWithinBound | None:
        """Return the least-cost cover of at most this squared error; None when there is none.

        Args:
            bound: The bound; None allows any squared error.
        """
        free = self._best(0.0)
        if free is None or bound is None or free.squared_error <= bound:
            return free
        try:
            return self._within(free, bound)
        finally:
            self._search.reprice(self._costs)

    def _within(self, bad: CoverWithinBound, bound: float) -> CoverWithinBound | None:
        """Move the price between a cover that breaks the bound and one that keeps it."""
        good = self._any(bad, bound)
        if good is None:
            return None
        price = 0.0
        for _ in range(PRICE_STEPS):
            # Under this price the two cost the same; a cover in between is cheaper than both.
            gained = bad.squared_error - good.squared_error
            price = max(0.0, (good.cost_us - bad.cost_us) / gained)
            best = self._best(price)
            assert best is not None
            level = good.cost_us + price * good.squared_error
            if best.cost_us + price * best.squared_error >= level * (1 - EQUAL_COST):
                break
            if best.squared_error <= bound:
                good = best
            else:
                bad = best
        return self._close_gap(good, price, bound)

    def _close_gap(self, best: CoverWithinBound, price: float, bound: float) -> CoverWithinBound:
        """Go through covers in the order of priced cost, until none that follows can be better."""
        self._reprice(price)
        for ranked in best_covers(self._search, self.problem.pins, RANKED_COVERS):
            # What costs this much under the price costs at least so much within the bound.
            if ranked.cost_us - price * bound >= best.cost_us * (1 - EQUAL_COST):
                break
            cover = self._evaluated(ranked.cover)
            if cover.squared_error <= bound and cover.cost_us < best.cost_us:
                best = cover
        return best

    def _any(self, free: CoverWithinBound, bound: float) -> CoverWithinBound | None:
        """Return some cover within the bound: the price is raised until one is the best."""
        price = (free.cost_us or 1.0) / free.squared_error
        for _ in range(PRICE_RAISES):
            best = self._best(price)
            if best is None or best.squared_error <= bound:
                return best
            price *= PRICE_GROWTH
        return None

    def _best(self, price: float) -> CoverWithinBound | None:
        self._reprice(price)
        covers = best_covers(self._search, self.problem.pins, 1)
        return self._evaluated(covers[0].cover) if covers else None

    def _reprice(self, price: float) -> None:
        self._search.reprice(
            {index: self._costs[index] + price * square for index, square in self._squares.items()}
        )

    def _evaluated(self, cover: tuple[CandidateId, ...]) -> CoverWithinBound:
        cost = check_cover(self.problem, cover)
        assert isinstance(cost, float), cost
        return CoverWithinBound(
            cover=cover,
            cost_us=cost,
            squared_error=self.squared_error(cover),
        )
