"""Which cover to measure next, learnt from those measured so far (see :mod:`.refine`).

Corrections to the candidates' costs have Gaussian priors; measured covers give the posterior
(Bayesian linear regression). Covers are proposed in turn at the posterior mean and at draws from
the posterior (Thompson sampling).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from collage_engine.search.a_star import enumerate_covers
from collage_engine.search.measured_covers import (
    Cover,
    MeasuredCover,
    cover_key,
    estimated_cost,
)
from collage_engine.search.search import Search

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collage_engine.search.problem import CandidateId, Problem

    Floats = NDArray[np.float64]

PARTITION_NOISE, PARTITION_NOISE_US = 0.05, 0.3
"""Standard deviation of a partition's time in a profiled cover: a share of it, and microseconds
(chosen; the effect is seen with ``python -m tests.benchmarks.bench_refinement``)."""
PROBED_COST_FACTOR = 0.6
"""Factor on the costs of the toolchain that a probing cover is to use much of (chosen)."""
PROBED_COST_LIMIT = 1.3
"""Estimate up to which a probing cover is measured, relative to the least estimate (chosen)."""
LEAST_CORRECTED_COST = 0.05
"""Share of a candidate's cost below which no correction lowers it (chosen)."""


class BayesianProposer:
    """Bayesian corrections to the costs, and the exact search at the corrected costs.

    It is a :class:`~collage_engine.search.refine.CoverProposer`.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        seed: int = 64,
        same: Mapping[CandidateId, str] | None = None,
        share: float = 0.15,
        noise: float = 0.005,
        neighbours: int = 12,
    ) -> None:
        """Set the priors.

        Args:
            problem: The problem.
            seed: Seed of the random numbers.
            same: Candidates with equal keys share a correction.
            share: How far a candidate's in-model cost may lie from its isolated cost: a standard
                deviation relative to the cost.
            noise: That of an end-to-end measurement, likewise.
            neighbours: How many covers around the best at the corrected costs are looked through
                for one that was not measured yet.
        """
        self.problem = problem
        self.search = Search(problem)
        self.random = np.random.default_rng(seed)
        self.noise = noise
        self.neighbours = neighbours
        self.turn = 0
        self.usable = list(self.search.solver.usable)
        self.unprobed = list(dict.fromkeys(problem.candidates[i].toolchain for i in self.usable))
        """Toolchains of which no cover that uses much of them was proposed yet."""
        self.tried: set[frozenset[str]] = set()
        self.measured: list[MeasuredCover] = []
        self.rows: list[Floats] = []
        """Per observation (a cover or a partition) its features."""
        self.excess_us: list[float] = []
        """Per observation what was measured above the estimate."""
        self.noises_us: list[float] = []
        """Per observation the standard deviation of ``excess_us``."""
        self.costs = {i: problem.candidates[i].cost_us or 0.0 for i in self.usable}
        self.index = {str(c.id): i for i, c in enumerate(problem.candidates)}
        self._set_features(same or {}, share)

    def _set_features(self, same: Mapping[CandidateId, str], share: float) -> None:
        """Number the columns: keys of candidates, two per toolchain, and a constant."""
        candidates = self.problem.candidates
        keys: dict[str, int] = {}
        self.column: dict[int, int] = {}
        for index in self.usable:
            name = candidates[index].id
            self.column[index] = keys.setdefault(same.get(name, f"\0{name}"), len(keys))
        of_toolchain = {candidates[i].toolchain: 0 for i in self.usable}
        for number, toolchain in enumerate(of_toolchain):
            of_toolchain[toolchain] = len(keys) + 2 * number
        self.toolchain_column = {i: of_toolchain[candidates[i].toolchain] for i in self.usable}
        self.width = len(keys) + 2 * len(of_toolchain) + 1
        typical = float(np.median(list(self.costs.values()))) if self.costs else 1.0
        scale = np.full(self.width, share)
        for first in of_toolchain.values():
            scale[first] = share  # in proportion to the costs
            scale[first + 1] = 0.1 * typical + 0.5  # per partition, in us
        scale[-1] = 10.0 * typical
        self.prior: Floats = scale**2

    def _features(self, cover: Iterable[int], whole: bool = True) -> Floats:
        row: Floats = np.zeros(self.width)
        for index in cover:
            cost = self.costs[index]
            row[self.column[index]] += cost
            row[self.toolchain_column[index]] += cost
            row[self.toolchain_column[index] + 1] += 1.0
        row[-1] = float(whole)
        return row

    def learn(self, measured: MeasuredCover) -> None:
        """Take a measured cover into account, and its partitions where it was profiled."""
        self.tried.add(cover_key(measured.cover))
        if measured.us is None:
            return
        self.measured.append(measured)
        noise = math.hypot(self.noise * measured.us, measured.error_us or 0.0)
        cover = [self.index[str(name)] for name in measured.cover]
        self._observe(self._features(cover), measured.us - measured.estimate_us, noise)
        for name, us in measured.inside.items():
            index = self.index[str(name)]
            cost = self.costs.get(index)
            if cost is not None:
                noise = math.hypot(PARTITION_NOISE * us, PARTITION_NOISE_US)
                self._observe(self._features([index], whole=False), us - cost, noise)

    def _observe(self, row: Floats, excess_us: float, noise_us: float) -> None:
        self.rows.append(row)
        self.excess_us.append(excess_us)
        self.noises_us.append(noise_us)

    def expected(self, measured: MeasuredCover) -> float:
        """Return what a measured cover takes by all that was measured, in microseconds.

        What it has in common with other covers counts too, so that luck does not.
        """
        if measured.us is None:
            return math.inf
        row = self._features(self.index[str(name)] for name in measured.cover)
        return measured.estimate_us + float(row @ self._corrections(draw=False))

    def propose(self) -> Cover | None:
        """Return the next cover to measure; None when all are tried.

        It is in turn the best cover at the expected corrections and at drawn ones. At first every
        other one uses one toolchain wherever it can, which tells most of what that takes in a
        model.
        """
        self.turn += 1
        while self.turn % 2 == 0 and self.unprobed:
            cover = self._probing(self.unprobed.pop(0))
            if cover is not None:
                return cover
        for draw in (self.turn % 2 == 0, True, True):
            cover = self._untried(self._corrections(draw))
            if cover is not None:
                return cover
        return None

    def _probing(self, toolchain: str) -> Cover | None:
        """Return the best cover if this toolchain's costs were far lower; None if it is no good."""
        candidates = self.problem.candidates
        cover = self._first_untried(
            {
                i: PROBED_COST_FACTOR * us if candidates[i].toolchain == toolchain else us
                for i, us in self.costs.items()
            },
            1,
        )
        if cover is None:
            return None
        least = min((m.estimate_us for m in self.measured), default=math.inf)
        return cover if estimated_cost(self.problem, cover) <= PROBED_COST_LIMIT * least else None

    def _corrections(self, draw: bool) -> Floats:
        """Return the posterior corrections: their mean, or a draw (Matheron's rule)."""
        prior = self.prior
        zero: Floats = np.zeros(self.width)
        start = self.random.normal(size=self.width) * np.sqrt(prior) if draw else zero
        if not self.rows:
            return start
        rows, excess = np.array(self.rows), np.array(self.excess_us)
        sigma = np.array(self.noises_us)
        if draw:
            excess = excess - rows @ start - self.random.normal(size=len(excess)) * sigma
        spread = rows * prior
        solved = np.linalg.solve(spread @ rows.T + np.diag(sigma**2 + 1e-9), excess)
        corrections: Floats = start + spread.T @ solved
        return corrections

    def _untried(self, corrections: Floats) -> Cover | None:
        """Return the best cover at these corrections that was not measured, of the first few."""
        costs: dict[int, float | None] = {}
        for index in self.usable:
            cost = self.costs[index]
            first = self.toolchain_column[index]
            relative = corrections[self.column[index]] + corrections[first]
            more = cost * relative + corrections[first + 1]
            costs[index] = max(LEAST_CORRECTED_COST * cost, cost + float(more))
        return self._first_untried(costs, self.neighbours)

    def _first_untried(self, costs: Mapping[int, float | None], count: int) -> Cover | None:
        """Return the first of the ``count`` best covers at these costs that was not measured."""
        try:
            self.search.reprice(costs)
            solution = self.search.find(self.problem.pins, regrets=False)
            if solution.cost is None:
                return None
            covers = (
                [solution.cover]
                if solution.labels is None
                else [c for _, c in enumerate_covers(solution.labels, count)]
            )
        finally:
            self.search.reprice(dict(self.costs))
        for cover in covers:
            ids = tuple(self.problem.candidates[i].id for i in cover)
            if cover_key(ids) not in self.tried:
                return ids
        return None
