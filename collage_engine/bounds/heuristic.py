"""Lower bounds that rest on an assumption: how long a group takes at least, from its parts.

What bytes and operations prove (``bounds.certified``) is far below what real kernels take. Much
nearer comes what the same heavy operators took alone, here and just now:

    **The assumption.** No toolchain runs a group of operators in less than

    * ``FASTEST_SHARE`` of what its convolutions and matrix products take alone, each on whichever
      toolchain is fastest at it;
    * ``OWN_SHARE`` of what they took that toolchain itself alone;
    * ``MEASURED_SHARE_FACTOR`` of the least such share of any group of that toolchain, once
      ``GROUPS_TO_LEARN_FROM`` of them are measured;
    * ``SMALLER_GROUPS_SHARE`` of what smaller groups within it let expect;
    * ``SINGLE_OPERATOR_SHARE`` of what any single operator in it took that toolchain.

Fusion saves traffic, not multiplications; alone, each operator was measured with its toolchain's
best kernel for that shape. What a call costs whatever is in it is left out of the comparison, it is
paid once.

The assumption is held against every group that is measured, in two steps. Times alone may have
been taken in a slow moment: a group that took less than the fastest times of its operators
together lowers those of all its operators, for all toolchains, in proportion. What is left is how
much that toolchain gains by fusing: a group that took less than its own parts lowers what is
expected of all groups of that toolchain with these operators. So ``OWN_SHARE`` is what a group may
be faster still than the best one seen.

Left out are groups that the reasoning does not hold for: with operators that round to eight bits
(whole numbers are multiplied faster), and with operators that look at a part of a value only.

It is an assumption, no proof: whoever leaves a candidate unmeasured because of it has to say so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import Cost
from collage_engine.records.graph import GraphRecord

FASTEST_SHARE = 0.9
"""Share of what its heavy operators take alone, each at its fastest, that a group takes at least.
Chosen; like the other shares below it is checked against every group that a run measures."""
OWN_SHARE = 0.8
"""The same share, of what the operators took the group's own toolchain. Chosen."""
MEASURED_SHARE_FACTOR = 0.9
"""How much less than the least measured share of a toolchain's groups another one may take.
Chosen."""
GROUPS_TO_LEARN_FROM = 5
"""Measured groups of a toolchain from which its least share is used. Chosen."""
SMALLER_GROUPS_SHARE = 0.9
"""Share that a group takes of what smaller groups within it let expect. Chosen."""
SINGLE_OPERATOR_SHARE = 0.5
"""Share that a group takes of what any single operator in it took its toolchain. Chosen."""
LEAST_US = 0.01
"""Microseconds that a group takes besides its call, so that no bound is zero. Chosen."""
FLOOR_SHARE = 0.8
"""Share of the time of a call on a single number that every call of the toolchain takes. Chosen."""
HEAVY_OPERATORS = frozenset({"matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d"})
"""Operators whose multiplications no fusion saves."""
_EXEMPT = """
    quantize dequantize strided_slice dynamic_strided_slice split take take_along_axis gather_nd
    gather_elements scatter_nd scatter_elements topk nn.dropout
"""
EXEMPT_OPERATORS = frozenset(_EXEMPT.split())
"""Operators with which a group may take less than its parts: see above."""
CALL = "call:"
"""``call:<instance>`` in the transition constants: a call on a single number, in microseconds."""

ASSUMPTION = (
    f"assuming that no toolchain runs a group in less than {100 * FASTEST_SHARE:.0f} % of what its "
    "convolutions and matrix products take the fastest toolchain in isolation, or "
    f"{100 * OWN_SHARE:.0f} % of what they "
    "took it in isolation (less still where a measured group did better)"
)
PROVEN = "a certified bound excludes it, by bytes and operations"
ASSUMED = f"a heuristic bound excludes it, {ASSUMPTION}"
"""Reasons of costs that are unknown."""


@dataclass(frozen=True, slots=True)
class IsolatedTimes:
    """What heavy operators take in isolation, without the call, in microseconds."""

    own: dict[tuple[str, int], float]
    """Microseconds by instance id and operator number."""
    best: dict[int, float]
    """Microseconds of whichever toolchain is fastest, by operator number."""

    def of(self, instance: str, heavy: Iterable[int]) -> float | None:
        """Return an instance's time for these together; None where one is not measured."""
        parts = [self.own.get((instance, node)) for node in heavy]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None


@dataclass(slots=True)
class Shares:
    """What groups took, as shares of what the toolchain took for their heavy operators alone."""

    least: dict[tuple[str, int], float] = field(default_factory=dict)
    """The least share of any group with a heavy operator, by instance and operator; absent: 1."""
    of: dict[int, float] = field(default_factory=dict)
    """The share of a record, by its place."""
    lowest: dict[str, float] = field(default_factory=dict)
    """The least share of all groups of an instance; absent: too few are measured."""


