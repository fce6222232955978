"""FuseOps on the dataflow graph: which operators TVM would fuse into one kernel.

The algorithm of Relax's pass (``graph_partitioner.cc``, TVM v0.27): each node is fused to its
immediate post-dominator when the kinds on all paths between allow it, in two phases: anchors with
their epilogues and elementwise chains; then injective ones. (The pass has a third phase for tuples,
of which Relax has none: arguments of ``call_tir`` are flat.)

Relax infers kinds from the loop nest (``Operator.loop_kind``), where an operator that reads one
input elementwise and broadcasts others is elementwise. Values that leave the function are never
fused into what reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import (
    KIND_ORDER,
    Node,
    OperatorNumber,
    OperatorSet,
    ValueIndex,
    operator_set,
)
from collage_engine.records.operators import OPERATORS

E, B, I, R, A, O = (  # noqa: E741 - the letters upstream's comments use
    KIND_ORDER[k]
    for k in ("elementwise", "broadcast", "injective", "reduction", "anchor", "opaque")
)

MAX_GROUP = 256
"""Nodes in one group, and operators in one block, at most: the default of TVM's option
``relax.FuseOps.max_depth``."""


def fused_groups(graph: DataflowGraph) -> list[OperatorSet]:
    """Return the groups of FuseOps as sets of operators, made whole: they cut through no ONNX node.

    Args:
        graph: The dataflow graph.
    """
    return graph.whole(fuse_ops(graph))


@dataclass(frozen=True)
class _Forward:
    """The graph the pass walks: per node its kind and its readers with the edge's kind.

    A node is a binding of the Relax function: an operator, or a field of the tuple that it returns.
    """

    operator: list[OperatorNumber | None]
    """The operator that a node is; None of a field."""
    kind: list[int]
    readers: list[list[tuple[int, int]]]
    leaves: list[bool]


def fuse_ops(graph: DataflowGraph, max_group: int = MAX_GROUP) -> list[OperatorSet]:
    """Return the groups of operators that TVM would fuse into one kernel each.

    They are disjoint, and hold all operators together.

    Args:
        graph: The dataflow graph.
        max_group: Nodes of a group at most.
    """
    forward = _forward(graph)
    partitioner = _Partitioner(forward, max_group)
    for phase in range(2):
        partitioner.run(phase)
    groups: dict[int, list[OperatorNumber]] = {}
    for index, operator in enumerate(forward.operator):
        if operator is not None:
            groups.setdefault(partitioner.root(index), []).append(operator)
    return [operator_set(group) for group in sorted(groups.values())]


def _loop_kind(graph: DataflowGraph, node: Node) -> int:
    """Return a call's kind as Relax infers it.

    A broadcast is elementwise where any operand has the result's shape.
    """
    row = OPERATORS.get(node.op)
    kind = KIND_ORDER[(row.loop_kind if row is not None else None) or node.kind]
    if kind == B and any(graph.values[i].type.shape == node.type.shape for i in node.inputs):
        return E
    return kind


def _forward(graph: DataflowGraph) -> _Forward:
    view = _Forward([], [], [], [])

    def add(operator: OperatorNumber | None, kind: int, sources: Iterable[int]) -> int:
        place = len(view.kind)
        view.operator.append(operator)
        view.kind.append(kind)
        view.readers.append([])
        view.leaves.append(False)
        for source in sources:
            view.readers[source].append((place, kind))
        return place

    place_of: dict[ValueIndex, int] = {}
    for node in graph.nodes:
        sources = [place_of[i] for i in node.inputs if i in place_of]
        place = add(node.index, _loop_kind(graph, node), sources)
        if len(node.results) == 1:
            place_of[node.index] = place
            continue
        for index in graph.used_results(node.index):
            place_of[index] = add(None, I, [place])
    for output in graph.record.outputs:
        if output in place_of:
            view.leaves[place_of[output]] = True
    return view


class _Partitioner:
    """Groups as a union-find over nodes; ``kind``, ``anchor``, ``size`` belong to roots."""

    def __init__(self, view: _Forward, max_group: int) -> None:
        self.view = view
        self.max_group = max_group
        n = len(view.kind)
        self.parent = list(range(n))
        self.kind = list(view.kind)
        self.anchored = [kind == A for kind in view.kind]
        self.size = [1] * n
        self.dominator: list[int] = [-1] * n
        self.path_kind = [O] * n
        """Greatest kind on the edges up to the dominator."""
        self._find_dominators()

    def root(self, index: int) -> int:
        while self.parent[index] != index:
            self.parent[index] = self.parent[self.parent[index]]
            index = self.parent[index]
        return index

    def _find_dominators(self) -> None:
        """Find the immediate post-dominator of each node, from the last node to the first.

        It is the least common ancestor of the node's readers.
        """
        depth = [1] * len(self.kind)
        parent, path = self.dominator, self.path_kind
        for index in range(len(self.kind) - 1, -1, -1):
            readers = self.view.readers[index]
            if self.view.leaves[index] or not readers:
                continue
            dominator, kind = readers[0]
            kind = max(E, kind)
            for reader, edge in readers[1:]:
                left, right = dominator, reader
                while left != right and left >= 0 and right >= 0:
                    if depth[left] >= depth[right]:
                        deeper = depth[left] > depth[right]
                        kind = max(kind, path[left])
                        left = parent[left]
                        if deeper:
                            continue
                    kind = max(kind, path[right])
                    right = parent[right]
                dominator = left if left == right else -1
                kind = max(kind, edge)
                if dominator < 0:
                    break
            path[index] = kind
            parent[index] = dominator
            depth[index] = depth[dominator] + 1 if dominator >= 0 else 1

    # One phase over all nodes

    def run(self, phase: int) -> None:
        for index, sink in enumerate(self.dominator):
            if sink < 0:
                continue
            kind = self.kind[index]  # As upstream: the node's own group record, not its root's.
            if kind == O:
                continue
            if self.root(index) == self.root(sink):
                continue
            path = self.path_kind[index]
            if kind == A:
                if phase == 0 and path == E:
                    self._fuse(index, sink, lambda k, _: k <= B)
            elif kind <= B:
                if path <= I or path == R:
                    self._fuse(index, sink, _epilogue)
            elif kind == I and phase == 1:
                self._fuse(index, sink, lambda k, _: k <= I)

    def _fuse(self, index: int, sink: int, allowed: Callable[[int, bool], bool]) -> None:
        """Unite everything between a node and its dominator, if kinds and limits allow it."""
        between = self._between(index, sink, allowed)
        if between is None:
            return
        sink_root = self.root(sink)
        if self.size[sink_root] + sum(self.size[node] for node in between) > self.max_group:
            return
        for node in between:
            self._merge(node, sink)

    def _between(
        self, index: int, sink: int, allowed: Callable[[int, bool], bool]
    ) -> Sequence[int] | None:
        """Return the node and all nodes between it and the sink.

        None when one of them is not allowed.
        """
        chain = [index]
        seen = {index}
        work = [index]
        while work:
            for reader, _ in self.view.readers[work.pop()]:
                if reader in seen:
                    continue
                seen.add(reader)
                if not allowed(self.kind[self.root(reader)], reader == sink):
                    return None
                if reader != sink:
                    chain.append(reader)
                    work.append(reader)
        return chain

    def _merge(self, child: int, parent: int) -> None:
        child, parent = self.root(child), self.root(parent)
        if child == parent:
            return
        self.parent[child] = parent
        self.size[parent] += self.size[child]
        if self.anchored[child]:
            self.anchored[parent] = True
            self.kind[parent] = max(self.kind[parent], self.kind[child])


def _epilogue(kind: int, is_sink: bool) -> bool:
    """Return what may lie on and at the end of the way of an elementwise or broadcast node."""
    return kind <= I or (is_sink and kind in (R, A))
