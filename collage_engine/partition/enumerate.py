"""Enumerates all candidates of all toolchain instances, once each, with their provenance.

Besides what the rules propose there are always: every supported operator
on its own (so that a cover exists), FuseOps groups for native toolchains, greedy partitions, and
the whole model on everything that can take it. Blocks come on top. Where a toolchain can take
images channels last, there is a candidate with its whole border so, too.

Every candidate is a convex set of *whole ONNX nodes*, whatever the rule that proposed it:
``_Collector.add`` completes the nodes that a proposal cuts through, and drops it where the
toolchain does not take the rest of them. What the rules themselves propose is not touched, and is
what TVM v0.18 proposes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.blocks import blocks
from collage_engine.partition.candidate import make_candidate
from collage_engine.partition.fuse_ops import fused_groups
from collage_engine.partition.greedy import GreedyCover, greedy
from collage_engine.partition.quantized import completed, find
from collage_engine.partition.rules import CandidateSource, Composites
from collage_engine.records.candidate import Candidate, Refusal
from collage_engine.records.format import Formats
from collage_engine.records.graph import (
    OperatorNumber,
    OperatorSet,
    first,
    members,
    operator_set,
)
from collage_engine.records.precision import PRODUCTS, is_reduced, short

__all__ = ["CandidateSource", "enumerate_candidates"]

BLOCK = "block"
"""The rule of candidates that only ``blocks`` proposes."""
NHWC_BLOCK = 12
"""Operators from which a block is a candidate in the plain format only. Channels last, groups of
any size cost the same (measured: ResNet-50 in one group or 57); what does gain as one is found by
merging."""


@dataclass
class _Found:
    """One set of operators that is a candidate of an instance."""

    rules: dict[str, None]
    composites: Composites


def why_not(graph: DataflowGraph, source: CandidateSource, index: OperatorNumber) -> Refusal:
    """Return why a source proposes no candidate for an operator.

    What it does not take of the operator's ONNX node is why it does not take the operator.

    Args:
        graph: The dataflow graph.
        source: The toolchain instance with its rules.
        index: The operator.
    """
    node = graph.atoms.get(index, 1 << index)
    for part in (index, *members(node)):
        refusal = source.refusal(graph, part)
        if refusal is not None:
            return refusal
    op = graph.nodes[index].op
    if is_reduced(source.instance) and op not in PRODUCTS:
        return Refusal("precision", op, short(source.instance.precision))
    return Refusal("alone", op)


def enumerate_candidates(
    graph: DataflowGraph, sources: Sequence[CandidateSource]
) -> tuple[Candidate, ...]:
    """Return the candidates of all sources, by instance and then by first operator.

    The result is deterministic, and has each set of operators once for each instance and format.

    Args:
        graph: The dataflow graph.
        sources: The toolchain instances with their rules, in the user's order.
    """
    groups = fused_groups(graph)
    pieces = completed(graph, blocks(graph, groups))
    covers = [greedy(graph, order) for order in _greedy_orders(sources)]
    records: list[Candidate] = []
    for source in sources:
        collector = _Collector(graph, source)
        collector.collect(groups, covers, pieces)
        records.extend(collector.records())
    return tuple(records)


def _greedy_orders(sources: Sequence[CandidateSource]) -> list[list[CandidateSource]]:
    """Return the orders of sources for which greedy covers are made.

    They are all sources in the user's order, the external ones first, and each external source with
    the native ones behind it.
    """
    native = [source for source in sources if source.lowers_to_tir]
    external = [source for source in sources if not source.lowers_to_tir]
    orders = [[*external, *native]] if sources else []
    if native:
        orders += [[source, *native] for source in external]
    return orders


class _Collector:
    """Gathers the candidates of one source."""

    def __init__(self, graph: DataflowGraph, source: CandidateSource) -> None:
        self.source = source
        self.graph = graph
        self.supported = source.taken(graph)
        self.worthwhile = _worthwhile(graph, source)
        """Only sets that hold one of these are candidates."""
        self.found: dict[OperatorSet, _Found] = {}

    def collect(
        self,
        groups: Iterable[OperatorSet],
        covers: Iterable[GreedyCover],
        pieces: Iterable[OperatorSet],
    ) -> None:
        """Add all that is proposed: by its rules, by what suits every toolchain, and the model.

        Args:
            groups: Groups of FuseOps, for native toolchains.
            covers: Greedy covers of several sources.
            pieces: Blocks, whose composites are whole.
        """
        graph, is_native = self.graph, self.source.lowers_to_tir
        self.rules()
        for operator in members(self.supported):
            self.add(1 << operator, "operator")
        for group in groups if is_native else ():
            self.add(group, "fuse-ops")
        for cover in (greedy(graph, [self.source]), *covers):
            for partition in cover.partitions:
                if partition.source is self.source:
                    self.add(operator_set(partition.operators), "greedy", partition.composites)
        # Blocks gain nothing over a native toolchain's groups, but between integer composites:
        # there images keep another layout.
        for piece in pieces if not is_native or find(graph) else ():
            self.add(piece, BLOCK)
        if self.source.whole_model and graph.everything == self.supported:
            self.add(graph.everything, "whole-model")

    def add(
        self,
        operators: OperatorSet,
        rule: str,
        composites: Composites = (),
    ) -> None:
        """Add a candidate, unless it is unsupported, not convex, or gains nothing on this instance.

        Args:
            operators: Its operators; the rest of their ONNX nodes is added.
            rule: The name of what proposes it.
            composites: Name and operators of every library call inside.
        """
        operators = self.graph.complete(operators)
        if not operators & self.worthwhile:
            return
        entry = self.found.get(operators)
        if entry is not None:
            entry.rules.setdefault(rule, None)
            if composites and (not entry.composites or len(composites) < len(entry.composites)):
                entry.composites = composites
            return
        if operators & ~self.supported or not self.graph.convex(operators):
            return
        if self.source.takes_set is not None and not self.source.takes_set(operators):
            return
        self.found[operators] = _Found({rule: None}, composites)

    def rules(self) -> None:
        """Add what the source's own rules propose."""
        spec = self.source.spec
        if spec is None:
            return
        with self.source.asking():
            candidates = spec.candidates(self.graph)
        for candidate in candidates:
            found = candidate.sub_graph
            calls = ((name, tuple(members(inside))) for name, inside in found.composites)
            composites = tuple(sorted(calls, key=lambda call: call[::-1]))
            self.add(found.inside, candidate.rule, composites)

    def records(self) -> list[Candidate]:
        """Return the candidates' records by first operator."""
        ordered = sorted(self.found.items(), key=lambda f: (first(f[0]), f[0].bit_count(), f[0]))
        return [
            make_candidate(
                self.graph,
                self.source.instance,
                tuple(members(operators)),
                rule=" | ".join(records.rules),
                composites=records.composites,
                device=self.source.device,
                takes=takes,
                gives=gives,
            )
            for operators, records in ordered
            for takes, gives in self.borders(operators, records)
        ]

    def borders(self, operators: OperatorSet, entry: _Found) -> Iterable[tuple[Formats, Formats]]:
        """Return the formats in which a set is a candidate: pairs of taken and given ones."""
        if set(entry.rules) == {BLOCK} and operators.bit_count() > NHWC_BLOCK:
            return [({}, {})]
        return self.source.borders(self.graph, tuple(members(operators)))


def _worthwhile(graph: DataflowGraph, source: CandidateSource) -> OperatorSet:
    """Return all operators; in reduced precision the products, which alone gain by it."""
    if not is_reduced(source.instance):
        return graph.everything
    return operator_set(node.index for node in graph.nodes if node.op in PRODUCTS)