class Parts:
    """What the operators of a graph took in isolation, and what groups of them took."""

    def __init__(
        self,
        graph: GraphRecord,
        records: Sequence[Candidate],
        constants: Mapping[str, float] | None = None,
    ) -> None:
        calls = [node for node in graph.nodes if node.form == "call"]
        self.heavy = {k for k, node in enumerate(calls) if node.op in HEAVY_OPERATORS}
        self.records = list(records)
        floors = constants or {}
        self.floor = {
            r.instance.id: FLOOR_SHARE * floors.get(CALL + r.instance.id, 0.0) for r in records
        }
        self.heavy_of = [tuple(n for n in r.nodes if n in self.heavy) for r in self.records]
        otherwise = {k for k, node in enumerate(calls) if node.op in EXEMPT_OPERATORS}
        self.within = self._nested()
        self.exempt = [not otherwise.isdisjoint(r.nodes) for r in self.records]

    def _nested(self) -> list[list[int]]:
        """Return, for each record, the smaller groups within it, by their places.

        Only groups of several heavy operators of the same instance count.
        """
        by_instance: dict[str, list[tuple[int, int]]] = {}
        for place, record in enumerate(self.records):
            if len(self.heavy_of[place]) > 1:
                bits = sum(1 << node for node in record.nodes)
                by_instance.setdefault(record.instance.id, []).append((bits, place))
        found: list[list[int]] = [[] for _ in self.records]
        for groups in by_instance.values():
            for bits, place in groups:
                found[place] = [p for inner, p in groups if inner & ~bits == 0 and inner != bits]
        return found

    def is_base(self, record: Candidate) -> bool:
        """Tell whether bounds of others rest on its cost: a heavy operator alone."""
        return len(record.nodes) == 1 and record.nodes[0] in self.heavy

    def bounds(self, costs: Mapping[str, Cost]) -> list[float]:
        """Return the lower bound of each record under the assumption, in microseconds.

        A bound of 0 means that nothing is known.

        Args:
            costs: What is measured so far, by measurement key.
        """
        single = self._single(costs)
        groups = self._groups(costs)
        alone = self._alone(single, groups)
        shares = self._shares(alone, groups)
        return [
            self.floor[record.instance.id]
            if self.exempt[place] or len(record.nodes) == 1
            else self._bound(place, single, alone, shares)
            for place, record in enumerate(self.records)
        ]

    def _single(self, costs: Mapping[str, Cost]) -> dict[tuple[str, int], float]:
        """Return what operators took in isolation, without the call, in microseconds.

        Args:
            costs: What is measured so far, by measurement key.

        Returns:
            The microseconds by instance id and operator number.
        """
        found: dict[tuple[str, int], float] = {}
        for record in self.records:
            cost = costs.get(record.key)
            if len(record.nodes) == 1 and cost is not None and cost.usable:
                at = record.instance.id, record.nodes[0]
                us = max(0.0, (cost.median_us or 0.0) - self.floor[record.instance.id])
                # Of several formats the fastest: a group may keep to it inside.
                found[at] = min(found.get(at, math.inf), us)
        return found

    def _groups(self, costs: Mapping[str, Cost]) -> list[tuple[int, float]]:
        """Return the measured groups that can be held against the assumption.

        Each is the place of its record, and its microseconds without the call.
        """
        found = []
        for place, (record, heavy) in enumerate(zip(self.records, self.heavy_of, strict=True)):
            cost = costs.get(record.key)
            if len(record.nodes) < 2 or self.exempt[place] or not heavy:
                continue
            if cost is not None and cost.usable:
                us = (cost.low_us or cost.median_us or 0.0) - self.floor[record.instance.id]
                found.append((place, max(LEAST_US, us)))
        return found

    def _alone(
        self, single: Mapping[tuple[str, int], float], groups: Sequence[tuple[int, float]]
    ) -> IsolatedTimes:
        """Return times alone, less where a group shows that they were taken in a slow moment."""
        own = {at: us for at, us in single.items() if at[1] in self.heavy}
        best: dict[int, float] = {}
        for (_, node), us in own.items():
            best[node] = min(best.get(node, math.inf), us)
        slow: dict[int, float] = {}
        for place, us in groups:
            heavy = self.heavy_of[place]
            together = sum(best.get(node, 0.0) for node in heavy)
            for node in heavy if us < together else ():
                slow[node] = min(slow.get(node, 1.0), us / together)
        return IsolatedTimes(
            own={at: us * slow.get(at[1], 1.0) for at, us in own.items()},
            best={node: us * slow.get(node, 1.0) for node, us in best.items()},
        )

    def _shares(self, alone: IsolatedTimes, groups: Sequence[tuple[int, float]]) -> Shares:
        """Return what measured groups took, as shares of what their heavy operators took alone."""
        found = Shares()
        seen: dict[str, set[float]] = {}
        for place, us in groups:
            heavy, instance = self.heavy_of[place], self.records[place].instance.id
            parts = alone.of(instance, heavy)
            if not parts:
                continue
            share = found.of[place] = us / parts
            seen.setdefault(instance, set()).add(share)  # one of equal work
            for node in heavy:
                if share < found.least.get((instance, node), 1.0):
                    found.least[instance, node] = share
        found.lowest = {
            name: min(some) for name, some in seen.items() if len(some) >= GROUPS_TO_LEARN_FROM
        }
        return found

    def _bound(
        self,
        place: int,
        single: Mapping[tuple[str, int], float],
        alone: IsolatedTimes,
        shares: Shares,
    ) -> float:
        """Return the lower bound of the group at a place, in microseconds."""
        record, heavy = self.records[place], self.heavy_of[place]
        instance = record.instance.id
        near: dict[int, float] = {}
        for inner in self.within[place]:
            share = shares.of.get(inner)
            if share is not None:
                for node in self.heavy_of[inner]:
                    near[node] = min(near.get(node, math.inf), share)
        usual = MEASURED_SHARE_FACTOR * min(1.0, shares.lowest.get(instance, 0.0))
        own = 0.0
        for node in heavy:
            part = max(usual, OWN_SHARE * shares.least.get((instance, node), 1.0))
            if node in near:
                part = max(part, SMALLER_GROUPS_SHARE * near[node])
            own += alone.own.get((instance, node), 0.0) * part
        best = FASTEST_SHARE * sum(alone.best.get(node, 0.0) for node in heavy)
        longest = max(
            alone.own.get((instance, node), single.get((instance, node), 0.0))
            * shares.least.get((instance, node), 1.0)
            for node in record.nodes
        )
        return self.floor[instance] + max(own, best, SINGLE_OPERATOR_SHARE * longest)
