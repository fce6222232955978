"""Searching a problem, and searching it again: what does not change is kept.

A :class:`Search` owns the state space of a problem. Pins and costs come and go; as long as the
nodes and the usable candidates' node sets stay, the space does too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.search.pins import forbidden_by
from collage_engine.search.shortest_path import Passes
from collage_engine.search.space import Space
from collage_engine.search.weights import Weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from collage_engine.search.problem import Problem, ProblemPin


class Search:
    """The state space of a problem, for any pins."""

    def __init__(
        self,
        problem: Problem,
        *,
        optimistic: bool = False,
        limit: int | None = None,
    ) -> None:
        """``optimistic``: unknown candidates count, at their lower bounds (0 without one)."""
        self.problem = problem
        self.optimistic = optimistic
        self.limit = limit
        costs: list[float | None] = []
        for candidate in problem.candidates:
            if candidate.state == "measured":
                costs.append(candidate.cost_us)
            elif candidate.state == "unknown" and optimistic:
                costs.append(candidate.lower_bound_us or 0.0)
            else:
                costs.append(None)
        self.usable = [index for index, cost in enumerate(costs) if cost is not None]
        self.space = Space(problem, self.usable)
        self.weights = Weights(problem, self.space, costs)
        self._forbidden: dict[ProblemPin, list[int]] = {}

    def forbidden(self, pin: ProblemPin) -> list[int]:
        found = self._forbidden.get(pin)
        if found is None:
            found = self._forbidden[pin] = forbidden_by(self.problem, pin)
        return found

    def allowed(self, pins: Iterable[ProblemPin]) -> list[bool]:
        """Per candidate whether it is usable under these pins."""
        allowed = [False] * len(self.problem.candidates)
        for index in self.usable:
            allowed[index] = True
        for pin in pins:
            for index in self.forbidden(pin):
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

    def passes(self, pins: Iterable[ProblemPin]) -> Passes:
        return Passes(self.space, self.weights, self.allowed(pins), limit=self.limit)

    def cost(self, pins: Iterable[ProblemPin]) -> int | None:
        """Least cost under the pins as an internal integer; None when there is no cover."""
        allowed = self.allowed(pins)
        if self.uncovered(allowed):
            return None
        return Passes(self.space, self.weights, allowed, limit=self.limit).backward()

    def to_us(self, amount: int) -> float:
        """An internal integer cost, or difference of two of them floored, in microseconds."""
        return amount // self.weights.scale / 1e9

    def stuck(self) -> tuple[int, ...]:
        """The first uncovered node wherever the search gets furthest without reaching the end."""
        space = self.space
        spots = [s for s in space.explore(self.limit) if not any(space.moves(s))]
        furthest = max(spots, key=lambda spot: spot.rank)
        if furthest.first == space.count:  # a cover but for impossible conversions
            return tuple(node.id for node in self.problem.nodes if self._converts(node.id))
        return (self.problem.nodes[space.order[furthest.first]].id,)

    def _converts(self, node: int) -> bool:
        """Whether candidates disagree on the format of this node's value."""
        forms = {c.gives.get(node, "plain") for c in self.problem.candidates if node in c.nodes}
        forms |= {c.takes[node] for c in self.problem.candidates if node in c.takes}
        return len(forms) > 1
