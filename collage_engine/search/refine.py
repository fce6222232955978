"""The second level: improving on what whole placements take, measured end to end.

Costs of candidates measured alone do not add up exactly (caches, threads, what a runtime does
between partitions). Starting from the best covers, more covers are built and measured whole:

* :class:`~collage_engine.search.local_search.LocalSearch` (default) learns from each of them.
  Corrections to the costs (of every candidate, of each toolchain's candidates in proportion, of
  each toolchain's partitions, one constant) get Gaussian priors; the measured covers give the
  posterior (Bayesian linear regression). The search itself, at the corrected costs, proposes the
  next cover, in turn at the expected corrections (its k best covers, the first one not measured
  yet) and at corrections drawn from the posterior (Thompson sampling), which tries what is still
  uncertain. At first, every other cover leans on one toolchain, which tells most of what that
  takes in place. Where one can look inside a cover that was measured, it learns from every
  partition's time.
* :class:`~collage_engine.search.evolve.Evolution` is the paper's method, for comparison.

The result is the best cover by measurement, the start included. The few that look best, by what
the method makes of all measurements, are measured once more, as is the start; only one that is
better then replaces it: never worse than the start. A run can be resumed from its trials; those
are not measured again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from collage_engine.records.cost import Cost
from collage_engine.search.local_search import LocalSearch
from collage_engine.search.trials import Cover, Trial, error_of, estimate, key_of

if TYPE_CHECKING:
    from collage_engine.search.problem import CandidateId, Problem

__all__ = ["Cover", "LocalSearch", "Measure", "Method", "Refinement", "Trial", "refine"]

Measure = Callable[[Cover], Cost]
Inside = Callable[[Cover], Mapping["CandidateId", float]]
"""What the partitions of a cover took, in microseconds, when it was measured; as far as known."""
CONTENDERS = 3
"""Covers that are measured once more in the end."""


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

    def expected(self, trial: Trial) -> float:
        """What a measured cover takes, by all that was measured; infinite for one that failed."""
        ...


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
    inside: Inside | None = None,
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
        done.setdefault(key_of(old.cover), old)
        log.append(old)
        method.learn(old)
    budget = trials

    def spent() -> bool:
        late = time_budget_s is not None and time.monotonic() - began > time_budget_s
        return budget <= 0 or late or stop()

    def run(cover: Cover) -> Trial:
        nonlocal budget
        budget -= 1
        trial = _measured(problem, cover, measure, inside)
        done.setdefault(key_of(cover), trial)
        log.append(trial)
        method.learn(trial)
        on_trial(trial)
        return trial

    for cover in start:
        if key_of(tuple(cover)) not in done and not spent():
            run(tuple(cover))
    idle = 0
    while not spent() and idle < 50:
        proposed = method.propose()
        if proposed is None:
            break
        if key_of(proposed) in done:
            idle += 1
            method.learn(done[key_of(proposed)])
            continue
        idle = 0
        run(proposed)
    starts = [done[key_of(tuple(c))] for c in start if key_of(tuple(c)) in done]
    first = _best(starts)
    best = _best(done.values())
    if best is None:
        best = first = Trial(
            cover=tuple(start[0]), us=None, estimate_us=estimate(problem, start[0])
        )
    elif first is not None and confirm and not stop():
        ranked = sorted((t for t in done.values() if t.us is not None), key=method.expected)
        contenders = [t for t in ranked if t is not first][:CONTENDERS]
        if best not in contenders and best is not first:
            contenders[-1:] = [best]
        best, first = _confirmed(problem, contenders, first, measure, log)
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
    problem: Problem,
    contenders: Sequence[Trial],
    first: Trial,
    measure: Measure,
    log: list[Trial],
) -> tuple[Trial, Trial]:
    """The best and the start, on fresh measurements, since the luckiest of many looks best. The
    start stays unless another is better by more than both their errors."""
    again = [_measured(problem, t.cover, measure, None) for t in (first, *contenders)]
    log += again
    old, new = again[0], _best(again[1:])
    if new is None or new.us is None:
        return (first, first) if old.us is None else (old, old)
    unsure = math.hypot(new.error_us or 0.0, old.error_us or 0.0)
    if old.us is not None and old.us <= new.us + unsure:
        return old, old
    return new, old


def _measured(problem: Problem, cover: Cover, measure: Measure, inside: Inside | None) -> Trial:
    cost = measure(cover)
    return Trial(
        cover=cover,
        us=cost.median_us if cost.usable else None,
        estimate_us=estimate(problem, cover),
        reason=cost.reason,
        error_us=error_of(cost.repeats_us) if cost.usable else None,
        inside=dict(inside(cover)) if inside is not None and cost.usable else {},
    )


def _best(trials: Iterable[Trial]) -> Trial | None:
    return min((t for t in trials if t.us is not None), key=lambda t: t.us or 0.0, default=None)


def _error(trial: Trial | None) -> float | None:
    return None if trial is None or trial.us is None else trial.us - trial.estimate_us
