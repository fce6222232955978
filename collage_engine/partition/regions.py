"""Regions: the largest connected pieces a toolchain can take without making a cycle.

``merge_regions`` is MergeCompilerRegions (TVM v0.18, ``merge_compiler_regions.cc``): operators
are visited in topological order and join the regions of their inputs unless the merged region
would depend on itself through another one. Run against the flow it gives another partition;
``regions`` starts from both and lets every region grow until no supported neighbour can join.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence

from collage_engine.model.index_set import members
from collage_engine.partition.call_graph import CallGraph, OperatorSet


def merge_regions(
    calls: CallGraph, owner: Sequence[Hashable | None], *, backwards: bool = False
) -> list[tuple[Hashable | None, OperatorSet]]:
    """Disjoint regions of equally owned operators that together depend on each other acyclically.

    ``owner[o]`` is what operator ``o`` is assigned to; None, to nothing: such operators stay
    alone. Returns (owner, operators) by first operator.
    """
    order = range(calls.size - 1, -1, -1) if backwards else range(calls.size)
    sources = calls.users if backwards else calls.inputs
    region_of: dict[int, int] = {}
    content: dict[int, OperatorSet] = {}
    above: dict[int, int] = {}
    """Region → bit set of the regions it depends on, however far."""
    below: dict[int, int] = {}
    """The same backwards, so that a change above reaches what depends on it."""
    for operator in order:
        parents = {region_of[s] for s in sources[operator]}
        depends = 0
        for parent in parents:
            depends |= above[parent] | 1 << parent
        restricted = 0
        for parent in parents:
            restricted |= above[parent]
        # A region that another parent depends on cannot also come after this operator.
        joinable = [
            p
            for p in sorted(parents)
            if owner[operator] is not None
            and owner[_first(content[p])] == owner[operator]
            and not restricted >> p & 1
        ]
        if joinable:
            target = joinable[0]
            content[target] |= 1 << operator
        else:
            target = operator
            content[target] = 1 << operator
            above[target] = below[target] = 0
        region_of[operator] = target
        merged = 1 << target
        for other in joinable[1:]:
            merged |= 1 << other
            content[target] |= content.pop(other)
            for member in members(content[target]):
                region_of[member] = target
        up = depends & ~merged
        down = 0
        for region in members(merged):
            up |= above[region]
            down |= below[region]
        up, down = up & ~merged, down & ~merged
        for gone in members(merged & ~(1 << target)):
            del above[gone], below[gone]
        above[target], below[target] = up, down
        replace = merged
        for region in members(up):
            below[region] = below[region] & ~replace | 1 << target | down
        for region in members(down):
            above[region] = above[region] & ~replace | 1 << target | up
    found = [(owner[_first(bits)], bits) for bits in content.values()]
    return sorted(found, key=lambda r: r[1] & -r[1])


def _first(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def grow(calls: CallGraph, region: OperatorSet, supported: OperatorSet) -> OperatorSet:
    """The convex region with every supported neighbour added that can join without a cycle.

    Readers join in topological order, then producers in the reverse one, until none can: what
    cannot join then has an unsupported operator on a path between it and the region.
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
    """One pass of ``grow`` in one direction."""
    nexts = calls.users if forwards else calls.inputs
    # A reader may join when everything between the region and it is in the region: then all of
    # its own producers that the region reaches are. The reach of the region is kept as it grows.
    reach = calls.downstream if forwards else calls.upstream
    reached = 0
    for operator in members(region):
        reached |= reach[operator]
    sources = calls.inputs if forwards else calls.users
    sign = 1 if forwards else -1
    queue: list[int] = []
    queued: set[int] = set()

    def enqueue(operator: int) -> None:
        for other in nexts[operator]:
            if supported >> other & 1 and not region >> other & 1 and other not in queued:
                queued.add(other)
                heapq.heappush(queue, sign * other)

    for operator in members(region):
        enqueue(operator)
    while queue:
        operator = sign * heapq.heappop(queue)
        # A cycle needs a path region → s → operator with s outside the region.
        if any(reached >> s & 1 and not region >> s & 1 for s in sources[operator]):
            continue
        region |= 1 << operator
        reached |= reach[operator]
        enqueue(operator)
    return region


def regions(calls: CallGraph, supported: OperatorSet) -> list[OperatorSet]:
    """Maximal regions of the supported operators, found from both directions, each once.

    They may overlap: each is convex, connected, and no supported neighbour can join it.
    """
    owner: list[Hashable | None] = [True if supported >> o & 1 else None for o in range(calls.size)]
    found: dict[OperatorSet, None] = {}
    grown: list[OperatorSet] = []
    for backwards in (False, True):
        for own, region in merge_regions(calls, owner, backwards=backwards):
            if own is None:
                continue
            largest = grow(calls, region, supported)
            found.setdefault(largest, None)
            grown.append(largest)
    return sorted(found, key=lambda bits: (_first(bits), -bits.bit_count(), bits))


def supported_set(calls: CallGraph, supports: Callable[[int], str | None]) -> OperatorSet:
    """Operators (as numbers) whose node index a toolchain supports."""
    bits = 0
    for operator, index in enumerate(calls.graph.operators):
        if supports(index) is None:
            bits |= 1 << operator
    return bits
