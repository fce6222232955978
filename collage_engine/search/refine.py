"""The second level: improving on what whole placements take, measured end to end.

Costs of candidates measured alone do not add up exactly (caches, threads, what a runtime does
between partitions). Starting from the best covers, more covers are built and measured whole:

* :class:`LocalSearch` (default) learns from each of them. Corrections to the costs (of every
  candidate, of each toolchain's candidates in proportion, of each toolchain's partitions, one
  constant) get Gaussian priors; the measured covers give the posterior (Bayesian linear
  regression). The search itself, at the corrected costs, proposes the next cover, in turn at the
  expected corrections (its k best covers, the first one not measured yet) and at corrections drawn
  from the posterior (Thompson sampling), which tries what is still uncertain.
* :class:`~collage_engine.search.evolve.Evolution` is the paper's method, for comparison.

The result is the best cover by measurement, the start included, and a winner is measured once
more against the start before it replaces it: never worse than the start. A run can be resumed from
its trials; those are not measured again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from collage_engine.records.cost import Cost
from collage_engine.search.check import check_cover
from collage_engine.search.problem import CandidateId
from collage_engine.search.rivals import enumerate_covers
from collage_engine.search.search import Search

if TYPE_CHECKING:
    from collage_engine.search.problem import Problem

Cover = tuple[CandidateId, ...]
Measure = Callable[[Cover], Cost]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A cover that was measured whole; ``us`` is None when it could not run."""

    cover: Cover
    us: float | None
    estimate_us: float
    reason: str | None = None


class Refinement(msgspec.Struct, frozen=True, kw_only=True):
    """What refinement found."""

    cover: Cover
    us: float | None
    """Measured; None when nothing could be measured."""
    start_us: float | None
    """Of the best start cover."""
    trials: tuple[Trial, ...]
    """Everything measured, in order: pass it back to resume."""
    additive_error_before_us: float | None
    """Measured less estimated, of the start."""
    additive_error_after_us: float | None
    optimality_loss_us: float | None
    """Estimate of the cover less the least cost proved possible."""
    seconds: float

    def apparent_loss_us(self, best_baseline_us: float) -> float | None:
        """Measured latency less that of the best baseline; negative is a gain."""
        return None if self.us is None else self.us - best_baseline_us


class Method(Protocol):
    """Proposes covers to measure, and learns what they took."""

    def propose(self) -> Cover | None:
        """The next cover to measure; None when it knows no more."""

    def learn(self, trial: Trial) -> None: ...


def refine(
    problem: Problem,
    start: Sequence[Sequence[CandidateId]],
    measure: Measure,
    *,
    method: Method | None = None,
    trials: int = 100,
    time_budget_s: float | None = None,
    resume: Iterable[Trial] = (),
    stop: Callable[[], bool] = lambda: False,
    on_trial: Callable[[Trial], None] = lambda trial: None,
    confirm: bool = True,
    lower_bound_us: float | None = None,
) -> Refinement:
    """Measure up to ``trials`` new covers within the time and return the best cover.

    ``start``: covers, best estimate first; they are measured first. ``method`` defaults to
    :class:`LocalSearch`. ``stop`` is asked before each measurement.
    """
    began = time.monotonic()
    if not start:
        raise ValueError("refinement needs a cover to start from")
    method = LocalSearch(problem) if method is None else method
    done: dict[frozenset[str], Trial] = {}
    log: list[Trial] = []
    for old in resume:
        done.setdefault(_key(old.cover), old)
        log.append(old)
        method.learn(old)
    budget = trials

    def spent() -> bool:
        late = time_budget_s is not None and time.monotonic() - began > time_budget_s
        return budget <= 0 or late or stop()

    def run(cover: Cover) -> Trial:
        nonlocal budget
        budget -= 1
        trial = _measured(problem, cover, measure)
        done.setdefault(_key(cover), trial)
        log.append(trial)
        method.learn(trial)
        on_trial(trial)
        return trial

    for cover in start:
        if _key(tuple(cover)) not in done and not spent():
            run(tuple(cover))
    idle = 0
    while not spent() and idle < 50:
        proposed = method.propose()
        if proposed is None:
            break
        if _key(proposed) in done:
            idle += 1
            method.learn(done[_key(proposed)])
            continue
        idle = 0
        run(proposed)
    starts = [done[_key(tuple(c))] for c in start if _key(tuple(c)) in done]
    first = _best(starts)
    best = _best(done.values())
    if best is None:
        best = first = Trial(cover=tuple(start[0]), us=None, estimate_us=_cost(problem, start[0]))
    elif first is not None and best is not first and confirm and not stop():
        best, first = _confirmed(problem, best, first, measure, log)
    return Refinement(
        cover=best.cover,
        us=best.us,
        start_us=None if first is None else first.us,
        trials=tuple(log),
        additive_error_before_us=_error(first),
        additive_error_after_us=_error(best),
        optimality_loss_us=(
            None if lower_bound_us is None else max(0.0, best.estimate_us - lower_bound_us)
        ),
        seconds=time.monotonic() - began,
    )


