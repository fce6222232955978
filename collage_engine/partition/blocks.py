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

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.fuse_ops import MAX_GROUP, PostDominators, post_dominators
from collage_engine.records.graph import (
    OperatorNumber,
    OperatorSet,
    members,
    operator_set,
)

SEGMENTS = (1, 2, 3, 4)
"""Numbers of consecutive segments that are joined, from every cut; chosen. Of eight, sixteen… there
are blocks from every fourth, eighth… cut only."""


def blocks(graph: DataflowGraph, groups: Sequence[OperatorSet]) -> list[OperatorSet]:
    """Return the blocks and branches of a graph, each once.

    Their number is near-linear in the graph's size.

    Args:
        graph: The dataflow graph.
        groups: The fusion groups, whose ends may be cuts.
    """
    tree = post_dominators(
        graph.users, lambda o: graph.leaving >> o & 1, list(members(graph.everything))
    )
    cuts = _group_ends(graph, groups)
    distinct = dict.fromkeys((*_between_cuts(graph, tree, cuts), *_branches(graph, tree)))
    return [operators for operators in distinct if operators.bit_count() > 1]


def _group_ends(graph: DataflowGraph, groups: Sequence[OperatorSet]) -> OperatorSet:
    """Return the operators that are the only exit of a fusion group: the possible cuts."""
    exits = map(graph.exits, groups)
    return operator_set(ends[0] for ends in exits if len(ends) == 1)


def _starts(graph: DataflowGraph) -> Iterator[tuple[OperatorSet, tuple[OperatorNumber, ...]]]:
    """Yield the operators below each operator and each parameter, and its direct readers."""
    for operator in graph.operators:
        yield graph.downstream[operator], graph.users[operator]
    for parameter in graph.record.parameters:
        readers = graph.readers[parameter.index]
        below = operator_set(readers)
        for reader in readers:
            below |= graph.downstream[reader]
        yield below, readers


def _between_cuts(
    graph: DataflowGraph, tree: PostDominators[OperatorNumber], cuts: OperatorSet
) -> Iterator[OperatorSet]:
    """Yield what lies between a cut and the n-th cut below it."""
    depth = [0] * len(graph)
    """Cuts below an operator on the way along its post-dominators: its place for alignment."""
    for operator in range(len(graph) - 1, -1, -1):
        above = tree.parent[operator]
        if above is not None:
            depth[operator] = depth[above] + (cuts >> above & 1)
    for start, (below, readers) in enumerate(_starts(graph)):
        is_operator = start < len(graph)
        if not readers or (is_operator and not cuts >> start & 1):
            continue
        if is_operator:
            node, level = tree.parent[start], depth[start]
        else:
            node = tree.common(readers)
            level = depth[node] + (cuts >> node & 1) if node is not None else 0
        count = 0
        while node is not None:
            if cuts >> node & 1:
                count += 1
                block = below & graph.upstream[node] | 1 << node
                if block.bit_count() > MAX_GROUP:
                    break
                if count in SEGMENTS or not (count & count - 1 or level % (count // 2)):
                    yield block
            node = tree.parent[node]


def _branches(graph: DataflowGraph, tree: PostDominators[OperatorNumber]) -> Iterator[OperatorSet]:
    """Yield the parallel branches between a value with several readers and their meeting."""
    for below, readers in _starts(graph):
        if len(readers) < 2:
            continue
        join = tree.common(readers)
        if join is None:
            continue
        between = below & graph.upstream[join]
        if between and between.bit_count() <= MAX_GROUP:
            yield from graph.components(between)
