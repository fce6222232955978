"""Searching a problem, and searching it again: what does not change is kept.

A :class:`Search` owns the state space of a problem. Pins and costs come and go; as long as the
nodes and the usable candidates' node sets stay, the space does too. It searches exactly; where
the space is too large for that, it falls back to bounded search (:mod:`wide`), for good.
"""

from __future__ import annotations

import time
from copy import copy
from typing import TYPE_CHECKING

from collage_engine.search.again import PassesAgain
from collage_engine.search.constraints import Limits, find_within
from collage_engine.search.limits import in_words
from collage_engine.search.pins import forbidden_by
from collage_engine.search.problem import PLAIN
from collage_engine.search.shortest_path import Passes
from collage_engine.search.space import Space
from collage_engine.search.spots import SpaceLimit
from collage_engine.search.weights import Weights
from collage_engine.search.wide import Wide

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from collage_engine.search.problem import Problem, ProblemPin

EXACT_WORK, EXACT_WORK_PER_NODE = 1_500_000, 1_200
"""Steps of the exact passes beyond which bounded search takes over (five seconds, and one
millisecond or so a node)."""
EXACT_MOVES, EXACT_MOVES_PER_NODE = 300_000, 60
"""Moves between spots beyond which bounded search takes over."""
EXACT_SHARE = 0.7
"""Part of the time limit that exact search may spend before bounded search takes over."""
DEFAULT_TIME_S = 60.0
REMEMBERED = 64


class Found:
    """What searching under some pins found; amounts are internal integers."""

    def __init__(self) -> None:
        self.least: int | None = None
        """Cost of the best cover found; None when there is none (``decided``) or none was found."""
        self.bound = 0
        """No cover costs less."""
        self.cover: list[int] = []
        self.through: dict[int, int] = {}
        """Candidate to the exact least cost of a cover through it."""
        self.floor: dict[int, int] = {}
        """Candidates whose least cover is only known to cost at least this."""
        self.states = 0
        self.decided = True
        """Whether it is known if there is a cover at all."""
        self.passes: Passes | None = None
        """Passes over all spots, or bounded ones over the spots with covers up to ``cutoff``."""
        self.cutoff: int | None = None
        """Every cover up to this cost is among the passes' spots; None: every cover."""

    @property
    def optimal(self) -> bool:
        return self.least is not None and self.bound >= self.least


