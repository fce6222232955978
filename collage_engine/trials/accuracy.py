"""Keeping the promise on accuracy: the fastest cover whose measured error is within the tolerance.

What is known of a candidate is its isolated error; what is promised is the error of the whole
model. How one follows from the other depends on the model (later operators damp errors, or
amplify them), so it is measured:

1. The fastest cover of all is built and run on every sample. Within the tolerance: done.
2. Else every candidate's error is weighed by how far the model carries errors from where its
   outputs are (``lowering.sensitivity``). The cover's error over the root of its burden
   (``search.error_bound``) says how good that is for this model, and with that, which burden should
   just keep the tolerance. The fastest cover of that burden is built and run.
3. Its error, right or wrong, is a better estimate in turn, within the bracket of the largest
   burden that kept the tolerance and the smallest that did not. So the bracket closes, in at
   most ``AccuracySettings.tries`` covers.
4. The fastest cover without any reduced precision is always among what is measured: something to
   compare with, and what remains when nothing else keeps the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from collage_engine.search.check import check_cover
from collage_engine.search.error_bound import CoverWithinBound, ErrorBoundedSearch
from collage_engine.search.problem import CandidateId, Problem
from collage_engine.trials.proposals import Proposer, Trial


@dataclass(frozen=True, kw_only=True)
class AccuracySettings:
    """When the tolerance is bracketed closely enough."""

    tries: int = 7
    """Covers run for their error, the one in float32 not counted; chosen."""
    near: float = 1.15
    """Bracket, as a ratio of burdens, within which more tries would find next to nothing;
    chosen."""
    worthwhile: float = 0.005
    """Nothing more is tried when at most this share of the cost is left to win; chosen."""
    guess_margin: float = 1.02
    """A guessed burden must lie within the bracket by this factor, else its middle is taken;
    chosen."""
    halved: float = 4.0
    """Where there is no lower end or no guess, the burden is divided by this; chosen, as it halves
    the error that is expected."""


ACCURACY = AccuracySettings()


@dataclass(frozen=True, kw_only=True)
class WiderProblem:
    """All that could matter, known once the fastest cover breaks the tolerance."""

    problem: Problem
    errors: Mapping[CandidateId, float]
    """Isolated ones."""
    arriving: Mapping[CandidateId, float]
    """The same as they arrive at the model's outputs."""
    reduced: Iterable[CandidateId]


Weigh = Callable[[], WiderProblem]

Cover = tuple[CandidateId, ...]


@dataclass(frozen=True, kw_only=True)
class TriedCover:
    """A cover that was run for its error."""

    cover: tuple[CandidateId, ...]
    cost_us: float
    burden: float
    max_rel_error: float | None
    refused: bool = False
    """Whether an output breaks its own bound, which may be below the tolerance of the others."""
    reason: str | None = None
    """Why there is no error: it could not be built or run."""


@dataclass(frozen=True, kw_only=True)
class KeptTolerance:
    """The result of looking for covers that keep the tolerance."""

    tried: tuple[TriedCover, ...]
    """In the order of trying."""
    within: tuple[TriedCover, ...]
    """Those that keep the tolerance, fastest first."""
    full: TriedCover | None
    """The fastest cover without reduced precision; None: there is none under the pins."""


def keep_tolerance(
    problem: Problem,
    errors: Mapping[CandidateId, float],
    reduced: Iterable[CandidateId],
    tolerance: float,
    weigh: Weigh | None = None,
    settings: AccuracySettings = ACCURACY,
) -> Proposer[Cover, KeptTolerance]:
    """Propose covers of the problem until the fastest within the tolerance is bracketed.

    A candidate that is the whole model breaks the tolerance by itself when its isolated error does:
    it is left out at once.

    Args:
        problem: the search's.
        errors: isolated error by candidate.
        reduced: candidates that compute in less than float32.
        tolerance: on the largest relative error of the model's outputs.
        weigh: asked for all that could matter when the fastest cover breaks the tolerance, or
            would have been slower than one that was left out; None: nothing more could.
        settings: when the bracket is close enough.
    """
    few = frozenset(reduced)
    same = WiderProblem(problem=problem, errors=errors, arriving=errors, reduced=few)
    procedure = _Bracketing(problem, errors, few, tolerance, settings)
    return procedure.propose(weigh or (lambda: same))


