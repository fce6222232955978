"""Anchor rules, which upstream only wished for (``partition_rule.h``: "we'd like to").

Vertical: an anchor (convolution, matrix product) with its whole epilogue, also across residual
additions. Horizontal: anchors of one kind that read one value, such as the query, key and value
projections of attention, as one candidate with several exits, bare or with their epilogues.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from collage_engine.model.index_set import NO_OPERATORS, one_operator
from collage_engine.partition.call_graph import CallGraph, call_graph
from collage_engine.partition.candidate import CandidatePartition
from collage_engine.partition.matching import describe
from collage_engine.partition.rules import Explanation, PartitionRule, Scope
from collage_engine.records.graph import KIND_ORDER, Node, OpKind
from collage_engine.records.numbering import NodeIndex, OperatorNumber, OperatorSet

VERTICAL: OpKind = "broadcast"
"""The greatest kind that the epilogue of one anchor may hold."""
HORIZONTAL: OpKind = "injective"
"""The greatest kind in the epilogues that anchors on one input take along."""
MOST_IN_EPILOGUE = 32
"""Operators of an anchor with its epilogue, at most; chosen."""
MOST_SIBLINGS = 8
"""Anchors on one input at most; chosen."""


def epilogues(
    calls: CallGraph, anchor: OperatorNumber, most: OpKind = VERTICAL
) -> list[OperatorSet]:
    """Return growing sets, from the bare anchor to the anchor with its whole epilogue.

    Readers of at most a given kind join in topological order as long as the set stays convex. A set
    is kept where only one operator's value leaves it.

    Args:
        calls: The operators and what they pass to each other.
        anchor: The anchor's operator number.
        most: The greatest kind that an epilogue may hold.
    """
    graph = calls.graph
    region = one_operator(anchor)
    found = [region]
    reached = calls.downstream[anchor]
    queue = sorted(calls.users[anchor])
    while queue and region.bit_count() < MOST_IN_EPILOGUE:
        operator = queue.pop(0)
        if region >> operator & 1:
            continue
        node = graph.nodes[graph.operators[operator]]
        if KIND_ORDER[node.kind] > KIND_ORDER[most]:
            continue
        outside = (s for s in calls.inputs[operator] if not region >> s & 1)
        if any(reached >> s & 1 for s in outside):
            continue
        region |= one_operator(operator)
        reached |= calls.downstream[operator]
        queue = sorted({*queue, *calls.users[operator]})
        if len(calls.exits(region)) == 1:
            found.append(region)
    return found


@dataclass(frozen=True)
class VerticalRule(PartitionRule):
    """Proposes every anchor alone and with growing parts of its epilogue."""

    name: str = "vertical"

    def candidates(self, scope: Scope) -> list[CandidatePartition]:
        """Return each anchor alone and with ever longer parts of its epilogue."""
        calls = call_graph(scope.graph)
        return [
            scope.candidate(calls.to_nodes(part), self.name)
            for operator in _anchors(calls)
            for part in epilogues(calls, operator)
        ]

    def why_not(self, scope: Scope, index: NodeIndex) -> Explanation | None:
        """Say that a node is in no anchor's epilogue, unless it is."""
        if any(c.sub_graph.inside >> index & 1 for c in self.candidates(scope)):
            return None
        return Explanation(1, f"{describe(scope.graph, index)} is in no anchor's epilogue")


@dataclass(frozen=True)
class HorizontalRule(PartitionRule):
    """Joins anchors of one kind on one input value: all of them, and every two.

    They must have the same operator and attributes, and read the value as the same argument.
    """

    name: str = "horizontal"

    def candidates(self, scope: Scope) -> list[CandidatePartition]:
        """Return all siblings of a group, and every two, with epilogues of equal length."""
        calls = call_graph(scope.graph)
        found: dict[OperatorSet, None] = {}
        for siblings in self._groups(calls):
            sets = [siblings, *combinations(siblings, 2)] if len(siblings) > 2 else [siblings]
            for chosen in sets:
                for union in self._unions(calls, chosen):
                    found.setdefault(union, None)
        return [scope.candidate(calls.to_nodes(union), self.name) for union in found]

    def _groups(self, calls: CallGraph) -> Iterator[tuple[OperatorNumber, ...]]:
        """Yield the anchors that read the same value in the same way, two or more of them."""
        graph = calls.graph
        groups: dict[tuple[int, int, str], list[OperatorNumber]] = {}
        for operator in _anchors(calls):
            node = graph.nodes[graph.operators[operator]]
            for position, source in enumerate(node.inputs):
                if graph.nodes[source].form in ("call", "projection", "parameter"):
                    key = (source, position, _sameness(node))
                    groups.setdefault(key, []).append(operator)
        for siblings in groups.values():
            if 2 <= len(siblings) <= MOST_SIBLINGS:
                yield tuple(siblings)

    def _unions(
        self, calls: CallGraph, siblings: tuple[OperatorNumber, ...]
    ) -> Iterator[OperatorSet]:
        """Yield anchors together: bare, then with epilogues of equal length, then whole ones."""
        parts = [epilogues(calls, s, HORIZONTAL) for s in siblings]
        longest = max(map(len, parts))
        for length in range(longest):
            union = NO_OPERATORS
            for part in parts:
                union |= part[min(length, len(part) - 1)]
            if calls.convex(union):
                yield union

    def why_not(self, scope: Scope, index: NodeIndex) -> Explanation | None:
        """Say that a node has no sibling anchor, unless it has."""
        if any(c.sub_graph.inside >> index & 1 for c in self.candidates(scope)):
            return None
        what = describe(scope.graph, index)
        return Explanation(1, f"{what} has no sibling anchor on one input")


def _anchors(calls: CallGraph) -> Iterator[OperatorNumber]:
    for index, operator in calls.graph.operator_number.items():
        if calls.graph.nodes[index].kind == "anchor":
            yield operator


def _sameness(node: Node) -> str:
    """Return what siblings must share: operator, attributes, number of inputs, element type."""
    attributes = json.dumps(node.attributes, sort_keys=True, default=str)
    return f"{node.op}/{len(node.inputs)}/{node.types[0].dtype if node.types else ''}/{attributes}"
