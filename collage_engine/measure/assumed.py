"""Lower bounds that rest on an assumption: how long a group takes at least, from its parts.

What bytes and operations prove (:mod:`.bounds`) is far below what real kernels take. Much nearer
comes what a toolchain took for the same heavy operators alone, here and just now:

    **The assumption.** No toolchain runs a group of operators faster than ``SHARE`` of what its
    convolutions and matrix products took that toolchain alone, nor than ``LIGHT`` of what any
    single operator of the group did.

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
from collections.abc import Iterable, Mapping, Sequence

from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.cost import Cost
from collage_engine.records.graph import GraphRecord

SHARE = 0.8
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
    "and matrix products took it alone (less still where a measured group did better)"
)


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
        self.exempt = [not otherwise.isdisjoint(r.nodes) for r in self.records]

    def is_base(self, record: CandidateRecord) -> bool:
        """Whether bounds of others rest on its cost: a heavy operator alone."""
        return len(record.nodes) == 1 and record.nodes[0] in self.heavy

    def bounds(self, costs: Mapping[str, Cost]) -> list[float]:
        """Per record what it takes at least under the assumption, in microseconds; 0: unknown.

        ``costs``: measurement key to cost, of what is measured so far.
        """
        alone = self._alone(costs)
        trust = self._trust(costs, alone)
        return [
            self.floor[record.instance.id] if exempt else self._bound(record, heavy, alone, trust)
            for record, heavy, exempt in zip(self.records, self.heavy_of, self.exempt, strict=True)
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

    def _trust(
        self, costs: Mapping[str, Cost], alone: Mapping[tuple[str, int], float]
    ) -> dict[int, float]:
        """Heavy operator to the least share of its parts' time that a measured group with it
        took, by any toolchain; absent: none took less."""
        found: dict[int, float] = {}
        for record, heavy, exempt in zip(self.records, self.heavy_of, self.exempt, strict=True):
            cost = costs.get(record.key)
            if len(record.nodes) < 2 or exempt or not heavy or cost is None or not cost.usable:
                continue
            instance = record.instance.id
            parts = sum(alone.get((instance, node), 0.0) for node in heavy)
            if parts <= 0:
                continue
            share = (cost.median_us or 0.0) / parts
            for node in heavy:
                if share < found.get(node, 1.0):
                    found[node] = share
        return found

    def _bound(
        self,
        record: CandidateRecord,
        heavy: Iterable[int],
        alone: Mapping[tuple[str, int], float],
        trust: Mapping[int, float],
    ) -> float:
        instance = record.instance.id
        floor = self.floor[instance]
        if len(record.nodes) == 1:
            return floor

        def beyond(node: int) -> float:
            """What the operator alone took besides the call itself."""
            return max(0.0, alone.get((instance, node), 0.0) * trust.get(node, 1.0) - floor)

        together = SHARE * sum(beyond(node) for node in heavy)
        longest = LIGHT * max(beyond(node) for node in record.nodes)
        return floor + max(together, longest)