def _confirmed(
    problem: Problem, best: Trial, first: Trial, measure: Measure, log: list[Trial]
) -> tuple[Trial, Trial]:
    """The winner against the start on fresh measurements, since the luckiest of many looks best."""
    again = [_measured(problem, t.cover, measure) for t in (first, best)]
    log += again
    old, new = again
    if new.us is None or (old.us is not None and old.us <= new.us):
        return (first, first) if old.us is None else (old, old)
    return new, old


def _measured(problem: Problem, cover: Cover, measure: Measure) -> Trial:
    cost = measure(cover)
    us = cost.median_us if cost.usable else None
    return Trial(cover=cover, us=us, estimate_us=_cost(problem, cover), reason=cost.reason)


def _cost(problem: Problem, cover: Sequence[CandidateId]) -> float:
    cost = check_cover(problem, cover)
    if isinstance(cost, str):
        raise ValueError(f"not a cover: {cost}")
    return cost


def _key(cover: Cover) -> frozenset[str]:
    return frozenset(map(str, cover))


def _best(trials: Iterable[Trial]) -> Trial | None:
    return min((t for t in trials if t.us is not None), key=lambda t: t.us or 0.0, default=None)


def _error(trial: Trial | None) -> float | None:
    return None if trial is None or trial.us is None else trial.us - trial.estimate_us


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
        self.tried: set[frozenset[str]] = set()
        self.trials: list[Trial] = []
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

    def _row(self, cover: Iterable[int]) -> np.ndarray:
        row = np.zeros(self.width)
        for index in cover:
            cost = self.costs[index]
            row[self.column[index]] += cost
            row[self.chain[index]] += cost
            row[self.chain[index] + 1] += 1.0
        row[-1] = 1.0
        return row

    def learn(self, trial: Trial) -> None:
        self.tried.add(_key(trial.cover))
        if trial.us is not None:
            self.trials.append(trial)

    def propose(self) -> Cover | None:
        """In turn from the expected corrections and from drawn ones; None when all are tried."""
        self.turn += 1
        for draw in (self.turn % 2 == 0, True, True):
            weights = self._weights(draw)
            found = self._untried(weights)
            if found is not None:
                return found
        return None

    def _weights(self, draw: bool) -> np.ndarray:
        """Posterior corrections: their mean, or a draw (Matheron's rule)."""
        prior = self.prior
        start = self.random.normal(size=self.width) * np.sqrt(prior) if draw else np.zeros(1)
        if not self.trials:
            return start if draw else np.zeros(self.width)
        rows = np.array([self._row(self.index[str(c)] for c in t.cover) for t in self.trials])
        took = np.array([t.us or 0.0 for t in self.trials])
        rest = took - np.array([t.estimate_us for t in self.trials])
        sigma = self.noise * took
        if draw:
            rest = rest - rows @ start - self.random.normal(size=len(took)) * sigma
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
        try:
            self.search.reprice(costs)
            found = self.search.find(self.problem.pins, regrets=False)
            if found.least is None:
                return None
            covers = (
                [found.cover]
                if found.passes is None
                else [c for _, c in enumerate_covers(found.passes, self.neighbours)]
            )
        finally:
            self.search.reprice(dict(self.costs))
        for cover in covers:
            ids = tuple(self.problem.candidates[i].id for i in cover)
            if _key(ids) not in self.tried:
                return ids
        return None
