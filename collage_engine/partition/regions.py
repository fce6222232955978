"""Regions: the largest connected pieces a toolchain can take without making a cycle.

``merge_regions`` is MergeCompilerRegions (TVM v0.18, ``merge_compiler_regions.cc``): operators
are visited in topological order and join the regions of their inputs unless the merged region
would depend on itself through another one. Run against the flow it gives another partition;
``regions`` starts from both and lets every region grow until no supported neighbour can join.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence

from collage_engine.model.index_set import NO_OPERATORS, first, members, one_operator, operator_set
from collage_engine.partition.call_graph import CallGraph
from collage_engine.records.numbering import NodeIndex, OperatorNumber, OperatorSet


def merge_regions(
    calls: CallGraph,
    owner: Sequence[Hashable | None],
    *,
    backwards: bool = False,
    units: Sequence[OperatorSet] = (),
) -> list[tuple[Hashable | None, OperatorSet]]:
    """Merge operators of equal owners into regions that depend on each other without a cycle.

    Atoms (``CallGraph.atoms``) stay together. A unit whose operators have different owners belongs
    to nothing.

    Args:
        calls: The operators and what they pass to each other.
        owner: What each operator is assigned to, by operator number; an operator that is assigned
            to nothing (None) stays alone.
        backwards: Whether operators are visited against the flow, which gives other regions.
        units: Sets (composites) whose operators stay together.

    Returns:
        The owner and the operators of each region, by first operator.
    """
    order = _unit_order(calls, units)
    regions = _RegionGraph(calls.size)
    taker: dict[OperatorNumber, Hashable | None] = {}
    edges = calls.users if backwards else calls.inputs
    for unit in reversed(order) if backwards else order:
        operator = OperatorNumber(unit.bit_length() - 1)
        sources = {s for o in members(unit) for s in edges[o] if not unit >> s & 1}
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
    found = [(taker[name], bits) for name, bits in regions.content.items()]
    return sorted(found, key=lambda region: first(region[1]))


def _unit_order(calls: CallGraph, units: Sequence[OperatorSet]) -> list[OperatorSet]:
    """Return units, atoms, and operators that are in neither, each after all that it reads."""
    whole = calls.whole(units)
    unit_of = {operator: unit for unit in whole for operator in members(unit)}
    waiting: dict[OperatorSet, int] = {}
    readers: dict[OperatorSet, list[OperatorSet]] = {}
    for unit in whole:
        sources = {unit_of[s] for o in members(unit) for s in calls.inputs[o] if not unit >> s & 1}
        waiting[unit] = len(sources)
        for source in sources:
            readers.setdefault(source, []).append(unit)
    ready = [(unit.bit_length(), unit) for unit, count in waiting.items() if not count]
    heapq.heapify(ready)
    order: list[OperatorSet] = []
    while ready:
        _, unit = heapq.heappop(ready)
        order.append(unit)
        for reader in readers.get(unit, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (reader.bit_length(), reader))
    return order


class _RegionGraph:
    """Regions, named by one of their operators, and what each depends on, however far.

    A region that gains a dependency passes it on to the regions below it; these are few, since
    operators come in topological order and a region with much below it seldom gains any.
    """

    def __init__(self, size: int) -> None:
        self.parent = [OperatorNumber(operator) for operator in range(size)]
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


def grow(calls: CallGraph, region: OperatorSet, supported: OperatorSet) -> OperatorSet:
    """Return a region with all neighbours that can join it, none of which closes a cycle.

    Readers join in topological order, then producers in the reverse one, until none can: what
    cannot join then has an unsupported operator on a path between it and the region.

    Args:
        calls: The operators and what they pass to each other.
        region: A convex set.
        supported: The operators that may join.
    """
    while True:
        before = region
        region = _sweep(calls, region, supported, forwards=True)
        region = _sweep(calls, region, supported, forwards=False)
        if region == before:
            return region


def _sweep(
    calls: CallGraph, region: OperatorSet, supported: OperatorSet, *, forwards: bool
) -> OperatorSet:
    """Return one pass of ``grow`` in one direction."""
    nexts = calls.users if forwards else calls.inputs
    # A reader may join when everything between the region and it is in the region: then all of
    # its own producers that the region reaches are. The reach of the region is kept as it grows.
    reach = calls.downstream if forwards else calls.upstream
    reached = NO_OPERATORS
    for operator in members(region):
        reached |= reach[operator]
    sources = calls.inputs if forwards else calls.users
    sign = 1 if forwards else -1
    queue: list[int] = []
    queued: set[OperatorNumber] = set()

    def enqueue(operator: OperatorNumber) -> None:
        for other in nexts[operator]:
            if supported >> other & 1 and not region >> other & 1 and other not in queued:
                queued.add(other)
                heapq.heappush(queue, sign * other)

    for operator in members(region):
        enqueue(operator)
    while queue:
        operator = OperatorNumber(sign * heapq.heappop(queue))
        if region >> operator & 1:
            continue
        joining = calls.atoms.get(operator, NO_OPERATORS)
        if joining:
            if joining & ~supported or not calls.convex(region | joining):
                continue
        else:
            # A cycle needs a path region → s → operator with s outside the region.
            if any(reached >> s & 1 and not region >> s & 1 for s in sources[operator]):
                continue
            joining = one_operator(operator)
        for joined in members(joining & ~region):
            region |= one_operator(joined)
            reached |= reach[joined]
            enqueue(joined)
    return region


def regions(calls: CallGraph, supported: OperatorSet) -> list[OperatorSet]:
    """Return maximal regions of supported operators, found from both directions, each once.

    They may overlap: each is convex, connected, and no supported neighbour can join it.
    Operators of an atom (``CallGraph.atoms``) join together or not at all.
    """
    supported = calls.whole_part(supported)
    owner: list[Hashable | None] = [
        True if supported >> o & 1 else None for o in members(calls.everything)
    ]
    found: dict[OperatorSet, None] = {}
    for backwards in (False, True):
        for own, region in merge_regions(calls, owner, backwards=backwards):
            if own is None:
                continue
            found.setdefault(grow(calls, region, supported), None)
    return sorted(found, key=lambda bits: (first(bits), -bits.bit_count(), bits))


def supported_set(calls: CallGraph, refusal: Callable[[NodeIndex], object]) -> OperatorSet:
    """Return the operators (as numbers) for whose node index there is no refusal."""
    number = calls.graph.operator_number
    return operator_set(number[index] for index in calls.graph.operators if refusal(index) is None)