class Search:
    """The state space of a problem, for any pins."""

    def __init__(
        self,
        problem: Problem,
        *,
        optimistic: bool = False,
        time_limit_s: float | None = None,
        work: int | None = None,
    ) -> None:
        """``optimistic``: unknown candidates count, at their lower bounds (0 without one).
        ``work``: steps that exact passes may take; by default what the size of the graph deserves.
        """
        self.problem = problem
        self.optimistic = optimistic
        self.time_limit_s = DEFAULT_TIME_S if time_limit_s is None else time_limit_s
        count = len(problem.nodes)
        self.work = EXACT_WORK + EXACT_WORK_PER_NODE * count if work is None else work
        self.until: float | None = None
        """Time (:func:`time.monotonic` seconds) at which every search ends, whatever its limit."""
        self.pressed = False
        """Whether there is an answer already: then past ``until`` nothing is searched any more."""
        self.wide = False
        """Set once the space has proved too large for exact passes."""
        self.usable, costs = usable_costs(problem, optimistic)
        self.space = Space(problem, self.usable)
        self.weights = Weights(problem, self.space, costs)
        self._forbidden: dict[ProblemPin, list[int]] = {}
        self._base: Passes | None = None
        """The latest exact passes, forward and backward: later ones start from them."""
        self._repriced: set[int] = set()
        """Candidates priced anew since."""
        self._costs: dict[frozenset[ProblemPin], Found] = {}
        """What was found under pins lately, without passes."""
        said = problem.constraints
        self.limits = Limits(problem, said) if said is not None and in_words(said) else None
        """On the runtimes of a cover; None: there are none."""
        self._within: dict[tuple[frozenset[ProblemPin], frozenset[int]], Found] = {}

    def reprice(self, costs_us: Mapping[int, float | None]) -> None:
        """Give candidates (by index) other costs; None: never chosen any more.

        Only candidates that were usable when the search was made can be priced.
        """
        self._costs.clear()
        self._within.clear()
        self._repriced.update(costs_us)
        gone = set()
        for index, us in costs_us.items():
            if index not in self.space.set_of:
                raise KeyError(index)
            if us is None:
                gone.add(index)
            else:
                self.weights.reprice(index, us)
        if gone:
            self.usable = [index for index in self.usable if index not in gone]

    def forbidden(self, pin: ProblemPin) -> list[int]:
        found = self._forbidden.get(pin)
        if found is None:
            found = self._forbidden[pin] = forbidden_by(self.problem, pin)
        return found

    def allowed(self, pins: Iterable[ProblemPin], shut: Iterable[int] = ()) -> list[bool]:
        """Per candidate whether it is usable under these pins; ``shut`` ones are not."""
        allowed = [False] * len(self.problem.candidates)
        for index in self.usable:
            allowed[index] = True
        for pin in pins:
            for index in self.forbidden(pin):
                allowed[index] = False
        for index in shut:
            allowed[index] = False
        return allowed

    def uncovered(self, allowed: Sequence[bool]) -> list[int]:
        """Ids of the nodes that no allowed candidate holds."""
        held: set[int] = set()
        for nodes in self.space.sets:
            if any(allowed[c] for c in nodes.candidates):
                held.update(nodes.members)
        position = self.space.position
        return [n.id for at, n in enumerate(self.problem.nodes) if position[at] not in held]

    def find(self, pins: Iterable[ProblemPin], *, regrets: bool = True) -> Found:
        """The least-cost cover under the pins; ``regrets`` False skips the forward pass."""
        pins = list(pins)
        if self.limits is None:
            found = self._find(pins, regrets)
        else:
            found = find_within(self, self.limits, pins, regrets)
        if found.decided:  # what there was no time for is not remembered
            if len(self._costs) >= REMEMBERED:
                self._costs.pop(next(iter(self._costs)))
            self._costs[frozenset(pins)] = _brief(found)
        return found

    def recall(self, pins: Iterable[ProblemPin]) -> Found:
        """Cost and cover under the pins, from memory where they were searched lately."""
        pins = list(pins)
        known = self._costs.get(frozenset(pins))
        return self.find(pins, regrets=False) if known is None else known

    def find_shut(
        self, pins: Iterable[ProblemPin], shut: Iterable[int], regrets: bool, *, keep: bool = False
    ) -> Found:
        """As ``find``, without limits on runtimes, but without the ``shut`` candidates.

        ``keep``: with its passes, which are not remembered.
        """
        pins, shut = list(pins), frozenset(shut)
        key = frozenset(pins), shut
        known = self._within.get(key)
        if known is not None and not regrets and not keep:
            return known
        found = self._find(pins, regrets, shut)
        if found.decided:
            if len(self._within) >= REMEMBERED:
                self._within.pop(next(iter(self._within)))
            self._within[key] = _brief(found)
        return found

    def _find(self, pins: list[ProblemPin], regrets: bool, shut: Iterable[int] = ()) -> Found:
        allowed = self.allowed(pins, shut)
        if self.uncovered(allowed):
            return Found()
        began = time.monotonic()
        limit = self.time_limit_s
        if self.until is not None:
            limit = min(limit, self.until - began)
            if limit <= 0 and self.pressed:
                found = Found()
                found.decided = False
                return found
            self.pressed = True
        if not self.wide:
            try:
                return self._exact(allowed, regrets, began + limit * EXACT_SHARE)
            except SpaceLimit:
                # Cut short by what went before, it says nothing of how long a whole search takes.
                self.wide = limit > EXACT_SHARE * self.time_limit_s
        return self._bounded(allowed, regrets, began + limit)

    def _exact(self, allowed: Sequence[bool], regrets: bool, deadline: float) -> Found:
        found = Found()
        moves = EXACT_MOVES + EXACT_MOVES_PER_NODE * len(self.problem.nodes)
        self.space.explore(moves, deadline)
        passes = self._passes(allowed, deadline)
        least = passes.backward()
        found.passes = passes
        if least is None:
            return found
        found.least = found.bound = least
        found.cover = passes.best_cover()
        if regrets:
            passes.forward()
            found.through = passes.through
            self._base, self._repriced = passes, set()
            passes.forget()
        found.states = sum(map(len, passes.pasts)) + sum(map(len, passes.ends))
        return found

    def _passes(self, allowed: Sequence[bool], deadline: float) -> Passes:
        """Passes, from the latest ones if few candidates were priced anew since."""
        if self._base is not None and 4 * len(self._repriced) < len(self.space.set_of):
            return PassesAgain(
                self.space,
                self.weights,
                allowed,
                self._base,
                changed=sorted(self._repriced),
                limit=self.work,
                deadline=deadline,
            )
        return Passes(self.space, self.weights, allowed, limit=self.work, deadline=deadline)

    def _bounded(self, allowed: Sequence[bool], regrets: bool, deadline: float) -> Found:
        found = Found()
        result = Wide(self.space, self.weights, allowed, deadline).solve(regrets=regrets)
        found.least, found.cover = result.least, result.cover
        found.bound = result.bound if result.least is None else min(result.bound, result.least)
        found.through, found.floor = result.through, result.floor
        found.passes, found.cutoff = result.passes, result.cutoff
        found.states = result.states
        found.decided = result.least is not None or result.exhausted
        return found

    def to_us(self, amount: int) -> float:
        """An internal integer cost in microseconds."""
        return amount // self.weights.scale / 1e9

    def difference_us(self, one: int, other: int) -> float:
        """``one`` less ``other``, two internal integer costs, in microseconds."""
        scale = self.weights.scale
        return (one // scale - other // scale) / 1e9

    def stuck(self) -> tuple[int, ...]:
        """The first uncovered node where the search gets furthest without reaching the end."""
        space = self.space
        if space.ordered is None:
            return ()
        spots = [spot for spot in space.ordered if not any(space.moves(spot))]
        furthest = max(spots, key=lambda spot: spot.rank)
        if furthest.first == space.count:  # covered, were it not for impossible conversions
            return tuple(node.id for node in self.problem.nodes if self._converts(node.id))
        return (self.problem.nodes[space.order[furthest.first]].id,)

    def _converts(self, node: int) -> bool:
        """Whether candidates disagree on the format of this node's value."""
        forms = {c.gives.get(node, PLAIN) for c in self.problem.candidates if node in c.nodes}
        forms |= {c.takes[node] for c in self.problem.candidates if node in c.takes}
        return len(forms) > 1


def _brief(found: Found) -> Found:
    """Cost and cover alone."""
    brief = copy(found)
    brief.passes, brief.through, brief.floor = None, {}, {}
    return brief


def usable_costs(problem: Problem, optimistic: bool) -> tuple[list[int], list[float | None]]:
    """Candidates that may be chosen, and every candidate's cost (None: may not)."""
    costs: list[float | None] = []
    for candidate in problem.candidates:
        if candidate.state == "measured":
            costs.append(candidate.cost_us)
        elif candidate.state == "unknown" and optimistic:
            costs.append(candidate.lower_bound_us or 0.0)
        else:
            costs.append(None)
    return [index for index, cost in enumerate(costs) if cost is not None], costs
