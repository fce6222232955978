"""Greedy partitioning, as users have it without Collage: the first toolchain that can, wins.

MergeComposite, AnnotateTarget and MergeCompilerRegions (TVM v0.18) for several toolchains in
the user's order; what no external toolchain takes goes to the last that can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.regions import merge_regions
from collage_engine.records.graph import OperatorNumber, OperatorSet, members

if TYPE_CHECKING:
    from collage_engine.partition.rules import CandidateSource

Composite = tuple[str, OperatorSet]
"""The name of a library call, and its operators."""


@dataclass(frozen=True)
class GreedyPartition:
    """One partition of the greedy cover."""

    source: CandidateSource
    operators: tuple[OperatorNumber, ...]
    composites: tuple[tuple[str, tuple[OperatorNumber, ...]], ...] = ()


@dataclass(frozen=True)
class GreedyCover:
    """A disjoint, acyclic cover, and the operators that nobody took."""

    partitions: tuple[GreedyPartition, ...]
    uncovered: tuple[OperatorNumber, ...]


def merge_composites(
    graph: DataflowGraph, source: CandidateSource, taken: OperatorSet
) -> list[Composite]:
    """Find composites of a source's patterns among operators that are not taken yet.

    As in MergeComposite, patterns are tried in the order of the table and roots from the output to
    the input. The first match claims its nodes; one whose inner nodes are read outside is rejected.

    Args:
        graph: The dataflow graph.
        source: The toolchain instance with its patterns.
        taken: The operators that are taken.
    """
    claimed = taken
    composites: list[Composite] = []
    if source.spec is None:
        return composites
    for rule in source.spec.patterns():
        for at_root in reversed(rule.matches(graph)):
            for match in at_root:
                operators = match.nodes
                if operators and not operators & claimed and graph.is_closed(operators, match.root):
                    claimed |= operators
                    composites.append((rule.name, operators))
                    break
    return composites


def greedy(graph: DataflowGraph, sources: Sequence[CandidateSource]) -> GreedyCover:
    """Return the greedy cover for sources in the user's order.

    External toolchains take all they can first, in that order; then native ones take the rest.

    Args:
        graph: The dataflow graph.
        sources: The toolchain instances with their rules.
    """
    owner: list[int | None] = [None] * len(graph)
    composites: list[tuple[int, Composite]] = []
    taken = 0
    order = [i for i, o in enumerate(sources) if not o.lowers_to_tir]
    order += [i for i, o in enumerate(sources) if o.lowers_to_tir]
    for rank in order:
        source = sources[rank]
        supported = source.taken(graph)
        kept = merge_composites(graph, source, taken)
        before = None
        while kept != before:  # composites of an atom that it cannot take as a whole go
            takes = supported & ~taken
            for _, operators in kept:
                takes |= operators
            takes = graph.whole_part(takes)
            before, kept = kept, [c for c in kept if not c[1] & ~takes]
        composites += [(rank, composite) for composite in kept]
        taken |= takes
        for operator in members(takes):
            owner[operator] = rank
    by_region: dict[int, list[tuple[str, tuple[OperatorNumber, ...]]]] = {}
    units = [bits for _, (_, bits) in composites]
    merged = merge_regions(graph, owner, units=units)
    home = {o: rank for rank, (_, bits) in enumerate(merged) for o in members(bits)}
    for _, (name, bits) in composites:
        nodes = tuple(members(bits))
        by_region.setdefault(home[nodes[0]], []).append((name, nodes))
    partitions: list[GreedyPartition] = []
    uncovered: list[OperatorNumber] = []
    for rank, (taker, operators) in enumerate(merged):
        if isinstance(taker, int):
            inside = tuple(sorted(by_region.get(rank, ()), key=lambda c: c[1]))
            partitions.append(GreedyPartition(sources[taker], tuple(members(operators)), inside))
        else:
            uncovered.extend(members(operators))
    return GreedyCover(tuple(partitions), tuple(uncovered))
