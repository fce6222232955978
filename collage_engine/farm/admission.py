"""Finds out which machines of a pool measure alike: what they are asked, and what was found.

What was found is kept in the coordinator's store for a day, so that the next command on the same
farm need not find it out again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from collage_engine.farm.messages import SharedGroup
from collage_engine.records.cost import Cost
from collage_engine.store.store import Store

COMPARED = 12
"""Candidates by which a machine is compared with that of a run; from the product's requirements."""
COMPARING_S = 60.0
"""Seconds for measuring each group of them; chosen."""
COMPARE_EVERY_S = 1.0
"""Seconds between two looks at what a machine can be compared by; chosen: a look asks the store for
every group that was shared."""
ALIKE_S = 86_400.0
"""Seconds for which machines that were found alike count as alike, a day; chosen: a machine's speed
changes with its neighbours and its cooling, and its speed probe is read beside every group."""
MOST_PAIRS = 10_000
"""Pairs of machines that are remembered; chosen."""
CONSTANT = "machines of farms that measure alike"
"""Name, in the store, of what was found."""


def admission(machine: str) -> str:
    """Returns the owner of the tasks by which a machine is compared with that of a run."""
    return f"admission of {machine}"


@dataclass
class Comparison:
    """How far a machine was compared with that of a run.

    Attributes:
        lead: The machine of the run.
        asked: Groups that it was asked to measure.
        candidates: How many candidates these have.
        waiting: Those of the groups that it has not answered.
        pairs: Medians of the same candidates in µs, of the run's machine and of this one.
    """

    lead: str
    asked: set[str] = field(default_factory=set)
    candidates: int = 0
    waiting: set[str] = field(default_factory=set)
    pairs: list[tuple[float, float]] = field(default_factory=list)

    def wanted(
        self, known: list[tuple[SharedGroup, Mapping[str, Cost]]]
    ) -> list[tuple[SharedGroup, Mapping[str, Cost]]]:
        """Take those groups that it is to measure next, until it was asked a dozen candidates."""
        found = []
        for group, costs in known:
            if self.candidates < COMPARED and group.id not in self.asked:
                self.asked.add(group.id)
                self.waiting.add(group.id)
                self.candidates += len(costs)
                found.append((group, costs))
        return found

    @property
    def is_over(self) -> bool:
        """Tells whether the machine has answered all that it is to be asked."""
        return not self.waiting and self.candidates >= COMPARED


def remember(store: Store, pool: str, one: str, other: str) -> None:
    """Keep that two machines of a pool were found to measure alike now."""
    now = time.time()
    kept = [row for row in _rows(store, now) if row[:3] != (pool, one, other)]
    store.put_constant(CONSTANT, [*kept[-MOST_PAIRS + 1 :], (pool, one, other, now)])


def remembered(store: Store) -> dict[str, list[frozenset[str]]]:
    """Return, by pool, the pairs of machines that were found to measure alike within a day."""
    found: dict[str, list[frozenset[str]]] = {}
    for pool, one, other, _ in _rows(store, time.time()):
        found.setdefault(pool, []).append(frozenset({one, other}))
    return found


def _rows(store: Store, now: float) -> list[tuple[str, str, str, float]]:
    """Return what is kept and not too old; a store may come from anybody."""
    kept: Any = store.constant(CONSTANT)
    rows = []
    for row in kept[:MOST_PAIRS] if isinstance(kept, list) else ():
        if isinstance(row, list) and [type(part) for part in row] == [str, str, str, float]:
            pool, one, other, at = row
            if now - ALIKE_S < at <= now:
                rows.append((pool, one, other, at))
    return rows
