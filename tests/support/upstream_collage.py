"""Repeats the candidate sets of TVM v0.18's Collage, its defects included, for comparison.

``as_upstream`` turns a rule tree into one that combines in upstream's rounds and matches patterns
once per root. ``prune_candidates`` is upstream's cost-blind pruning. Three defects of upstream are
kept, and named where they act:

* skip test: ``AllSimple`` and ``TupleArg`` test ``i`` where ``j`` is meant, so an old upstream
  candidate is never combined with a new downstream one;
* overlapping producers: ``TupleArg`` joins producers without checking that they are disjoint;
* duplicates: candidates of one spec on the same nodes eliminate each other in pruning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members
from collage_engine.partition.candidate import CandidatePartition, nest_labels, union_labels
from collage_engine.partition.combiners import (
    A_TO_B,
    B_TO_R,
    I_TO_I,
    AllSimple,
    CombinerRule,
    SimpleCombiner,
    TupleArgument,
    TupleProjection,
)
from collage_engine.partition.patterns import Match, Pattern, all_matches
from collage_engine.partition.rules import (
    CombineRule,
    CompositeRule,
    OnlyValidRule,
    OpCallByKindRule,
    PartitionRule,
    PatternRule,
    Scope,
    UnionRule,
)
from collage_engine.partition.spec import PartitionSpec
from collage_engine.partition.sub_graph import SubGraph, SubGraphConfig, node_kind
from collage_engine.records.errors import CollageError
from collage_engine.records.graph import KIND_ORDER
from collage_engine.records.numbering import NodeSet

A_TO_A = SimpleCombiner("anchor", "anchor")
"""Any touching candidates without opaque operators: upstream's ArbitraryFusion."""


class UpstreamAbort(CollageError):
    """Upstream would abort here on a failed check (ICHECK)."""


@dataclass(frozen=True)
class UpstreamCandidate(CandidatePartition):
    """A candidate with the spec that proposes it, as upstream's search needs it."""

    spec: PartitionSpec | None = None
    cost: float | None = None
    """Seconds known beforehand: zero for what stays on the host."""

    @property
    def spec_name(self) -> str:
        assert self.spec is not None
        return self.spec.name

    def union(self, other: CandidatePartition) -> UpstreamCandidate:
        """Returns both as one candidate.

        Raises:
            ValueError: The specs differ.
        """
        assert isinstance(other, UpstreamCandidate)
        if self.spec is not other.spec:
            raise ValueError(f"{self.spec_name} and {other.spec_name} cannot share a candidate")
        return UpstreamCandidate(
            self.sub_graph.union(other.sub_graph), union_labels(self.rule, other.rule), self.spec
        )


@dataclass(frozen=True)
class HostRule(PartitionRule):
    """Every node that need not be lowered, on its own and free: upstream's host partitions."""

    name: str = "host"
    special_ops: frozenset[str] = frozenset({"device_copy", "shape_of", "vm.shape_of"})

    def stays(self, scope: Scope, index: int) -> bool:
        node = scope.graph.nodes[index]
        return node.form != "call" or node.op in self.special_ops

    def candidates(self, scope: Scope) -> list[CandidatePartition]:
        return [
            UpstreamCandidate(
                SubGraph(scope.graph, 1 << node.index, kind=node_kind(node)), self.name, cost=0.0
            )
            for node in scope.graph.nodes
            if self.stays(scope, node.index)
        ]


@dataclass(frozen=True)
class FirstMatchRule(PatternRule):
    """A pattern rule with upstream's behaviour of at most one match at a root."""

    def _matches_at(self, graph: DataflowGraph, root: int) -> list[Match]:
        for each in all_matches(graph, self.pattern, root):
            accepted = self.predicate is None or self.predicate(graph, each) is None
            return [each] if accepted else []
        return []


def lexicographic(bits: NodeSet, size: int) -> int:
    """Sort key of upstream's ``NodeSet`` order: at the first difference, the set bit first."""
    return -int(f"{bits:0{size}b}"[::-1], 2)


def upstream_order(candidate: CandidatePartition) -> tuple[int, int, str]:
    """Sort key of upstream's ``CandidatePartition::operator<``."""
    sub_graph = candidate.sub_graph
    return sub_graph.first, lexicographic(sub_graph.inside, len(sub_graph.graph)), candidate.rule


