"""Regions: connected pieces that a toolchain can take without making a cycle.

This is MergeCompilerRegions (TVM v0.18, ``merge_compiler_regions.cc``): operators are visited in
topological order and join the regions of their inputs unless the merged region would depend on
itself through another one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import (
    OperatorNumber,
    OperatorSet,
    first,
    members,
)


def merge_regions(
    graph: DataflowGraph,
    owner: Sequence[Hashable | None],
    *,
    units: Sequence[OperatorSet] = (),
) -> list[tuple[Hashable | None, OperatorSet]]:
    """Merge operators of equal owners into regions that depend on each other without a cycle.

    Atoms (``DataflowGraph.atoms``) stay together. A unit whose operators have different owners
    belongs to nothing.

    Args:
        graph: The dataflow graph.
        owner: What each operator is assigned to, by operator number; an operator that is assigned
            to nothing (None) stays alone.
        units: Sets (composites) whose operators stay together.

    Returns:
        The owner and the operators of each region, by first operator.
    """
    regions = _RegionGraph(len(graph))
    taker: dict[OperatorNumber, Hashable | None] = {}
    for unit in _unit_order(graph, units):
        operator = unit.bit_length() - 1
        sources = {s for o in members(unit) for s in graph.inputs[o] if not unit >> s & 1}
        parents = {regions.find(s) for s in sources}
        restricted = 0
        for parent in parents:
            restricted |= regions.above[parent]
        # A region that another parent depends on cannot also come after this operator.
        owners = {owner[o] for o in members(unit)}
        own = taker[operator] = owners.pop() if len(owners) == 1 else None
        joinable = [
            p
            for p in sorted(parents)
            if own is not None and not restricted >> p & 1 and taker[p] == own
        ]
        regions.add(operator, unit, parents, joinable)
    merged = [(taker[name], bits) for name, bits in regions.content.items()]
    return sorted(merged, key=lambda region: first(region[1]))


def _unit_order(graph: DataflowGraph, units: Sequence[OperatorSet]) -> list[OperatorSet]:
    """Return units, atoms, and operators that are in neither, each after all that it reads."""
    import networkx as nx  # takes 0.2 s to import

    whole = graph.whole(units)
    unit_of = {operator: unit for unit in whole for operator in members(unit)}
    order: nx.DiGraph[OperatorSet] = nx.DiGraph()
    order.add_nodes_from(whole)
    for unit in whole:
        read = {unit_of[s] for o in members(unit) for s in graph.inputs[o] if not unit >> s & 1}
        order.add_edges_from((source, unit) for source in read)
    return list(nx.lexicographical_topological_sort(order, key=int.bit_length))


class _RegionGraph:
    """Regions, named by one of their operators, and what each depends on, however far.

    A region that gains a dependency passes it on to the regions below it; these are few, since
    operators come in topological order and a region with much below it seldom gains any.
    """

    def __init__(self, size: int) -> None:
        self.parent = list(range(size))
        self.content: dict[OperatorNumber, OperatorSet] = {}
        self.above: dict[OperatorNumber, int] = {}
        self.below: dict[OperatorNumber, set[OperatorNumber]] = {}
        """Regions that read a region directly; names may be those of merged ones."""

    def find(self, operator: OperatorNumber) -> OperatorNumber:
        """Return the present name of the region that an operator belongs to."""
        while self.parent[operator] != operator:
            self.parent[operator] = self.parent[self.parent[operator]]
            operator = self.parent[operator]
        return operator

    def add(
        self,
        operator: OperatorNumber,
        unit: OperatorSet,
        parents: set[OperatorNumber],
        joined: Sequence[OperatorNumber],
    ) -> None:
        """Add a unit, in one region with those of its producers that it joins.

        Args:
            operator: The unit's last operator, which names it.
            unit: Its operators.
            parents: The regions that it reads.
            joined: Those of them that become one region with it.
        """
        for member in members(unit):
            self.parent[member] = operator
        self.content[operator] = unit
        self.above[operator] = 0
        self.below[operator] = set()
        target = joined[0] if joined else operator
        merged = 1 << target
        up = 0
        for parent in parents:
            up |= self.above[parent] | 1 << parent
        for region in {*joined, operator} - {target}:
            merged |= 1 << region
            self.parent[region] = target
            self.content[target] |= self.content.pop(region)
            self.below[target] |= self.below.pop(region)
            del self.above[region]
        up &= ~merged
        gained = up & ~self.above[target]
        self.above[target] = self.above[target] & ~merged | up
        for parent in parents.difference(joined):
            self.below[parent].add(target)
        if gained or len(joined) > 1:
            self._pass_on(target, merged)

    def _pass_on(self, region: OperatorNumber, merged: int) -> None:
        """Bring the dependencies of all regions below a region up to date.

        Args:
            region: The region, which has gained dependencies.
            merged: The names that it now stands for, as bits.
        """
        work = [region]
        while work:
            above = work.pop()
            inherited = self.above[above] | 1 << above
            for name in self.below[above]:
                lower = self.find(name)
                if lower == above:
                    continue
                updated = self.above[lower] & ~(merged & ~(1 << region)) | inherited
                if updated != self.above[lower]:
                    self.above[lower] = updated
                    work.append(lower)
