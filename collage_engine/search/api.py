"""The public functions of the search; problem and answer are in :mod:`.problem`.

>>> answer = solve(read_problem(text))
>>> search = Search(problem)                 # keeps the state space between searches
>>> answer = solve(problem_with_another_pin, previous=search)
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from collage_engine.search.check import check_cover
from collage_engine.search.limit_verdicts import verdicts_within
from collage_engine.search.problem import Answer, CandidateId, Problem
from collage_engine.search.reading import read_problem
from collage_engine.search.rivals import Rival, best_covers
from collage_engine.search.search import Found, Search
from collage_engine.search.verdicts import explain_infeasible, verdicts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Answer",
    "Problem",
    "Rival",
    "Search",
    "check",
    "k_best",
    "read_problem",
    "regrets",
    "reuse",
    "solve",
]


JUDGED_SHARE = 0.75
"""Part of a given time limit that the search itself may take where there are pins or limits."""
OPTIMISTIC_S = 0.5
"""For the bounds on regrets of unmeasured candidates."""


def solve(
    problem: Problem,
    *,
    time_limit_s: float | None = None,
    previous: Search | None = None,
    with_bounds: bool = True,
) -> Answer:
    """The least-cost acyclic disjoint cover under the pins, or why there is none.

    ``previous``: a :class:`Search` of the same problem, whose pins may differ; what the two share
    is not computed again. ``time_limit_s`` (default 60) is when the answer comes, reading the
    problem into the state space aside; where the graph is too wide to be searched exactly in it,
    the answer states its gap. What pins and limits cost is part of it only when a limit is given;
    by default it may take as long again. ``with_bounds`` False leaves out the bounds on regrets
    of unmeasured candidates, which take a search of their own.
    """
    started = time.perf_counter()
    search = reuse(problem, previous, time_limit_s=time_limit_s)
    judged_too = bool(problem.pins) or search.limits is not None
    limit, began = search.time_limit_s, time.monotonic()
    try:
        share = JUDGED_SHARE if judged_too and time_limit_s is not None else 1.0
        search.until, search.pressed = began + share * limit, False
        found = search.find(problem.pins)
        search.until = began + (limit if time_limit_s is not None else 2 * limit)
        return _answer(problem, search, found, started, with_bounds)
    finally:
        search.until = None


def _answer(
    problem: Problem, search: Search, found: Found, started: float, with_bounds: bool
) -> Answer:
    if found.least is None:
        if not found.decided:
            return _undecided(search, found, started)
        return explain_infeasible(search, problem.pins, started)
    cover = tuple(problem.candidates[c].id for c in found.cover)
    cost = search.to_us(found.least)
    judged = check_cover(problem, cover)
    if not isinstance(judged, float) or abs(judged - cost) > 1e-6 * max(1.0, cost):
        raise AssertionError(f"the search's cover, at {cost} us, is judged otherwise: {judged}")
    exact, bounds = _regrets(search, found)
    if with_bounds:
        bounds.update(_unmeasured(problem, found, search))
    optimal = found.optimal
    return Answer(
        cost_us=cost,
        lower_bound_us=cost if optimal else min(cost, search.to_us(found.bound)),
        optimal=optimal,
        cover=cover,
        regrets=exact,
        regret_bounds=bounds,
        verdicts=verdicts_of(search, problem.pins, found),
        constraints=verdicts_within(search, problem.pins, found),
        states=found.states,
        seconds=time.perf_counter() - started,
    )


def reuse(
    problem: Problem, previous: Search | None, *, time_limit_s: float | None = None
) -> Search:
    """``previous`` if it searches the same problem, pins aside; else a new :class:`Search`."""
    if previous is not None and not previous.optimistic:
        old = previous.problem
        same = (
            old.nodes == problem.nodes
            and old.candidates == problem.candidates
            and old.outputs == problem.outputs
            and old.transitions == problem.transitions
            and old.priority == problem.priority
            and old.constraints == problem.constraints
        )
        if same:
            if time_limit_s is not None:
                previous.time_limit_s = time_limit_s
            return previous
    return Search(problem, time_limit_s=time_limit_s)


def check(problem: Problem, cover: Sequence[CandidateId]) -> float | str:
    """A cover's cost in microseconds, or the sentence that says why it is none.

    Independent of the search: it shares no code with it.
    """
    return check_cover(problem, cover)


def regrets(problem: Problem, *, previous: Search | None = None) -> dict[CandidateId, float | None]:
    """Regret of every measured candidate under the pins, in microseconds; None: in no cover."""
    return solve(problem, previous=previous, with_bounds=False).regrets


def k_best(problem: Problem, k: int, *, previous: Search | None = None) -> list[Rival]:
    """The k least-cost distinct covers under the pins, best first; fewer when there are fewer."""
    return best_covers(reuse(problem, previous), problem.pins, k)


def _regrets(
    search: Search, found: Found
) -> tuple[dict[CandidateId, float | None], dict[CandidateId, float]]:
    """Exact regrets of measured candidates, and bounds where only bounds are known."""
    assert found.least is not None
    exact: dict[CandidateId, float | None] = {}
    bounds: dict[CandidateId, float] = {}
    for index, candidate in enumerate(search.problem.candidates):
        if candidate.state != "measured":
            continue
        total = found.through.get(index)
        if total is not None:
            exact[candidate.id] = search.difference_us(total, found.least)
        elif index in found.floor:
            bounds[candidate.id] = max(0.0, search.difference_us(found.floor[index], found.least))
        else:
            exact[candidate.id] = None
    return exact, bounds


def _unmeasured(problem: Problem, found: Found, search: Search) -> dict[CandidateId, float]:
    """Regret bounds of unknown candidates that have a lower bound, all unknown at theirs."""
    wanted = {
        index
        for index, c in enumerate(problem.candidates)
        if c.state == "unknown" and c.lower_bound_us is not None
    }
    if not wanted or found.least is None:
        return {}
    # Bounds, not the answer: where the unmeasured make the graph wide, weaker ones soon are worth
    # more than the best ones late.
    limit = min(search.time_limit_s, OPTIMISTIC_S)
    optimistic = Search(problem, optimistic=True, time_limit_s=limit)
    hopeful = optimistic.find(problem.pins)
    least = search.to_us(found.least)
    bounds: dict[CandidateId, float] = {}
    for index in wanted:
        total = hopeful.through.get(index, hopeful.floor.get(index))
        if total is not None:
            bounds[problem.candidates[index].id] = max(0.0, optimistic.to_us(total) - least)
    return bounds


def _undecided(search: Search, found: Found, started: float) -> Answer:
    """No cover found in the time given, and no proof that there is none."""
    return Answer(
        lower_bound_us=search.to_us(found.bound),
        states=found.states,
        seconds=time.perf_counter() - started,
    )


def with_pins(problem: Problem, pins: Sequence[object]) -> Problem:
    """The problem under other pins."""
    return msgspec.structs.replace(problem, pins=tuple(pins))
