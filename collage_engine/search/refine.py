"""The second level: improving on what whole placements take, measured end to end.

Isolated costs of candidates do not add up exactly (caches, threads, what a runtime does between
partitions). Starting from the best covers, more covers are built and measured whole:

* :class:`~collage_engine.search.bayesian_proposer.BayesianProposer` (default) learns from each of
  them. Corrections to the costs (of every candidate, of each toolchain's candidates in proportion,
  of each toolchain's partitions, one constant) get Gaussian priors; the measured covers give the
  posterior (Bayesian linear regression). The search itself, at the corrected costs, proposes the
  next cover, in turn at the expected corrections (its k best covers, the first one not measured
  yet) and at corrections drawn from the posterior (Thompson sampling), which tries what is still
  uncertain. At first, every other cover uses one toolchain wherever it can, which tells most of
  what that takes in a model. Where a cover can be profiled, it learns from every partition's time.
* Any other :class:`CoverProposer` can be used; the benchmarks compare an evolutionary search.

The result is the best cover by measurement, the start included. The few that look best, by what
the proposer makes of all measurements, are measured once more, as is the start; only one that is
better then replaces it: the result is never worse than the start. A run can be resumed from its
measured covers; those are not measured again.

Refinement is a generator: it yields each cover that it wants measured and is sent the measurement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import msgspec

from collage_engine.records.cost import Cost
from collage_engine.search.bayesian_proposer import BayesianProposer
from collage_engine.search.measured_covers import (
    Cover,
    MeasuredCover,
    cover_key,
    estimated_cost,
    median_standard_error,
)

if TYPE_CHECKING:
    from collage_engine.search.problem import CandidateId, Problem

Result = TypeVar("Result")
CONFIRMED_COVERS = 3
"""Covers that are measured once more in the end, besides the start (a count; chosen)."""
REPEATED_PROPOSALS = 50
"""Proposals in a row that were measured already after which refinement ends (a count; chosen)."""


class CoverMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """What a cover took when it was measured whole."""

    cost: Cost
    """Its latency; invalid, with the reason, when it could not run."""
    inside: dict[CandidateId, float] = {}
    """What its partitions took in microseconds, as far as they were profiled."""


Measuring: TypeAlias = Generator[Cover, CoverMeasurement, Result]
"""Yields covers to measure, is sent their measurements, and returns its result."""


class Refinement(msgspec.Struct, frozen=True, kw_only=True):
    """What refinement found."""

    cover: Cover
    us: float | None
    """Its measured latency; None when nothing could be measured."""
    start_us: float | None
    """Measured latency of the best start cover."""
    trials: tuple[MeasuredCover, ...]
    """Everything that was measured, in order: pass it back to resume."""


class CoverProposer(Protocol):
    """Proposes covers to measure, and learns what they took."""

    def propose(self) -> Cover | None:
        """Return the next cover to measure; None when it knows no more."""

    def learn(self, measured: MeasuredCover) -> None:
        """Take a measured cover into account."""

    def expected(self, measured: MeasuredCover) -> float:
        """Return what a measured cover takes by all that was measured, in microseconds.

        It is infinite for one that failed.
        """
        ...


def refine(
    problem: Problem,
    start: Sequence[Sequence[CandidateId]],
    *,
    method: CoverProposer | None = None,
    trials: int = 100,
    time_budget_s: float | None = None,
    resume: Iterable[MeasuredCover] = (),
    stop: Callable[[], bool] = lambda: False,
    on_trial: Callable[[MeasuredCover], None] = lambda measured: None,
    confirm: bool = True,
) -> Measuring[Refinement]:
    """Ask for measurements of covers within the budget and return the best cover.

    A cover that is asked for a second time is being confirmed.

    Args:
        problem: The problem.
        start: Covers, the best estimate first; they are measured first.
        method: Proposes covers; by default a :class:`BayesianProposer`.
        trials: The most covers to measure.
        time_budget_s: The most time, in seconds; None: no limit.
        resume: What an earlier refinement has measured.
        stop: Is asked before each measurement.
        on_trial: Is called with each measured cover.
        confirm: Whether the best covers and the start are measured once more in the end.

    Raises:
        ValueError: ``start`` is empty, or what is measured is not a cover.
    """
    if not start:
        raise ValueError("refinement needs a cover to start from")
    proposer = BayesianProposer(problem) if method is None else method
    run = _Refining(problem, proposer, on_trial, trials, time_budget_s, stop)
    run.resume(resume)
    yield from run.measure_start(start)
    yield from run.follow_proposals()
    first, best = run.best_of_start(start), run.best()
    if best is None:
        best = first = MeasuredCover(
            cover=tuple(start[0]), us=None, estimate_us=estimated_cost(problem, start[0])
        )
    elif first is not None and confirm and not stop():
        best, first = yield from run.confirm(best, first)
    return Refinement(
        cover=best.cover,
        us=best.us,
        start_us=None if first is None else first.us,
        trials=tuple(run.log),
    )


class _Refining:
    """One refinement: what was measured so far, and the budget that is left."""

    def __init__(
        self,
        problem: Problem,
        proposer: CoverProposer,
        on_trial: Callable[[MeasuredCover], None],
        trials: int,
        time_budget_s: float | None,
        stop: Callable[[], bool],
    ) -> None:
        self.began = time.monotonic()
        self.problem = problem
        self.proposer = proposer
        self.on_trial = on_trial
        self.trials_left = trials
        self.time_budget_s = time_budget_s
        self.stop = stop
        self.done: dict[frozenset[str], MeasuredCover] = {}
        self.log: list[MeasuredCover] = []

    def resume(self, earlier: Iterable[MeasuredCover]) -> None:
        """Take over what an earlier refinement has measured."""
        for measured in earlier:
            self.done.setdefault(cover_key(measured.cover), measured)
            self.log.append(measured)
            self.proposer.learn(measured)

    def measure_start(self, start: Sequence[Sequence[CandidateId]]) -> Measuring[None]:
        """Measure the covers to start from."""
        for cover in start:
            if cover_key(tuple(cover)) not in self.done and not self._is_spent():
                yield from self._run(tuple(cover))

    def follow_proposals(self) -> Measuring[None]:
        """Measure what the proposer proposes until the budget is spent or it knows no more."""
        repeated = 0
        while repeated < REPEATED_PROPOSALS and not self._is_spent():
            cover = self.proposer.propose()
            if cover is None:
                return
            known = self.done.get(cover_key(cover))
            if known is not None:
                repeated += 1
                self.proposer.learn(known)
                continue
            repeated = 0
            yield from self._run(cover)

    def best(self) -> MeasuredCover | None:
        """Return the fastest measured cover; None when none could run."""
        return _fastest(self.done.values())

    def best_of_start(self, start: Sequence[Sequence[CandidateId]]) -> MeasuredCover | None:
        """Return the fastest cover of those it started from."""
        keys = [cover_key(tuple(cover)) for cover in start]
        return _fastest(self.done[key] for key in keys if key in self.done)

    def confirm(
        self, best: MeasuredCover, first: MeasuredCover
    ) -> Measuring[tuple[MeasuredCover, MeasuredCover]]:
        """Measure the start and the covers that look best again, since the luckiest looks best.

        The start stays unless another is better by more than both their errors.

        Args:
            best: The fastest measured cover.
            first: The fastest start cover.

        Returns:
            The best cover and the start, on fresh measurements.
        """
        ranked = sorted(
            (m for m in self.done.values() if m.us is not None), key=self.proposer.expected
        )
        others = [m for m in ranked if m is not first][:CONFIRMED_COVERS]
        if best not in others and best is not first:
            others[-1:] = [best]
        again: list[MeasuredCover] = []
        for known in (first, *others):
            measured = yield from self._measured(known.cover, profiled=False)
            again.append(measured)
        self.log += again
        old, new = again[0], _fastest(again[1:])
        if new is None or new.us is None:
            return (first, first) if old.us is None else (old, old)
        unsure = math.hypot(new.error_us or 0.0, old.error_us or 0.0)
        if old.us is not None and old.us <= new.us + unsure:
            return old, old
        return new, old

    def _is_spent(self) -> bool:
        late = self.time_budget_s is not None and time.monotonic() - self.began > self.time_budget_s
        return self.trials_left <= 0 or late or self.stop()

    def _run(self, cover: Cover) -> Measuring[None]:
        self.trials_left -= 1
        measured = yield from self._measured(cover, profiled=True)
        self.done.setdefault(cover_key(cover), measured)
        self.log.append(measured)
        self.proposer.learn(measured)
        self.on_trial(measured)

    def _measured(self, cover: Cover, *, profiled: bool) -> Measuring[MeasuredCover]:
        measurement = yield cover
        cost = measurement.cost
        return MeasuredCover(
            cover=cover,
            us=cost.median_us if cost.usable else None,
            estimate_us=estimated_cost(self.problem, cover),
            reason=cost.reason,
            error_us=median_standard_error(cost.repeats_us) if cost.usable else None,
            inside=measurement.inside if profiled and cost.usable else {},
        )


def _fastest(measured: Iterable[MeasuredCover]) -> MeasuredCover | None:
    return min((m for m in measured if m.us is not None), key=lambda m: m.us or 0.0, default=None)