class _Bracketing:
    """The procedure that this module describes, under way."""

    def __init__(
        self,
        problem: Problem,
        errors: Mapping[CandidateId, float],
        reduced: frozenset[CandidateId],
        tolerance: float,
        settings: AccuracySettings,
    ) -> None:
        self.errors = errors
        self.reduced = reduced
        self.tolerance = tolerance
        self.refused_us = math.inf
        """The fastest whole-model candidate that breaks the tolerance by itself, of those that
        pins and limits admit."""
        self.problem = self._admitted(problem)
        self.settings = settings
        self.left = settings.tries
        self.tried: dict[frozenset[CandidateId], TriedCover] = {}

    def _admitted(self, problem: Problem) -> Problem:
        """Without whole-model candidates that break the tolerance by themselves."""
        everything = len(problem.nodes)
        kept = []
        for c in problem.candidates:
            if len(c.nodes) < everything or self.errors.get(c.id, 0.0) <= self.tolerance:
                kept.append(c)
                continue
            alone = check_cover(problem, (c.id,))
            if isinstance(alone, float):
                self.refused_us = min(self.refused_us, alone)
        return msgspec.structs.replace(problem, candidates=tuple(kept))

    def propose(self, weigh: Weigh) -> Proposer[Cover, KeptTolerance]:
        """Return everything, in its order."""
        free = ErrorBoundedSearch(self.problem, {}).fastest()
        first = (yield from self._try(free)) if free is not None else None
        full: CoverWithinBound | None = None
        kept_us = first.cost_us if first is not None and self._keeps(first) else math.inf
        if self.refused_us < kept_us or (first is not None and not self._keeps(first)):
            wider = weigh()
            self.errors, self.reduced = wider.errors, frozenset(wider.reduced)
            self.problem = self._admitted(wider.problem)
            full = self._full()
            search = ErrorBoundedSearch(self.problem, wider.arriving)
            best = search.fastest()
            if best is not None and (first is None or self._keeps(first)):
                first = yield from self._try(best)
            known = {c.id for c in self.problem.candidates}
            if first is not None and not self._keeps(first) and known.issuperset(first.cover):
                first = replace(first, burden=search.squared_error(first.cover))
                yield from self._bisect(search, first, full)
        full = full or self._full()
        careful = (yield from self._try(full, counted=False)) if full is not None else None
        tried = tuple(self.tried.values())
        within = sorted(filter(self._keeps, tried), key=lambda t: t.cost_us)
        return KeptTolerance(tried=tried, within=tuple(within), full=careful)

    def _keeps(self, tried: TriedCover) -> bool:
        error = tried.max_rel_error
        return error is not None and error <= self.tolerance and not tried.refused

    def _full(self) -> CoverWithinBound | None:
        """Return the fastest cover without reduced precision."""
        if not self.reduced:
            return None
        rest = tuple(c for c in self.problem.candidates if c.id not in self.reduced)
        return ErrorBoundedSearch(
            msgspec.structs.replace(self.problem, candidates=rest), {}
        ).fastest()

    def _bisect(
        self, search: ErrorBoundedSearch, first: TriedCover, full: CoverWithinBound | None
    ) -> Proposer[Cover, None]:
        """Return covers between the fastest, which breaks the tolerance, and those that keep it."""
        over, under = first.burden, 0.0
        kept = [t.cost_us for t in self.tried.values() if self._keeps(t)]
        worst = min(kept + ([full.cost_us] if full is not None else []), default=math.inf)
        bound = self._expected(first, over)
        while self.left > 0 and over > under * self.settings.near:
            found = search.fastest(bound)
            if found is None:  # nothing has so little burden
                under, bound = max(under, bound), math.sqrt(max(under, bound) * over)
                self.left -= 1
                continue
            known = frozenset(found.cover) in self.tried
            result = yield from self._try(found)
            if self._keeps(result):
                worst = min(worst, result.cost_us)
                under = max(bound, under)
                if worst - first.cost_us <= self.settings.worthwhile * worst:
                    return
            else:
                over = min(over, result.burden)
            if result.cost_us >= worst and not self._keeps(result):
                return  # slower than what keeps the tolerance already
            guess = math.nan if known else self._expected(result, bound)
            middle = math.sqrt(under * over) if under > 0 else over / self.settings.halved
            margin = self.settings.guess_margin
            bound = guess if under * margin < guess < over / margin else middle

    def _expected(self, tried: TriedCover, otherwise: float) -> float:
        """Return the burden that would just keep the tolerance if errors grew as its root."""
        error = tried.max_rel_error
        if not error or not math.isfinite(error) or (error <= self.tolerance and tried.refused):
            return otherwise / self.settings.halved
        # A little above the exact bound: rounding must not keep out what keeps it just so.
        return tried.burden * (self.tolerance / error) ** 2 * (1 + 1e-9)

    def _try(self, cover: CoverWithinBound, *, counted: bool = True) -> Proposer[Cover, TriedCover]:
        """Propose a cover, unless it was, and note its error."""
        key = frozenset(cover.cover)
        known = self.tried.get(key)
        if known is not None:
            self.left -= counted
            return known
        self.left -= counted
        trial: Trial = yield tuple(cover.cover)
        error = trial.max_rel_error
        self.tried[key] = TriedCover(
            cover=cover.cover,
            cost_us=cover.cost_us,
            burden=cover.squared_error,
            max_rel_error=error,
            refused=trial.refused,
            reason=(trial.failure or "it has no error") if error is None else None,
        )
        return self.tried[key]
