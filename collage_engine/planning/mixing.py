"""How much mixing toolchains could still win over the best one alone: a bound by isolated costs."""

from __future__ import annotations

import time

import msgspec

from collage_engine.records.mixing import MixingBound
from collage_engine.search.problem import Problem, Transitions
from collage_engine.search.search import Search

TIME_LIMIT_S = 1.0
"""Seconds that the bound may take altogether (chosen: it is shown at the end of a run, and must not
be felt there)."""


def mixing_bound(problem: Problem, *, time_limit_s: float = TIME_LIMIT_S) -> MixingBound | None:
    """Return a bound on what mixing could win.

    Args:
        problem: The search problem with isolated costs; its pins and limits are ignored.
        time_limit_s: The most time for it, in seconds.

    Returns:
        The bound; None where no toolchain can run everything alone, or there was no time.
    """
    deadline = time.monotonic() + time_limit_s
    problem = msgspec.structs.replace(problem, pins=(), limits=None)
    alone = _best_alone(problem, deadline)
    if alone is None:
        return None
    formats = tuple((node, one, other, 0.0) for node, one, other, _ in problem.transitions.formats)
    free = msgspec.structs.replace(problem, transitions=Transitions(formats=formats))
    left = deadline - time.monotonic()
    if left <= 0:
        return None
    search = Search(free, optimistic=True, time_limit_s=left)
    best = search.find((), regrets=False)
    if best.cost is None:
        return None
    name, alone_us = alone
    return MixingBound(
        toolchain=name,
        alone_us=alone_us,
        bound_us=min(alone_us, search.to_us(best.lower_bound)),
        proves=best.optimal and all(problem.candidates[c].state == "measured" for c in best.cover),
    )


def _best_alone(problem: Problem, deadline: float) -> tuple[str, float] | None:
    """Return the toolchain that costs least by itself, and its cost in microseconds.

    A toolchain's instances count as one; None where none can run everything, or time is over.
    """
    search = Search(problem, time_limit_s=max(0.0, deadline - time.monotonic()))
    solve = search.restricted(())
    names = [candidate.toolchain.partition("[")[0] for candidate in problem.candidates]
    best: tuple[str, float] | None = None
    for name in dict.fromkeys(names):
        if time.monotonic() > deadline:
            return None
        found = solve([index for index, other in enumerate(names) if other != name])
        if found.cost is not None:
            cost_us = search.to_us(found.cost)
            if best is None or cost_us < best[1]:
                best = name, cost_us
    return best
