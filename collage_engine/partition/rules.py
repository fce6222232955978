"""Partition rules: where candidates come from (RFC 0062, section "Partition rules").

Base rules look at the dataflow graph; combinators work on what other rules found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.formats import channels_last_border, host_border
from collage_engine.partition.candidate import CandidatePartition, nest_labels
from collage_engine.partition.combiners import CombineLimits, CombinerRule, combine
from collage_engine.partition.patterns import Match, Pattern, all_matches
from collage_engine.partition.sub_graph import SubGraph, SubGraphConfig
from collage_engine.records.candidate import Refusal
from collage_engine.records.format import NHWC, PLAIN, Formats
from collage_engine.records.graph import (
    Node,
    OperatorNumber,
    OperatorSet,
    one_operator,
    operator_set,
)
from collage_engine.records.operators import names_where
from collage_engine.records.toolchain import ToolchainInstance

Predicate = Callable[[DataflowGraph, Match], str | None]
"""A further check of a match: returns None when it holds, else the reason."""


class PartitionRule(ABC):
    """Finds candidates. ``name`` goes into their provenance."""

    name: str

    @abstractmethod
    def candidates(self, graph: DataflowGraph) -> list[CandidatePartition]:
        """Return all candidates this rule finds, deterministic in number and order."""

    def below(self) -> Sequence[PartitionRule]:
        """Return the rules that this one is made of."""
        return ()

    def patterns(self) -> Iterator[tuple[str, PatternRule]]:
        """Yield the name and the rule of every pattern in the tree, in the table's order.

        The name is the composite's. Greedy partitioning (MergeComposite) goes by these.
        """
        for rule in self.below():
            yield from rule.patterns()


@dataclass(frozen=True)
class PatternRule(PartitionRule):
    """Proposes the matches of a pattern at any root; they may overlap.

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

    def candidates(self, graph: DataflowGraph) -> list[CandidatePartition]:
        """Return one candidate for each match, in the order of their roots."""
        return [
            CandidatePartition(SubGraph(graph, each.nodes), self.name)
            for at_root in self.matches(graph)
            for each in at_root
        ]

    def patterns(self) -> Iterator[tuple[str, PatternRule]]:
        """Return this pattern alone."""
        yield self.name, self


def _one_call(graph: DataflowGraph, node: Node, rule: str) -> CandidatePartition:
    """Return a candidate of one call."""
    alone = SubGraph(graph, one_operator(node.index), kind=node.kind)
    return CandidatePartition(alone, nest_labels(rule, node.op))


@dataclass(frozen=True)
class OpCallByKindRule(PartitionRule):
    """Proposes every call on its own that is not opaque."""

    name: str = "op_call_by_kind"

    def candidates(self, graph: DataflowGraph) -> list[CandidatePartition]:
        """Return one candidate for each call whose kind allows it."""
        return [_one_call(graph, node, self.name) for node in graph.nodes if node.kind != "opaque"]


@dataclass(frozen=True)
class OpPredicateRule(PartitionRule):
    """Proposes every call on its own that a predicate accepts by returning None."""

    name: str
    predicate: Callable[[DataflowGraph, OperatorNumber], str | None]

    def candidates(self, graph: DataflowGraph) -> list[CandidatePartition]:
        """Return one candidate for each call that the predicate accepts."""
        return [
            _one_call(graph, node, self.name)
            for node in graph.nodes
            if self.predicate(graph, node.index) is None
        ]


@dataclass(frozen=True)
class _Wrapping(PartitionRule):
    """A rule around another one."""

    name: str
    sub_rule: PartitionRule

    def below(self) -> Sequence[PartitionRule]:
        return (self.sub_rule,)


