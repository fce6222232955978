"""Repeats the search, coalescing and mock cost estimator of TVM v0.18's Collage.

Dijkstra over covered index sets: from a state, only candidates that begin at the first node not
yet covered; equal costs are broken as upstream's ordered containers break them. Then MaxCoalesce
joins touching partitions of one spec without asking whether the result is valid.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.combiners import (
    A_TO_A,
    A_TO_B,
    B_TO_R,
    I_TO_I,
    AllSimple,
    TupleArgument,
    TupleProjection,
)
from collage_engine.partition.patterns import Pattern
from collage_engine.partition.rules import (
    CombineRule,
    CompositeRule,
    OnlyValidRule,
    OpCallByKindRule,
    PartitionRule,
    PatternRule,
    PrimitiveRule,
    UnionRule,
)
from collage_engine.partition.spec import PartitionSpec
from collage_engine.partition.sub_graph import SubGraph, SubGraphConfig, node_label
from collage_engine.records.numbering import NodeSet
from tests.support.upstream_collage import (
    CandidateSet,
    HostRule,
    UpstreamAbort,
    UpstreamCandidate,
    lexicographic,
    prune_candidates,
    upstream_candidates,
    upstream_order,
)

Estimator = Callable[[UpstreamCandidate], float]
"""Cost of a candidate; infinite when it is invalid."""


# Upstream's specs


def _spec(name: str, rule: PartitionRule, external: bool) -> PartitionSpec:
    return PartitionSpec(name, rule, external=external)


def tvm_spec(name: str, max_depth: int) -> PartitionSpec:
    """Returns upstream's spec for a TVM target, e.g. ``tvm_llvm``."""
    combiners = (AllSimple((A_TO_B, B_TO_R, I_TO_I)), TupleArgument(), TupleProjection())
    combine = CombineRule("", OpCallByKindRule(""), combiners, max_depth)
    config = SubGraphConfig(max_exits=1, max_depth=max_depth)
    return _spec(name, OnlyValidRule("", combine, config), external=False)


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
    return _spec(name, PrimitiveRule("", OnlyValidRule("", tree, config)), external=True)


def host_spec() -> PartitionSpec:
    return _spec("host", HostRule(""), external=False)


# Costs


@dataclass
class MockEstimator:
    """Upstream's ``MockCostEstimator``: c per operator call, each further one 10 % cheaper.

    ``costs``: spec name → c. Equal functions are estimated once (structural cache); more than
    ``max_estimates`` estimates raise ``UpstreamAbort``.
    """

    costs: Mapping[str, float]
    max_estimates: int = 0
    estimates: int = 0
    cache: dict[object, float] = field(default_factory=dict)

    def __call__(self, candidate: UpstreamCandidate) -> float:
        if candidate.cost is not None:
            return candidate.cost
        if (
            candidate.spec
            and candidate.spec.validate
            and candidate.spec.validate(candidate.sub_graph)
        ):
            return float("inf")
        key = (candidate.spec_name, structure(candidate.sub_graph))
        if key not in self.cache:
            self.estimates += 1
            if self.max_estimates and self.estimates > self.max_estimates:
                raise UpstreamAbort(f"more than {self.max_estimates} estimates")
            graph = candidate.sub_graph.graph
            calls = sum(graph.nodes[i].form == "call" for i in candidate.sub_graph.members)
            self.cache[key] = sum(self.costs[candidate.spec_name] * 0.9**k for k in range(calls))
        return self.cache[key]


def structure(sub_graph: SubGraph) -> tuple[object, ...]:
    """Returns the function that a sub-graph would become, wherever it stands in the graph."""
    nodes = sub_graph.graph.nodes
    names: dict[int, int] = {}
    lines: list[object] = []
    for index in sub_graph.members:
        node = nodes[index]
        for source in node.inputs:
            if source not in names:
                names[source] = len(names)
                lines.append(("input", str(nodes[source].types)))
        names[index] = len(names)
        arguments = tuple(names[s] for s in node.inputs)
        lines.append((node_label(node), str(node.attributes), arguments, str(node.types)))
    lines.append(tuple(names[i] for i in sub_graph.exit))
    return tuple(lines)


# Search


@dataclass
class _State:
    covered: NodeSet
    cost: float = float("inf")
    before: _State | None = None
    candidate: UpstreamCandidate | None = None


