"""Blocks: medium-sized candidates between single-value cuts, e.g. residual blocks.

External libraries do best on sub-graphs of many operators (they keep their own layout inside),
yet all convex sets are too many. Every path from an operator runs through its post-dominators;
where such a node is also the end of a fusion group, a cut there separates nothing that any
toolchain would fuse. A block is what lies between a cut and the n-th cut below it: convex by
construction and left through one value. Beside them: the parallel branches between a value
with several readers and the node where they meet again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collage_engine.model.index_set import members, one_operator, operator_set
from collage_engine.partition.call_graph import CallGraph
from collage_engine.records.numbering import NodeSet, OperatorNumber, OperatorSet


@dataclass(frozen=True)
class BlockLimits:
    """How many blocks there may be."""

    segments: tuple[int, ...] = (1, 2, 3, 4)
    """Numbers of consecutive segments joined, from every cut."""
    doublings: int = 4
    """Further sizes, each twice the one before, from every second, fourth… cut only."""
    max_operators: int = 256
    max_branch: int = 64
    """Operators between a value and the meeting of its branches, above which none is offered."""


NONE = OperatorNumber(-1)
"""Stands for a post-dominator that does not exist."""


def post_dominators(calls: CallGraph) -> list[OperatorNumber]:
    """Immediate post-dominator of every operator; ``NONE`` where there is none."""
    parent = [NONE] * calls.size
    depth = [0] * calls.size
    for operator in reversed(list(members(calls.everything))):
        if calls.leaving >> operator & 1 or not calls.users[operator]:
            continue
        parent[operator] = _common(calls.users[operator], parent, depth)
        if parent[operator] >= 0:
            depth[operator] = depth[parent[operator]] + 1
    return parent


def _common(
    operators: Sequence[OperatorNumber], parent: list[OperatorNumber], depth: list[int]
) -> OperatorNumber:
    """Least common ancestor of operators in the post-dominator tree; ``NONE`` for none."""
    found = operators[0]
    for other in operators[1:]:
        while found != other and found >= 0 and other >= 0:
            if depth[found] >= depth[other]:
                found, other = parent[found], other
            else:
                other = parent[other]
        if found < 0 or other < 0:
            return NONE
    return found


def blocks(
    calls: CallGraph, groups: Sequence[NodeSet], limits: BlockLimits | None = None
) -> list[OperatorSet]:
    """Blocks and branches as sets of operators, each once, near-linear in number.

    ``groups``: the fusion groups whose ends are cuts (index sets over nodes).
    """
    limits = limits or BlockLimits()
    parent = post_dominators(calls)
    cuts = _group_ends(calls, groups)
    found: dict[OperatorSet, None] = {}
    for block in _between_cuts(calls, parent, cuts, limits):
        found.setdefault(block, None)
    for branch in _branches(calls, parent, limits):
        found.setdefault(branch, None)
    return [b for b in found if b.bit_count() > 1]


def _group_ends(calls: CallGraph, groups: Sequence[NodeSet]) -> OperatorSet:
    exits = (calls.exits(calls.from_nodes(group)) for group in groups)
    return operator_set(ends[0] for ends in exits if len(ends) == 1)


def _starts(calls: CallGraph) -> Iterator[tuple[OperatorSet, tuple[OperatorNumber, ...]]]:
    """(everything below, direct readers) of each operator and each parameter."""
    for operator in range(calls.size):
        yield calls.downstream[operator], calls.users[operator]
    graph = calls.graph
    for node in graph.nodes:
        if node.form == "parameter":
            readers = tuple(
                graph.operator_number[u]
                for u in graph.users[node.index]
                if u in graph.operator_number
            )
            below = operator_set(readers)
            for reader in readers:
                below |= calls.downstream[reader]
            yield below, readers


def _between_cuts(
    calls: CallGraph, parent: list[OperatorNumber], cuts: OperatorSet, limits: BlockLimits
) -> Iterator[OperatorSet]:
    depth = [0] * calls.size
    """Cuts below an operator on the way along its post-dominators: its place for alignment."""
    for operator in range(calls.size - 1, -1, -1):
        above = parent[operator]
        if above >= 0:
            depth[operator] = depth[above] + (cuts >> above & 1)
    tree = _depths(parent)
    most = max(limits.segments, default=0)
    wanted = {n: 1 for n in limits.segments}
    for doubling in range(1, limits.doublings + 1):
        wanted.setdefault(most << doubling, most << (doubling - 1))
    for start, (below, readers) in enumerate(_starts(calls)):
        is_operator = start < calls.size
        if not readers or (is_operator and not cuts >> OperatorNumber(start) & 1):
            continue
        if is_operator:
            node, place = parent[start], depth[start]
        else:
            node = _common(readers, parent, tree)
            place = depth[node] + (cuts >> node & 1) if node >= 0 else 0
        count = 0
        while node >= 0 and count < max(wanted, default=0):
            if cuts >> node & 1:
                count += 1
                block = below & calls.upstream[node] | one_operator(node)
                if block.bit_count() > limits.max_operators:
                    break
                if count in wanted and place % wanted[count] == 0:
                    yield block
            node = parent[node]


def _depths(parent: list[OperatorNumber]) -> list[int]:
    depth = [0] * len(parent)
    for operator in range(len(parent) - 1, -1, -1):
        if parent[operator] >= 0:
            depth[operator] = depth[parent[operator]] + 1
    return depth


def _branches(
    calls: CallGraph, parent: list[OperatorNumber], limits: BlockLimits
) -> Iterator[OperatorSet]:
    depth = _depths(parent)
    for below, readers in _starts(calls):
        if len(readers) < 2:
            continue
        join = _common(readers, parent, depth)
        if join < 0:
            continue
        between = below & calls.upstream[join]
        if between and between.bit_count() <= limits.max_branch:
            yield from calls.components(between)