@dataclass(frozen=True)
class CompositeRule(_Wrapping):
    """Marks what the sub-rule finds as one library call of this name."""

    def candidates(self, graph: DataflowGraph) -> list[CandidatePartition]:
        """Return the sub-rule's candidates, each marked as one composite."""
        return [
            CandidatePartition(c.sub_graph.as_composite(self.name), nest_labels(self.name, c.rule))
            for c in self.sub_rule.candidates(graph)
        ]

    def patterns(self) -> Iterator[tuple[str, PatternRule]]:
        """Yield the sub-rule's patterns under the composite's name."""
        for _, rule in self.sub_rule.patterns():
            yield self.name, rule


@dataclass(frozen=True)
class AskedRule(_Wrapping):
    """A rule of somebody else's, which is followed within a block that says whom it belongs to."""

    asking: Callable[[], AbstractContextManager[None]]
    """Makes the block's context."""

    def candidates(self, graph: DataflowGraph) -> list[CandidatePartition]:
        """Return the rule's candidates."""
        with self.asking():
            return self.sub_rule.candidates(graph)


@dataclass(frozen=True)
class UnionRule(PartitionRule):
    """Proposes what any of several rules finds, in their order; duplicates are kept."""

    name: str
    sub_rules: tuple[PartitionRule, ...]

    def candidates(self, graph: DataflowGraph) -> list[CandidatePartition]:
        """Return the candidates of all rules, one rule after the other."""
        return [c.named(self.name) for rule in self.sub_rules for c in rule.candidates(graph)]

    def below(self) -> Sequence[PartitionRule]:
        """Return the rules that are united."""
        return self.sub_rules


@dataclass(frozen=True)
class CombineRule(_Wrapping):
    """Proposes the sub-rule's candidates and every union of them that the combiners allow.

    ``max_depth`` bounds the sum of the depths of what is joined; 0: no bound.
    """

    combiners: tuple[CombinerRule, ...]
    max_depth: int = 0
    limits: CombineLimits = field(default_factory=CombineLimits)

    def candidates(self, graph: DataflowGraph) -> list[CandidatePartition]:
        """Return the sub-rule's candidates and their unions."""
        seeds = self.sub_rule.candidates(graph)
        candidates = combine(graph, seeds, self.combiners, self.max_depth, self.limits)
        return [c.named(self.name) for c in candidates]


@dataclass(frozen=True)
class OnlyValidRule(_Wrapping):
    """Proposes those candidates of the sub-rule that are valid within a configuration."""

    config: SubGraphConfig = field(default_factory=SubGraphConfig)

    def candidates(self, graph: DataflowGraph) -> list[CandidatePartition]:
        """Return the sub-rule's candidates that are valid."""
        return [
            c.named(self.name)
            for c in self.sub_rule.candidates(graph)
            if c.sub_graph.is_valid(self.config)
        ]


Composites = tuple[tuple[str, tuple[OperatorNumber, ...]], ...]
"""(name, operator numbers) of library calls."""

HOST_ONLY = names_where(on_host=True)
"""Relax operators about shapes, which are computed on the host."""


@dataclass(frozen=True)
class CandidateSource:
    """One toolchain instance with its rules, from which candidates of a graph are enumerated."""

    instance: ToolchainInstance
    spec: PartitionRule | None
    """Its rules; None: it proposes none beside single operators, blocks and the whole model."""
    supports: Callable[[OperatorNumber], str | None]
    """Returns the reason why the instance cannot run an operator; None: it can."""
    whole_model: bool = True
    """Whether the whole model may be one of its candidates."""
    lowers_to_tir: bool = False
    """Whether TVM compiles its partitions; FuseOps groups are then among its candidates."""
    device: str = "cpu"
    made_of: Callable[[OperatorSet], Composites | None] | None = None
    """Composites that it makes of a set of calls; None: the set is no candidate of its."""
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
        op = graph.nodes[index].op
        if self.device != "cpu" and op in HOST_ONLY:
            return Refusal("device", op, self.device)
        reason = self.supports(index)
        return None if reason is None else Refusal("judged", op, reason)
