"""Hill-climbing over the plans of one kernel: pure logic over a function that compares.

Noise is the enemy: a plan replaces the best one only when it won in rounds that both took turns
in, and what is kept in the end has to win once more against the start, in fresh rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Plan = Mapping[str, Any]
Neighbours = Callable[[Plan], Iterable[Plan]]
Compare = Callable[[Plan, Plan], float]
"""(challenger, best) → time of the challenger as a share of the best's; infinite: no use."""

WORTH = 0.985
"""A challenger must need at most this share of the best's time."""


@dataclass
class Climb:
    """What was tried and where it led."""

    start: Plan
    best: Plan
    ratio: float = 1.0
    """Time of the best as a share of the start's, as the comparisons went."""
    tried: int = 0
    complete: bool = False
    """No neighbour is left that might be better; else the time was spent."""
    seen: set[str] = field(default_factory=set)


def name_of(plan: Plan) -> str:
    return ",".join(f"{k}={plan[k]}" for k in sorted(plan))


def climb(
    start: Plan,
    neighbours: Neighbours,
    compare: Compare,
    *,
    stop: Callable[[], bool] = lambda: False,
    tried: Iterable[str] = (),
    about_to_try: Callable[[Plan], None] = lambda _: None,
) -> Climb:
    """From ``start`` to a plan that no neighbour beats, or as far as ``stop`` lets it.

    A better neighbour is taken at once and the search goes on around it (first improvement):
    comparing costs far more than generating. ``tried``: names of plans not to try again (they
    crashed, or an earlier run compared them).
    """
    found = Climb(start, start, seen={name_of(start), *tried})
    improved = True
    while improved and not stop():
        improved = False
        for plan in neighbours(found.best):
            name = name_of(plan)
            if name in found.seen:
                continue
            if stop():
                return found
            found.seen.add(name)
            found.tried += 1
            about_to_try(plan)
            ratio = compare(plan, found.best)
            if ratio <= WORTH:
                found.best, found.ratio, improved = plan, found.ratio * ratio, True
                break
    found.complete = not improved
    return found
