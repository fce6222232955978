"""Climbs over the decisions for one kernel, given a function that compares two of them.

Noise is the enemy: a plan replaces the best one only when it won in rounds that both took turns
in, and what is kept in the end has to win once more against the start, in fresh rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from collage_engine.records.placement import TIE_SHARE


class Named(Protocol):
    """The protocol of what is told apart by a name, for example ``rule.Decision``."""

    @property
    def name(self) -> str:
        """Return a name that is equal for equal kernels."""
        ...


T = TypeVar("T", bound=Named)

WORTH = 1 - TIE_SHARE
"""A challenger must need at most this share of the best's time: whatever is closer is a tie."""


@dataclass
class Climb(Generic[T]):
    """The state of a climb: what was tried, and the best that was found."""

    start: T
    best: T
    ratio: float = 1.0
    """Time of the best as a share of the start's time, by the comparisons so far."""
    tried: int = 0
    complete: bool = False
    """Whether no neighbour is left that might be better; False where the time was spent before."""
    seen: set[str] = field(default_factory=set)


def climb(
    start: T,
    neighbours: Callable[[T], Iterable[T]],
    compare: Callable[[T, T], float],
    *,
    stop: Callable[[], bool] = lambda: False,
    tried: Iterable[str] = (),
) -> Climb[T]:
    """Walks from ``start`` to what no neighbour beats, or as far as ``stop`` lets it.

    A better neighbour is taken at once and the search goes on around it (first improvement):
    comparing costs far more than generating.

    Args:
        start: Where to begin.
        neighbours: What lies next to one, the most promising first.
        compare: (challenger, best) → time of the challenger as a share of the best's; infinite
            where the challenger is of no use.
        stop: Asked before every comparison.
        tried: Names not to try again (an earlier run compared them).
    """
    found = Climb(start, start, seen={start.name, *tried})
    improved = True
    while improved and not stop():
        improved = False
        for plan in neighbours(found.best):
            name = plan.name
            if name in found.seen:
                continue
            if stop():
                return found
            found.seen.add(name)
            found.tried += 1
            ratio = compare(plan, found.best)
            if ratio <= WORTH:
                found.best, found.ratio, improved = plan, found.ratio * ratio, True
                break
    found.complete = not improved
    return found