def as_upstream(rule: PartitionRule) -> PartitionRule:
    """Returns the same rule tree with upstream's behaviour where ours is corrected."""
    if isinstance(rule, PatternRule):
        return FirstMatchRule(rule.name, rule.pattern, rule.predicate)
    if isinstance(rule, CombineRule):
        return UpstreamCombineRule(
            rule.name, as_upstream(rule.sub_rule), rule.combiners, rule.max_depth
        )
    if isinstance(rule, (CompositeRule, OnlyValidRule)):
        return replace(rule, sub_rule=as_upstream(rule.sub_rule))
    if isinstance(rule, UnionRule):
        return replace(rule, sub_rules=tuple(map(as_upstream, rule.sub_rules)))
    return rule


Identity = tuple[NodeSet, frozenset[tuple[str, NodeSet]]]
"""What upstream's equal sub-graphs share: their nodes, and their composites."""


def identity(candidate: CandidatePartition) -> Identity:
    sub_graph = candidate.sub_graph
    return sub_graph.inside, frozenset(sub_graph.composites)


class CandidateSet:
    """Upstream's set of candidates that grows in rounds; equal sub-graphs are added once."""

    def __init__(self, candidates: Sequence[CandidatePartition]) -> None:
        self.current: list[CandidatePartition] = []
        self.first_new = 0
        self.to_add = list(candidates)
        self.to_remove: list[Identity] = []
        self.seen = {identity(c) for c in candidates}

    def add(self, candidate: CandidatePartition) -> None:
        if identity(candidate) not in self.seen:
            self.seen.add(identity(candidate))
            self.to_add.append(candidate)

    def remove(self, candidate: CandidatePartition) -> None:
        self.to_remove.append(identity(candidate))

    def next_round(self) -> bool:
        gone = set(self.to_remove)
        kept = [c for c in self.current if identity(c) not in gone]
        changed = len(kept) != len(self.current) or bool(self.to_add)
        self.first_new = len(kept)
        self.current = kept + self.to_add
        self.to_add, self.to_remove = [], []
        return changed


@dataclass(frozen=True)
class UpstreamCombineRule(PartitionRule):
    """``CombinePartitionRule`` as TVM v0.18 runs it."""

    name: str
    sub_rule: PartitionRule
    combiners: tuple[CombinerRule, ...]
    max_depth: int

    def candidates(self, scope: Scope) -> list[CandidatePartition]:
        found = CandidateSet(self.sub_rule.candidates(scope))
        while found.next_round():
            for combiner in self.combiners:
                if isinstance(combiner, AllSimple):
                    _all_simple(scope.graph, found, combiner, self.max_depth)
                elif isinstance(combiner, TupleArgument):
                    _tuple_argument(scope.graph, found)
                elif isinstance(combiner, TupleProjection):
                    _glue(scope.graph, found)
                else:
                    raise TypeError(f"upstream has no {type(combiner).__name__}")
        return [c.named(self.name) for c in found.current]

    def below(self) -> Sequence[PartitionRule]:
        return (self.sub_rule,)


def _all_simple(graph: DataflowGraph, found: CandidateSet, rule: AllSimple, depth: int) -> None:
    by_entry = _places(found.current, lambda s: s.entry)
    for i, upstream in enumerate(found.current):
        if i < found.first_new:
            # The skip test: "skip the old ones below an old one" is meant; it tests i, so an old
            # candidate is never tried above a new one.
            continue
        below = sorted({j for o in upstream.sub_graph.output for j in by_entry.get(o, ())})
        for j in below:
            downstream = found.current[j]
            up, down = upstream.sub_graph, downstream.sub_graph
            if i == j or (depth and up.depth + down.depth > depth):
                continue
            if up.touches(down) and rule.fires(KIND_ORDER[up.kind], KIND_ORDER[down.kind]):
                found.add(upstream.union(downstream))


def _tuple_argument(graph: DataflowGraph, found: CandidateSet) -> None:
    current = found.current
    by_exit = _places([c if _injective(c) else None for c in current], lambda s: s.exit)
    for i, consumer in enumerate(current):
        if not _injective(consumer) or i < found.first_new:  # the skip test again
            continue
        for index in consumer.sub_graph.input:
            if graph.nodes[index].form != "tuple":
                continue
            glue = CandidatePartition(SubGraph(graph, 1 << index, kind="injective"))
            fields = graph.nodes[index].inputs
            choices = [[current[j] for j in by_exit.get(f, ()) if j != i] for f in fields]
            for chosen in product(*reversed(choices)):
                if not chosen:
                    continue
                joined = consumer.union(glue)
                for producer in reversed(chosen):
                    if joined.sub_graph.inside & producer.sub_graph.inside:
                        raise UpstreamAbort(
                            f"producers of tuple {index} overlap: upstream's DisjointUnion "
                            "fails its check"
                        )
                    joined = joined.union(producer)
                found.add(joined)


