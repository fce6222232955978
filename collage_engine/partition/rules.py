"""Partition rules: where candidates come from (RFC 0062, section "Partition rules").

A toolchain's rules are library calls by patterns and operators by themselves, joined as FuseOps
joins them or not (TVM v0.18 ``gather_partition_specs.cc``, and beyond).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.formats import channels_last_border, host_border
from collage_engine.partition.combiners import MOST_DEPTH, combine
from collage_engine.partition.patterns import Match, Pattern, all_matches
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.candidate import Refusal
from collage_engine.records.format import NHWC, PLAIN, Formats
from collage_engine.records.graph import (
    OperatorNumber,
    OperatorSet,
    operator_set,
)
from collage_engine.records.toolchain import ToolchainInstance

Predicate = Callable[[DataflowGraph, Match], str | None]
"""A further check of a match: returns None when it holds, else the reason."""

PatternEntry = tuple[str, Pattern] | tuple[str, Pattern, Predicate | None]
"""(composite name, pattern, further check of a match)."""


@dataclass(frozen=True)
class CandidatePartition:
    """A sub-graph that a rule found, with the rule's name, for example ``tvm.combine``."""

    sub_graph: SubGraph
    rule: str


@dataclass(frozen=True)
class PatternRule:
    """Finds the matches of a pattern at any root, each one library call; they may overlap.

    All matches at a root that differ in their operators are found, for example with either operand
    of an addition as the convolution.
    """

    name: str
    pattern: Pattern
    predicate: Predicate | None = None

    _known: dict[int, tuple[DataflowGraph, list[list[Match]]]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """Matches in the graphs seen so far: candidates and greedy covers ask for the same ones."""

    def matches(self, graph: DataflowGraph) -> list[list[Match]]:
        """Return, for every operator as a root, the matches there that the predicate accepts."""
        known = self._known.get(id(graph))
        if known is None:
            ops = self.pattern.root_ops
            roots = [
                self._matches_at(graph, node.index) if ops is None or node.op in ops else []
                for node in graph.nodes
            ]
            known = self._known[id(graph)] = (graph, roots)
        return known[1]

    def _matches_at(self, graph: DataflowGraph, root: OperatorNumber) -> list[Match]:
        return [
            match
            for match in all_matches(graph, self.pattern, root)
            if self.predicate is None or self.predicate(graph, match) is None
        ]

    def calls(self, graph: DataflowGraph) -> list[SubGraph]:
        """Return each match as one library call, in the order of the roots."""
        return [
            SubGraph(graph, match.nodes, ((self.name, match.nodes),))
            for at_root in self.matches(graph)
            for match in at_root
        ]


@dataclass(frozen=True)
class PartitionRule:
    """Proposes the composites of a pattern table and operators by themselves, joined or not."""

    name: str
    """Goes into the candidates' provenance."""
    table: tuple[PatternRule, ...] = ()
    alone: Callable[[DataflowGraph, OperatorNumber], bool] = lambda graph, operator: False
    """Tells whether an operator is a candidate by itself, or joined with others."""
    joins: bool = False
    """Whether candidates are joined as FuseOps joins them."""
    most_depth: int = MOST_DEPTH
    """Operators on the longest path through a candidate, at most; 0: any number."""
    quantized: tuple[PatternRule, ...] = ()
    """Composites that are candidates of their own, which nothing is joined with."""

    def candidates(self, graph: DataflowGraph) -> list[CandidatePartition]:
        """Return those that are valid, deterministic in number and order.

        They are convex, have one exit, and are not too deep.
        """
        apart = [call for rule in self.quantized for call in rule.calls(graph)]
        seeds = [(call, self._label(rule)) for rule in self.table for call in rule.calls(graph)]
        seeds += [
            (SubGraph(graph, 1 << o, kind=graph.nodes[o].kind), f"{self.name}.op")
            for o in graph.operators
            if self.alone(graph, o)
        ]
        if self.joins:
            unions = combine(graph, [seed for seed, _ in seeds])
            seeds = [(union, f"{self.name}.combine") for union in unions]
        return [
            *(CandidatePartition(c, f"{self.name}.quantized") for c in apart if c.is_valid()),
            *(CandidatePartition(c, label) for c, label in seeds if c.is_valid(self.most_depth)),
        ]

    def _label(self, rule: PatternRule) -> str:
        """Return the toolchain's name and the composite's, which may begin with it."""
        return rule.name if rule.name.startswith(self.name) else f"{self.name}.{rule.name}"

    def patterns(self) -> Sequence[PatternRule]:
        """Return all composites' patterns, by which greedy partitioning goes."""
        return (*self.quantized, *self.table)


# Ready-made rules ----------------------------------------------------------------------------


def _table(patterns: Sequence[PatternEntry]) -> tuple[PatternRule, ...]:
    return tuple(PatternRule(*entry) for entry in patterns)


def fusion_rules(name: str, quantized: Sequence[PatternEntry] = ()) -> PartitionRule:
    """Return rules for everything that TVM could fuse into one kernel.

    Calls that are no opaque operators are joined as FuseOps joins them.

    Args:
        name: The name of the rules.
        quantized: Names and patterns of composites that are candidates besides, by themselves.
    """
    return PartitionRule(
        name,
        alone=lambda graph, operator: graph.nodes[operator].kind != "opaque",
        joins=True,
        quantized=_table(quantized),
    )


def byoc_rules(
    patterns: Sequence[PatternEntry],
    joins: bool = False,
    *,
    name: str = "byoc",
    supports: Callable[[DataflowGraph, OperatorNumber], str | None] | None = None,
) -> PartitionRule:
    """Return rules for the composites of a pattern table, joined or not.

    Args:
        patterns: The composites' names and patterns.
        joins: Whether composites are joined as FuseOps joins, or with nothing.
        name: The name of the rules.
        supports: Says why a call cannot run on its own; None for one that can. Without it calls
            that are in no pattern are no candidates.
    """
    return PartitionRule(
        name,
        _table(patterns),
        lambda graph, operator: supports is not None and supports(graph, operator) is None,
        joins,
    )


def composite_rules(name: str, patterns: Sequence[PatternEntry]) -> PartitionRule:
    """Return rules for the composites of a pattern table as they are, joined with nothing."""
    return PartitionRule(name, _table(patterns), most_depth=0)


# Toolchain instances -------------------------------------------------------------------------

Composites = tuple[tuple[str, tuple[OperatorNumber, ...]], ...]
"""(name, operator numbers) of library calls."""


@dataclass(frozen=True)
class CandidateSource:
    """One toolchain instance with its rules, from which candidates of a graph are enumerated."""

    instance: ToolchainInstance
    spec: PartitionRule | None
    """Its rules; None: it proposes none beside single operators, blocks and the whole model."""
    supports: Callable[[OperatorNumber], str | None]
    """Returns the reason why the instance cannot run an operator; None: it can."""
    asking: Callable[[], AbstractContextManager[None]] = nullcontext
    """Makes a block in which its rules are followed, and which says whose they are."""
    whole_model: bool = True
    """Whether the whole model may be one of its candidates."""
    lowers_to_tir: bool = False
    """Whether TVM compiles its partitions; FuseOps groups are then among its candidates."""
    device: str = "cpu"
    takes_set: Callable[[OperatorSet], bool] | None = None
    """Tells whether a set of calls that it supports is a candidate of its; None: each is."""
    formats: tuple[str, ...] = (PLAIN,)
    """What its partitions can take and give at their borders."""
    host: bool = False
    """Whether it runs on the host in a run on a device: what crosses its border is then copied."""

    def borders(
        self, graph: DataflowGraph, operators: tuple[OperatorNumber, ...]
    ) -> tuple[tuple[Formats, Formats], ...]:
        """Return the formats in which a set of operators may take and give its border's values.

        They are plain, and all channels last where that is something else; on the host of a device
        only the host's.

        Args:
            graph: The dataflow graph.
            operators: The operator numbers.

        Returns:
            Pairs of the formats of inputs and of outputs; an absent one is plain.
        """
        if self.host:
            return (host_border(graph, operator_set(operators)),)
        if NHWC in self.formats:
            takes, gives = channels_last_border(graph, operator_set(operators))
            if takes or gives:
                return ({}, {}), (takes, gives)
        return (({}, {}),)

    def taken(self, graph: DataflowGraph) -> OperatorSet:
        """Return the operators that it can run on its device."""
        return operator_set(o for o in graph.operators if self.refusal(graph, o) is None)

    def refusal(self, graph: DataflowGraph, index: OperatorNumber) -> Refusal | None:
        """Return why it cannot run a call on its device; None when it can."""
        reason = self.supports(index)
        return None if reason is None else Refusal("judged", graph.nodes[index].op, reason)
