"""Which cover to measure next, learnt from those measured so far (see :mod:`.refine`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from collage_engine.search.rivals import enumerate_covers
from collage_engine.search.search import Search
from collage_engine.search.trials import Cover, Trial, estimate, key_of

if TYPE_CHECKING:
    from collage_engine.search.problem import CandidateId, Problem

INSIDE, INSIDE_US = 0.05, 0.3
"""Error of a partition's time seen inside a cover: a share, and microseconds."""
FAVOUR, LEANING = 0.6, 1.3
"""Of its costs, for a toolchain that a cover is to lean on; of the least estimate, such a cover's
at most."""


class LocalSearch:
    """Bayesian corrections to the costs, and the exact search at the corrected costs."""

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
        """``same``: candidates with equal keys share a correction. ``share``: how far a
        candidate's cost in place may lie from its cost alone, a standard deviation relative to the
        cost; ``noise``: of an end-to-end measurement, likewise. ``neighbours``: how many covers
        around the best at the corrected costs are looked through for one not measured yet.
        """
        self.problem = problem
        self.search = Search(problem)
        self.random = np.random.default_rng(seed)
        self.noise = noise
        self.neighbours = neighbours
        self.turn = 0
        self.probes = list(
            dict.fromkeys(problem.candidates[i].toolchain for i in self.search.usable)
        )
        self.tried: set[frozenset[str]] = set()
        self.trials: list[Trial] = []
        self.rows: list[np.ndarray] = []
        self.rest: list[float] = []
        """What was seen above the estimate, in us, of covers and of single partitions,"""
        self.noises: list[float] = []
        """and a standard deviation of each."""
        self.usable = list(self.search.usable)
        self.costs = {i: problem.candidates[i].cost_us or 0.0 for i in self.usable}
        self.index = {str(c.id): i for i, c in enumerate(problem.candidates)}
        self._features(same or {}, share)

    def _features(self, same: Mapping[CandidateId, str], share: float) -> None:
        """Columns: keys of candidates, then per toolchain its costs and its partitions, then 1."""
        candidates = self.problem.candidates
        keys: dict[str, int] = {}
        self.column: dict[int, int] = {}
        for index in self.usable:
            name = candidates[index].id
            self.column[index] = keys.setdefault(same.get(name, f"\0{name}"), len(keys))
        chains = {candidates[i].toolchain: 0 for i in self.usable}
        for number, name in enumerate(chains):
            chains[name] = len(keys) + 2 * number
        self.chain = {i: chains[candidates[i].toolchain] for i in self.usable}
        self.width = len(keys) + 2 * len(chains) + 1
        typical = float(np.median(list(self.costs.values()))) if self.costs else 1.0
        scale = np.full(self.width, share)
        for first in chains.values():
            scale[first] = share  # in proportion to the costs
            scale[first + 1] = 0.1 * typical + 0.5  # per partition, in us
        scale[-1] = 10.0 * typical
        self.prior = scale**2

    def _row(self, cover: Iterable[int], whole: bool = True) -> np.ndarray:
        row = np.zeros(self.width)
        for index in cover:
            cost = self.costs[index]
            row[self.column[index]] += cost
            row[self.chain[index]] += cost
            row[self.chain[index] + 1] += 1.0
        row[-1] = float(whole)
        return row

    def learn(self, trial: Trial) -> None:
        self.tried.add(key_of(trial.cover))
        if trial.us is None:
            return
        self.trials.append(trial)
        noise = math.hypot(self.noise * trial.us, trial.error_us or 0.0)
        cover = [self.index[str(name)] for name in trial.cover]
        self._see(self._row(cover), trial.us - trial.estimate_us, noise)
        for name, us in trial.inside.items():
            index = self.index[str(name)]
            cost = self.costs.get(index)
            if cost is not None:
                noise = math.hypot(INSIDE * us, INSIDE_US)
                self._see(self._row([index], whole=False), us - cost, noise)

    def _see(self, row: np.ndarray, rest_us: float, noise_us: float) -> None:
        self.rows.append(row)
        self.rest.append(rest_us)
        self.noises.append(noise_us)

    def expected(self, trial: Trial) -> float:
        """What a measured cover takes, by all measurements of what it has in common with others."""
        if trial.us is None:
            return math.inf
        row = self._row(self.index[str(name)] for name in trial.cover)
        return trial.estimate_us + float(row @ self._weights(draw=False))

    def propose(self) -> Cover | None:
        """In turn from the expected corrections, from drawn ones and, at first, with one toolchain
        wherever it can be, which tells most of what it takes in place; None when all are tried."""
        self.turn += 1
        while self.turn % 2 == 0 and self.probes:
            found = self._leaning(self.probes.pop(0))
            if found is not None:
                return found
        for draw in (self.turn % 2 == 0, True, True):
            weights = self._weights(draw)
            found = self._untried(weights)
            if found is not None:
                return found
        return None

    def _leaning(self, toolchain: str) -> Cover | None:
        """The best cover were this toolchain's costs far lower, if it may be good and is new."""
        candidates = self.problem.candidates
        found = self._first(
            {
                i: FAVOUR * us if candidates[i].toolchain == toolchain else us
                for i, us in self.costs.items()
            },
            1,
        )
        least = min((t.estimate_us for t in self.trials), default=math.inf)
        good = found is not None and estimate(self.problem, found) <= LEANING * least
        return found if good else None

    def _weights(self, draw: bool) -> np.ndarray:
        """Posterior corrections: their mean, or a draw (Matheron's rule)."""
        prior = self.prior
        start = self.random.normal(size=self.width) * np.sqrt(prior) if draw else np.zeros(1)
        if not self.rows:
            return start if draw else np.zeros(self.width)
        rows, rest, sigma = np.array(self.rows), np.array(self.rest), np.array(self.noises)
        if draw:
            rest = rest - rows @ start - self.random.normal(size=len(rest)) * sigma
        spread = rows * prior
        solved = np.linalg.solve(spread @ rows.T + np.diag(sigma**2 + 1e-9), rest)
        return (start if draw else 0.0) + spread.T @ solved

    def _untried(self, weights: np.ndarray) -> Cover | None:
        """The best cover at these corrections that was not measured, of the first few."""
        costs: dict[int, float | None] = {}
        for index in self.usable:
            cost = self.costs[index]
            first = self.chain[index]
            more = cost * (weights[self.column[index]] + weights[first]) + weights[first + 1]
            costs[index] = max(0.05 * cost, cost + float(more))
        return self._first(costs, self.neighbours)

    def _first(self, costs: Mapping[int, float | None], count: int) -> Cover | None:
        """The first of the ``count`` best covers at these costs that was not measured."""
        try:
            self.search.reprice(costs)
            found = self.search.find(self.problem.pins, regrets=False)
            if found.least is None:
                return None
            covers = (
                [found.cover]
                if found.passes is None
                else [c for _, c in enumerate_covers(found.passes, count)]
            )
        finally:
            self.search.reprice(dict(self.costs))
        for cover in covers:
            ids = tuple(self.problem.candidates[i].id for i in cover)
            if key_of(ids) not in self.tried:
                return ids
        return None
