"""Lower bounds that rest on an assumption: how long a group takes at least, from its parts.

What bytes and operations prove (:mod:`.bounds`) is far below what real kernels take. Much nearer
comes what a toolchain took for the same heavy operators alone, here and just now:

    **The assumption.** No toolchain runs a group of operators faster than ``SHARE`` of what its
    convolutions and matrix products took that toolchain alone, nor faster than ``NEAR_SHARE`` of
    what smaller groups within it let expect, nor than ``LIGHT`` of what any single operator of
    the group took.

Fusion saves traffic, not multiplications; alone, each operator was measured with its toolchain's
best kernel for that shape. What a call costs whatever is in it is left out of the comparison, it is
paid once. The assumption is held against every group that is measured: one that took less than
its parts together lowers what is expected of all groups with these operators, in proportion (then
the operators were timed in a slow moment, or the toolchain gains more by fusing than assumed), so
``SHARE`` is what a group may be faster still than the best one seen.

Left out are groups that the reasoning does not hold for: with operators that round to eight bits
(whole numbers are multiplied faster), and with operators that look at a part of a value only.

It is an assumption, no proof: whoever leaves a candidate unmeasured because of it has to say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.cost import Cost
from collage_engine.records.graph import GraphRecord

SHARE = 0.8
NEAR_SHARE = 0.9
LIGHT = 0.5
FLOOR_SHARE = 0.8
"""Of what a call on a single number took: that no call of the toolchain takes less."""
HEAVY = frozenset({"matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d"})
_OTHERWISE = """
    quantize dequantize strided_slice dynamic_strided_slice split take take_along_axis gather_nd
    gather_elements scatter_nd scatter_elements topk nn.dropout
"""
OTHERWISE = frozenset(_OTHERWISE.split())
"""Operators with which a group may take less than its parts: see above."""
CALL = "call:"
"""``call:<instance>`` in the transition constants: a call on a single number, in microseconds."""

ASSUMPTION = (
    f"assuming that no toolchain runs a group in less than {SHARE:.0%} of what its convolutions "
    "and matrix products took it alone (less still where a measured group did better), or "
    f"{NEAR_SHARE:.0%} of what smaller groups within it let expect"
)


@dataclass
class Shares:
    """What groups took as shares of what their heavy operators took alone."""

    least: dict[int, float] = field(default_factory=dict)
    """Heavy operator to the least share of any group with it, by any toolchain; absent: 1."""
    of: dict[int, float] = field(default_factory=dict)
    """Record (by place) to its share."""


class Parts:
    """What the operators of a graph took alone, and what groups of them took."""

    def __init__(
        self,
        graph: GraphRecord,
        records: Sequence[CandidateRecord],
        constants: Mapping[str, float] | None = None,
    ) -> None:
        calls = [node for node in graph.nodes if node.form == "call"]
        self.heavy = {k for k, node in enumerate(calls) if node.op in HEAVY}
        self.records = list(records)
        floors = constants or {}
        self.floor = {
            r.instance.id: FLOOR_SHARE * floors.get(CALL + r.instance.id, 0.0) for r in records
        }
        self.heavy_of = [tuple(n for n in r.nodes if n in self.heavy) for r in self.records]
        otherwise = {k for k, node in enumerate(calls) if node.op in OTHERWISE}
        self.within = self._nested()
        self.exempt = [not otherwise.isdisjoint(r.nodes) for r in self.records]

    def _nested(self) -> list[list[int]]:
        """Per group of several heavy operators the smaller such groups of the same instance that
        lie within it, by place."""
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

    def is_base(self, record: CandidateRecord) -> bool:
        """Whether bounds of others rest on its cost: a heavy operator alone."""
        return len(record.nodes) == 1 and record.nodes[0] in self.heavy

    def bounds(self, costs: Mapping[str, Cost]) -> list[float]:
        """Per record what it takes at least under the assumption, in microseconds; 0: unknown.

        ``costs``: measurement key to cost, of what is measured so far.
        """
        alone = self._alone(costs)
        shares = self._shares(costs, alone)
        return [
            self.floor[record.instance.id]
            if self.exempt[place] or len(record.nodes) == 1
            else self._bound(place, alone, shares)
            for place, record in enumerate(self.records)
        ]

    def _alone(self, costs: Mapping[str, Cost]) -> dict[tuple[str, int], float]:
        """(instance, operator) to microseconds alone."""
        found: dict[tuple[str, int], float] = {}
        for record in self.records:
            cost = costs.get(record.key)
            if len(record.nodes) == 1 and cost is not None and cost.usable:
                at = record.instance.id, record.nodes[0]
                # Of several formats the fastest: a group may keep to it inside.
                found[at] = min(found.get(at, math.inf), cost.median_us or 0.0)
        return found

    def _shares(self, costs: Mapping[str, Cost], alone: Mapping[tuple[str, int], float]) -> Shares:
        """What measured groups took, as shares of the time of their heavy operators alone."""
        found = Shares()
        for place, (record, heavy) in enumerate(zip(self.records, self.heavy_of, strict=True)):
            cost, exempt = costs.get(record.key), self.exempt[place]
            if len(record.nodes) < 2 or exempt or not heavy or cost is None or not cost.usable:
                continue
            instance = record.instance.id
            parts = sum(alone.get((instance, node), 0.0) for node in heavy)
            if parts <= 0:
                continue
            share = found.of[place] = (cost.low_us or cost.median_us or 0.0) / parts
            for node in heavy:
                if share < found.least.get(node, 1.0):
                    found.least[node] = share
        return found

    def _bound(
        self,
        place: int,
        alone: Mapping[tuple[str, int], float],
        shares: Shares,
    ) -> float:
        record, heavy = self.records[place], self.heavy_of[place]
        instance = record.instance.id
        near: dict[int, float] = {}
        for inner in self.within[place]:
            share = shares.of.get(inner)
            if share is not None:
                for node in self.heavy_of[inner]:
                    near[node] = min(near.get(node, math.inf), share)
        floor = self.floor[instance]
        together = 0.0
        for node in heavy:
            part = SHARE * shares.least.get(node, 1.0)
            if node in near:
                part = max(part, NEAR_SHARE * near[node])
            together += max(0.0, alone.get((instance, node), 0.0) * part - floor)
        longest = max(
            alone.get((instance, node), 0.0) * shares.least.get(node, 1.0) for node in record.nodes
        )
        return floor + max(together, LIGHT * (longest - floor))
