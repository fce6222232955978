"""Limits on which runtimes a cover may use: exact, by branching on runtimes.

A limit (see :mod:`~collage_engine.search.limits`) looks at nothing but the set of
runtimes that a cover uses, and every subset of an allowed set is allowed. So the least-cost cover
within the limits is the least over the allowed sets of runtimes, each a search with the other
runtimes' candidates shut out. Instead of all sets only those that can matter are searched: the
search over a set of runtimes that need not be allowed is a relaxation; where its best cover uses
an allowed set, nothing within it is better; where not, the cover's runtimes hold a smallest
forbidden set, and every allowed cover goes without one member of that, which gives one branch for
each. Best bound first, the first allowed cover is the least one (Land and Doig's branch and
bound). Bounds are those of the search, so a graph too wide for exact search keeps its gap.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from collage_engine.search.limits import Constraints, broken

if TYPE_CHECKING:
    from collage_engine.search.problem import Problem, ProblemPin
    from collage_engine.search.search import Found, Search

REGRETS_S = 10.0
"""Time for the regrets over all allowed sets; what it leaves out is bounded from below."""
MOST_SETS = 128
"""Allowed sets that are looked through for regrets and rival covers."""


class Limits:
    """The limits of a problem on sets of runtimes, written as bit masks."""

    def __init__(self, problem: Problem, constraints: Constraints) -> None:
        self.constraints = constraints
        names = {c.toolchain: constraints.runtimes_of(c.toolchain) for c in problem.candidates}
        self.names = sorted({runtime for used in names.values() for runtime in used})
        place = {name: bit for bit, name in enumerate(self.names)}
        self.all = (1 << len(self.names)) - 1
        masks = {name: sum(1 << place[r] for r in used) for name, used in names.items()}
        self.used = [masks[c.toolchain] for c in problem.candidates]
        """Per candidate the runtimes it needs."""

    def breaks(self, mask: int) -> bool:
        """Whether a cover with exactly these runtimes is not allowed."""
        used = [name for bit, name in enumerate(self.names) if mask >> bit & 1]
        return bool(broken(self.constraints, used))

    def core(self, mask: int) -> int:
        """A smallest-by-deletion set within ``mask`` that is not allowed."""
        for bit in range(len(self.names)):
            fewer = mask & ~(1 << bit)
            if fewer != mask and self.breaks(fewer):
                mask = fewer
        return mask

    def largest(self) -> Iterator[int]:
        """Allowed sets that no runtime can join: every allowed cover lies within one of them."""
        waiting, seen = [self.all], {self.all}
        while waiting:
            mask = waiting.pop()
            if self.breaks(mask):
                core = self.core(mask)
                for bit in range(len(self.names)):
                    fewer = mask & ~(core & 1 << bit)
                    if fewer != mask and fewer not in seen:
                        seen.add(fewer)
                        waiting.append(fewer)
                continue
            more = (mask | 1 << b for b in range(len(self.names)) if not mask >> b & 1)
            if all(self.breaks(bigger) for bigger in more):
                yield mask

    def grown(self, mask: int) -> int:
        """An allowed set with as many more runtimes as may join."""
        for bit in range(len(self.names)):
            if not self.breaks(mask | 1 << bit):
                mask |= 1 << bit
        return mask

    def of(self, cover: Iterable[int]) -> int:
        """The runtimes of some candidates."""
        mask = 0
        for index in cover:
            mask |= self.used[index]
        return mask

    def shut(self, mask: int) -> list[int]:
        """Candidates that need a runtime outside ``mask``."""
        return [index for index, used in enumerate(self.used) if used & ~mask]


def find_within(search: Search, limits: Limits, pins: list[ProblemPin], regrets: bool) -> Found:
    """The least-cost cover within the limits and under the pins."""
    best, states, floor, decided = branch(search, limits, pins)
    if best is None:
        from collage_engine.search.search import Found

        none = Found()
        none.states, none.decided, none.bound = states, decided, floor
        return none
    found = best
    if regrets:
        mask = limits.grown(limits.of(found.cover))
        again = search.find_shut(pins, limits.shut(mask), True)
        states += again.states
        if again.least is not None and again.least <= (best.least or 0):  # else: out of time
            found = again
            _all_regrets(search, limits, pins, mask, found)
    found.bound = min(floor, found.least or 0)
    found.states = states
    return found


def branch(
    search: Search, limits: Limits, pins: list[ProblemPin]
) -> tuple[Found | None, int, int, bool]:
    """The best cover, states, the bound on all covers, whether it is decided if there is one."""
    best: Found | None = None
    states, decided = 0, True
    floor: int | None = None
    """Least bound of what was closed without being proved."""
    waiting: list[tuple[int, int, Found]] = []
    seen: set[int] = set()

    def open_set(mask: int) -> None:
        nonlocal states, decided
        if mask in seen:
            return
        seen.add(mask)
        found = search.find_shut(pins, limits.shut(mask), False)
        states += found.states
        if found.least is not None or not found.decided:
            heapq.heappush(waiting, (found.bound, -mask, found))
        decided = decided and (found.least is not None or found.decided)

    open_set(limits.all)
    while waiting:
        bound, negative, found = heapq.heappop(waiting)
        mask = -negative
        if best is not None and best.least is not None and bound >= best.least:
            heapq.heappush(waiting, (bound, negative, found))
            break
        used = limits.of(found.cover) if found.least is not None else mask
        if found.least is not None and not limits.breaks(used):
            if best is None or best.least is None or found.least < best.least:
                best = found
            if not found.optimal:
                floor = bound if floor is None else min(floor, bound)
            continue
        core = limits.core(used) if limits.breaks(used) else 0
        if not core:  # no cover was found, and none is proved not to exist
            floor = bound if floor is None else min(floor, bound)
            continue
        for bit in range(len(limits.names)):
            if core >> bit & 1:
                open_set(mask & ~(1 << bit))
    bounds = [bound for bound, _, _ in waiting]
    if floor is not None:
        bounds.append(floor)
    if best is not None and best.least is not None:
        bounds.append(best.least)
    return best, states, min(bounds, default=0), decided


def _all_regrets(
    search: Search, limits: Limits, pins: list[ProblemPin], chosen: int, found: Found
) -> None:
    """Least covers through every candidate, over all allowed sets, into ``found``.

    Where time does not allow all of them, the search without limits bounds what is left.
    """
    deadline = time.monotonic() + min(REGRETS_S, search.time_limit_s)
    through, floor = dict(found.through), dict(found.floor)
    masks = list(islice(limits.largest(), MOST_SETS + 1))
    complete = len(masks) <= MOST_SETS
    for mask in masks[:MOST_SETS]:
        if mask == chosen:
            continue  # that is where ``found`` comes from
        if time.monotonic() > deadline:
            complete = False
            break
        other = search.find_shut(pins, limits.shut(mask), True)
        found.states += other.states
        for index, cost in other.through.items():
            through[index] = min(cost, through.get(index, cost))
        for index, cost in other.floor.items():
            floor[index] = min(cost, floor.get(index, cost))
    if not complete:
        relaxed = search.find_shut(pins, [], True)
        least = {**relaxed.floor, **relaxed.through}
        for index, cost in list(through.items()):
            if index in least and least[index] < cost and index not in found.cover:
                del through[index]
        floor = {index: cost for index, cost in least.items() if index not in through}
    found.through = through
    found.floor = {i: cost for i, cost in floor.items() if i not in through}
    for index, cost in list(through.items()):
        if floor.get(index, cost) < cost:
            del found.through[index]
            found.floor[index] = floor[index]


def covers_within(
    search: Search, limits: Limits, pins: Sequence[ProblemPin], k: int
) -> list[tuple[int, list[int]]]:
    """The k least covers within the limits, best first, as cost and candidates."""
    from collage_engine.search.rivals import enumerate_covers

    first = find_within(search, limits, list(pins), False)
    if first.least is None or k < 1:
        return []
    known = {frozenset(first.cover): (first.least, first.cover)}
    deadline = time.monotonic() + min(REGRETS_S, search.time_limit_s)
    cutoff: int | None = None
    for number, mask in enumerate(limits.largest()):
        if number == MOST_SETS or time.monotonic() > deadline:
            cutoff = first.least
            break
        found = search.find_shut(pins, limits.shut(mask), search.wide, keep=True)
        if found.least is None:
            continue
        covers = [(found.least, found.cover)]
        if found.passes is not None:
            covers = enumerate_covers(found.passes, k)
        if found.cutoff is not None:
            cutoff = found.cutoff if cutoff is None else min(cutoff, found.cutoff)
        elif found.passes is None:
            cutoff = first.least
        for cost, cover in covers:
            known.setdefault(frozenset(cover), (cost, cover))
    ranked = sorted(known.values(), key=lambda entry: entry[0])
    return [e for e in ranked if cutoff is None or e[0] <= max(cutoff, first.least)][:k]