def _glue(graph: DataflowGraph, found: CandidateSet) -> None:
    for candidate in found.current[found.first_new :]:
        for index in candidate.sub_graph.output:
            if graph.nodes[index].form == "projection":
                found.add(candidate.union(CandidatePartition(SubGraph(graph, 1 << index))))


def _injective(candidate: CandidatePartition) -> bool:
    return KIND_ORDER[candidate.sub_graph.kind] <= KIND_ORDER["injective"]


def _places(
    candidates: Sequence[CandidatePartition | None],
    border: Callable[[SubGraph], tuple[int, ...]],
) -> dict[int, list[int]]:
    """Returns, by node, the places of the candidates that have it on a border, ascending."""
    places: dict[int, list[int]] = {}
    for place, candidate in enumerate(candidates):
        if candidate is not None:
            for index in border(candidate.sub_graph):
                places.setdefault(index, []).append(place)
    return places


def upstream_candidates(spec: PartitionSpec, graph: DataflowGraph) -> list[UpstreamCandidate]:
    """Returns what upstream's ``PartitionSpec::AllCandidates`` gives, names nested alike."""
    upstream = replace(spec, rule=as_upstream(spec.rule))
    return [
        UpstreamCandidate(
            c.sub_graph,
            nest_labels(spec.name, c.rule),
            spec,
            c.cost if isinstance(c, UpstreamCandidate) else None,
        )
        for c in upstream.candidates(graph)
    ]


def prune_candidates(candidates: Sequence[UpstreamCandidate]) -> list[UpstreamCandidate]:
    """Returns what upstream's ``PruneCandidates`` leaves: maximal ones, and bridges.

    Bridges are what is needed where maximal ones overlap. Two candidates of one spec on the same
    nodes eliminate each other, as upstream's do.
    """
    available = list(candidates)
    pruned: dict[Identity, UpstreamCandidate] = {}
    while True:
        before = len(pruned)
        for candidate in _maximal(available):
            pruned.setdefault(identity(candidate), candidate)
        if len(pruned) == before:
            return sorted(pruned.values(), key=upstream_order)
        crossing = _intersecting(list(pruned.values()))
        available = [c for c in available if identity(c) not in crossing]


def _maximal(candidates: Sequence[UpstreamCandidate]) -> list[UpstreamCandidate]:
    inside = _by_member(candidates)
    result: list[UpstreamCandidate] = []
    for place, candidate in enumerate(candidates):
        nodes = candidate.sub_graph.inside
        others = inside[candidate.sub_graph.first]  # A superset holds every node: one is enough.
        if not any(
            other != place
            and candidates[other].spec is candidate.spec
            and nodes & ~candidates[other].sub_graph.inside == 0
            for other in others
        ):
            result.append(candidate)
    return result


def _intersecting(candidates: Sequence[CandidatePartition]) -> set[Identity]:
    inside = _by_member(candidates)
    crossing: set[Identity] = set()
    for place, candidate in enumerate(candidates):
        nodes = candidate.sub_graph.inside
        for index in members(nodes):
            for other in inside[index]:
                if other > place and candidates[other].sub_graph.inside != nodes:
                    crossing.add(identity(candidate))
                    crossing.add(identity(candidates[other]))
    return crossing


def _by_member(candidates: Sequence[CandidatePartition]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for place, candidate in enumerate(candidates):
        for index in members(candidate.sub_graph.inside):
            places.setdefault(index, []).append(place)
    return places


def tvm_spec(name: str, max_depth: int) -> PartitionSpec:
    """Returns upstream's spec for a TVM target, e.g. ``tvm_llvm``."""
    combiners = (AllSimple((A_TO_B, B_TO_R, I_TO_I)), TupleArgument(), TupleProjection())
    combine = CombineRule("", OpCallByKindRule(""), combiners, max_depth)
    config = SubGraphConfig(max_exits=1, max_depth=max_depth)
    return PartitionSpec(name, OnlyValidRule("", combine, config))


def byoc_spec(
    name: str, patterns: Sequence[tuple[str, Pattern]], style: str, max_depth: int
) -> PartitionSpec:
    """Returns upstream's spec for an external target with a pattern table and a fusion style."""
    rules = tuple(CompositeRule(label, PatternRule("", p)) for label, p in patterns)
    tree: PartitionRule = UnionRule("", rules)
    if style != "NoFusion":
        simple = (A_TO_A,) if style == "ArbitraryFusion" else (A_TO_B, B_TO_R, I_TO_I)
        tree = CombineRule("", tree, (AllSimple(simple),), max_depth)
    config = SubGraphConfig(max_exits=1, max_depth=max_depth)
    return PartitionSpec(name, OnlyValidRule("", tree, config))