@dataclass(frozen=True)
class UpstreamResult:
    """What upstream's pass would do with a function."""

    candidates: list[UpstreamCandidate]
    """All candidates before pruning, without the host's."""
    pruned: list[UpstreamCandidate]
    """All candidates (host ones too) that the search saw."""
    path: list[tuple[UpstreamCandidate, float]]
    """The chosen non-host candidates in path order, with their costs."""
    partitions: list[UpstreamCandidate]
    """The chosen ones (host ones too) after MaxCoalesce, in canonical order."""
    cost: float
    states: int

    def chosen(self) -> list[tuple[tuple[int, ...], str, float]]:
        return [(c.sub_graph.members, c.spec_name, cost) for c, cost in self.path]

    def placed(self) -> list[tuple[tuple[int, ...], str]]:
        """Returns (nodes, spec) of the partitions after coalescing, without those of the host."""
        kept = (p for p in self.partitions if p.spec_name != "host")
        return [(p.sub_graph.members, p.spec_name) for p in kept]


def collage_partition(
    graph: DataflowGraph, specs: Sequence[PartitionSpec], estimator: Estimator
) -> UpstreamResult:
    """Runs upstream's ``CollagePartition`` on one function.

    Args:
        graph: The function.
        specs: The specs, without the host's.
        estimator: The cost of a candidate.

    Raises:
        UpstreamAbort: Upstream's checks fail.
    """
    found = [c for spec in specs for c in upstream_candidates(spec, graph)]
    pruned = prune_candidates([*found, *upstream_candidates(host_spec(), graph)])
    by_first: dict[int, list[UpstreamCandidate]] = {}
    for candidate in pruned:
        by_first.setdefault(candidate.sub_graph.first, []).append(candidate)
    costs = {id(c): estimator(c) for c in pruned}
    goal, states = _dijkstra(graph, by_first, costs)
    path = list(reversed(list(_path(goal))))
    partitions = max_coalesce(list(reversed(path)))
    priced = [(c, costs[id(c)]) for c in path if c.spec_name != "host"]
    return UpstreamResult(found, pruned, priced, partitions, goal.cost, states)


def _path(state: _State) -> Iterator[UpstreamCandidate]:
    while state.candidate is not None and state.before is not None:
        yield state.candidate
        state = state.before


def _dijkstra(
    graph: DataflowGraph,
    by_first: Mapping[int, Sequence[UpstreamCandidate]],
    costs: Mapping[int, float],
) -> tuple[_State, int]:
    size = len(graph)
    everything = (1 << size) - 1
    start = _State(0, 0.0)
    states = {0: start}
    queue: list[tuple[float, int, NodeSet]] = [(0.0, 0, 0)]
    settled: set[NodeSet] = set()
    while queue:
        _, _, covered = heapq.heappop(queue)
        if covered in settled:
            continue
        settled.add(covered)
        state = states[covered]
        if covered == everything:
            return state, len(states)
        first = (~covered & (covered + 1)).bit_length() - 1
        fired = 0
        for candidate in by_first.get(first, ()):
            inside = candidate.sub_graph.inside
            if inside & covered:
                continue
            fired += 1
            after = states.setdefault(covered | inside, _State(covered | inside))
            cost = costs[id(candidate)] + state.cost
            if cost < after.cost or after.before is None:
                after.cost, after.before, after.candidate = cost, state, candidate
                order = lexicographic(after.covered, size)
                heapq.heappush(queue, (cost, order, after.covered))
        if not fired:
            raise UpstreamAbort(f"no candidate covers node {first}")
    raise UpstreamAbort("the goal was not reached")


def max_coalesce(candidates: Sequence[UpstreamCandidate]) -> list[UpstreamCandidate]:
    """Returns the eager unions of touching partitions of one spec (upstream's ``MaxCoalesce``)."""
    found = CandidateSet(candidates)
    while found.next_round():
        current = found.current
        by_entry: dict[int, list[int]] = {}
        for place, candidate in enumerate(current):
            for index in candidate.sub_graph.entry:
                by_entry.setdefault(index, []).append(place)
        removed: set[int] = set()
        for i, upstream in enumerate(current):
            if i in removed:
                continue
            below = sorted({j for o in upstream.sub_graph.output for j in by_entry.get(o, ())})
            for j in below:
                if j in removed or j == i:
                    continue
                downstream = current[j]
                if upstream.spec is not downstream.spec:
                    continue
                if not upstream.sub_graph.touches(downstream.sub_graph):
                    continue
                # The upstream one may have gone already; it is merged once more.
                found.add(upstream.union(downstream))
                found.remove(upstream)
                found.remove(downstream)
                removed |= {i, j}
    return sorted(found.current, key=upstream_order)
