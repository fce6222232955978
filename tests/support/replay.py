"""Measured problems replayed to lazy measuring as if nothing had been measured."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from collage_engine.search.lazy_measuring import Measure
from collage_engine.search.problem import CandidateId, Problem


def replay(problem: Problem, skip: Sequence[CandidateId] = ()) -> tuple[Problem, Measure]:
    """Return a measured problem with all candidates unknown, and a ``measure`` with their costs.

    Candidates in ``skip`` keep their costs.
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
