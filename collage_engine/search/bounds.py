"""Lazy measuring: leave unmeasured what cannot matter, and prove that it cannot.

Every unmeasured candidate has a certified lower bound (0 when none is known). Pricing the
unmeasured ones at their bounds gives a search whose least cost no real cover can undercut. As long
as its best cover contains unmeasured candidates, those are measured; once it contains none, that
cover is real and no other can be better, whatever the rest would have cost (Dellin and Srinivasa,
"lazy shortest path", 2016, on the space of covers). An unmeasured candidate whose best cover, at
the bounds, costs at least what a measured cover costs cannot matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from collage_engine.search.problem import Answer, CandidateId, Problem, ProblemCandidate
from collage_engine.search.rivals import enumerate_covers
from collage_engine.search.search import Search

if TYPE_CHECKING:
    from collage_engine.search.search import Found

Bounds = Callable[[], Mapping[CandidateId, float]]
"""Lower bounds in microseconds of unmeasured candidates, as they are known by now."""
Measure = Callable[[list[CandidateId]], Mapping[CandidateId, float | None]]
"""Costs in microseconds of (some of) these candidates; None: invalid. Left out: not measured."""

Ended = Literal["certified", "stopped", "unanswered", "search limit"]
"""Why lazy measuring ended: all is certain; ``stop`` said so; ``measure`` returned nothing new; or
the search could neither prove its best cover, all of it measured, nor find another in its time."""


class LazyResult(msgspec.Struct, frozen=True, kw_only=True):
    """What lazy measuring did."""

    problem: Problem
    """With what was measured filled in."""
    measured: tuple[CandidateId, ...]
    """In the order in which they were asked for."""
    skipped: tuple[CandidateId, ...]
    """Never measured. When ``certified`` they cannot matter."""
    certified: bool
    """No cover with a skipped candidate costs less than the best measured cover."""
    ended: Ended
    rounds: int
    cost_us: float | None
    """Of the best measured cover; None when there is none."""
    lower_bound_us: float | None
    """No cover at all costs less."""


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """An unmeasured candidate: what its best cover costs at least, and whether it can matter."""

    candidate: CandidateId
    cost_us: float | None
    """None: it is in no cover."""
    can_matter: bool


def outlook(
    problem: Problem, *, margin_us: float = 0.0, time_limit_s: float | None = None
) -> list[Outlook]:
    """Unmeasured candidates, the most promising first: the order in which to measure them.

    ``margin_us``: one that could tie within this much can matter too.
    """
    real = Search(problem, time_limit_s=time_limit_s)
    measured = real.find(problem.pins, regrets=False)
    search = Search(problem, optimistic=True, time_limit_s=time_limit_s)
    hopeful = search.find(problem.pins)
    limit = None if measured.least is None else real.to_us(measured.least) + margin_us
    found = []
    for index, candidate in enumerate(problem.candidates):
        if candidate.state != "unknown":
            continue
        total = hopeful.through.get(index, hopeful.floor.get(index))
        cost = None if total is None else search.to_us(total)
        matters = cost is not None and (limit is None or cost < limit)
        found.append(Outlook(candidate=candidate.id, cost_us=cost, can_matter=matters))
    return sorted(found, key=lambda o: (o.cost_us is None, o.cost_us or 0.0))


def cannot_matter(problem: Problem) -> list[CandidateId]:
    """Unmeasured candidates that no better cover than the best measured one can contain."""
    return [o.candidate for o in outlook(problem) if not o.can_matter]


def lazy(
    problem: Problem,
    measure: Measure,
    *,
    margin_us: float = 0.0,
    settle: int = 0,
    stop: Callable[[], bool] = lambda: False,
    bounds: Bounds | None = None,
    time_limit_s: float | None = None,
) -> LazyResult:
    """Measure until the best cover is known, leaving out what cannot matter.

    ``measure`` is asked for lists of candidate ids, those of one cover at a time. ``margin_us``:
    go on until every cover with an unmeasured candidate costs at least that much more than the
    best, so that ties within it are decided by measurements too. ``settle``: in each round ask
    also for the unmeasured candidates of that many next best covers (fewer, larger rounds).
    ``stop`` is asked between rounds; stopped, or when ``measure`` returns nothing new, the result
    is not certified. ``bounds`` is asked after each measuring: what was measured may tell more of
    the rest, upwards or downwards; the certificate is as good as the last ones. ``time_limit_s``
    bounds each search of a graph too wide for exact search.
    """
    search = Search(problem, optimistic=True, time_limit_s=time_limit_s)
    unknown = {i for i, c in enumerate(problem.candidates) if c.state == "unknown"}
    costs: dict[int, float | None] = {}
    index_of = {c.id: i for i, c in enumerate(problem.candidates)}
    asked: list[CandidateId] = []
    ended: Ended
    rounds = 0
    known = {i: problem.candidates[i].lower_bound_us or 0.0 for i in unknown}
    search.reprice(_moved(bounds, known, index_of, unknown))
    hopeful = search.find(problem.pins, regrets=False)
    while True:
        wanted = _wanted(search, hopeful, unknown, settle)
        if not wanted and margin_us > 0 and hopeful.least is not None:
            wanted = _within(search, problem, hopeful.least, unknown, margin_us)
        if not wanted:
            proved = hopeful.decided and (hopeful.least is None or hopeful.optimal)
            ended = "certified" if proved else "search limit"
            break
        if stop():
            ended = "stopped"
            break
        rounds += 1
        ids = [problem.candidates[i].id for i in wanted]
        asked += ids
        news = {index_of[name]: us for name, us in measure(ids).items()}
        fresh = {i: us for i, us in news.items() if i in unknown}
        if not fresh:
            ended = "unanswered"
            break
        costs.update(fresh)
        unknown -= fresh.keys()
        search.reprice({**fresh, **_moved(bounds, known, index_of, unknown)})
        hopeful = search.find(problem.pins, regrets=False)
    final = filled(
        problem,
        {problem.candidates[i].id: us for i, us in costs.items()},
        {problem.candidates[i].id: known[i] for i in unknown} if bounds else {},
    )
    certified = ended == "certified"
    real = hopeful
    if not certified:
        real = Search(final, time_limit_s=time_limit_s).find(final.pins, regrets=False)
    return LazyResult(
        problem=final,
        measured=tuple(name for name in asked if index_of[name] not in unknown),
        skipped=tuple(problem.candidates[i].id for i in sorted(unknown)),
        certified=certified,
        ended=ended,
        rounds=rounds,
        cost_us=None if real.least is None else search.to_us(real.least),
        lower_bound_us=search.to_us(hopeful.bound) if hopeful.least is not None else None,
    )


def _moved(
    bounds: Bounds | None,
    known: dict[int, float],
    index_of: Mapping[CandidateId, int],
    unknown: set[int],
) -> dict[int, float | None]:
    """Bounds of unmeasured candidates that are others than before; ``known`` has them then."""
    if bounds is None:
        return {}
    moved: dict[int, float | None] = {}
    for name, us in bounds().items():
        index = index_of.get(name)
        if index in unknown and us != known[index]:
            moved[index] = known[index] = us
    return moved


def _wanted(search: Search, hopeful: Found, unknown: set[int], settle: int) -> list[int]:
    """Unmeasured candidates of the best cover, and with ``settle`` of the next best ones."""
    wanted = [c for c in hopeful.cover if c in unknown]
    if not wanted or not settle or hopeful.passes is None:
        return wanted
    for _, cover in enumerate_covers(hopeful.passes, settle + 1):
        wanted += [c for c in cover if c in unknown and c not in wanted]
    return wanted


def _within(
    search: Search, problem: Problem, least: int, unknown: set[int], margin_us: float
) -> list[int]:
    """Unmeasured candidates with a cover that could cost within the margin of the best."""
    hopeful = search.find(problem.pins)
    least_through = {**hopeful.floor, **hopeful.through}
    return sorted(
        index
        for index in unknown
        if index in least_through and search.difference_us(least_through[index], least) < margin_us
    )


def filled(
    problem: Problem,
    costs: Mapping[CandidateId, float | None],
    bounds: Mapping[CandidateId, float] | None = None,
) -> Problem:
    """The problem with these candidates measured (or, at None, invalid), and these bounds."""
    lower = bounds or {}

    def with_cost(candidate: ProblemCandidate) -> ProblemCandidate:
        if candidate.id not in costs:
            if candidate.id not in lower:
                return candidate
            return msgspec.structs.replace(candidate, lower_bound_us=lower[candidate.id])
        us = costs[candidate.id]
        state = "invalid" if us is None else "measured"
        return msgspec.structs.replace(candidate, cost_us=us, state=state)

    return msgspec.structs.replace(
        problem, candidates=tuple(with_cost(c) for c in problem.candidates)
    )


def replay(problem: Problem, skip: Sequence[CandidateId] = ()) -> tuple[Problem, Measure]:
    """A measured problem as if nothing were measured, and a ``measure`` that replays its costs.

    Candidates in ``skip`` keep their costs. For tests and for judging lazy measuring on stored
    measurements: every measured or invalid candidate becomes unknown.
    """
    kept = set(skip)
    costs = {c.id: c.cost_us if c.state == "measured" else None for c in problem.candidates}
    blank = tuple(
        c
        if c.id in kept or c.state == "unknown"
        else msgspec.structs.replace(c, state="unknown", cost_us=None)
        for c in problem.candidates
    )
    return (
        msgspec.structs.replace(problem, candidates=blank),
        lambda ids: {name: costs[name] for name in ids},
    )


def same_cover(one: Answer, other: Answer) -> bool:
    """Whether two answers chose the same candidates."""
    return set(one.cover) == set(other.cover)
