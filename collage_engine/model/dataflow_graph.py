"""Defines the dataflow graph: the model's records, and what every rule asks of them.

Reachability is one bit set per node, so convexity and cycle questions are a few integer
operations (Collage's ``DataflowGraph::downstream_map_``, TVM v0.18, ``dataflow_graph.h``).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from collage_engine.records.graph import (
    GraphRecord,
    Node,
    NodeIndex,
    NodeSet,
    OperatorNumber,
    members,
    node_set,
)


class DataflowGraph:
    """A graph of nodes in post-DFS order, with their users, reachability and closed sets.

    ``nodes[i].index == i`` and every input of a node has a smaller index.
    """

    def __init__(self, record: GraphRecord) -> None:
        self.record = record
        self.nodes: tuple[Node, ...] = record.nodes
        for position, node in enumerate(self.nodes):
            if node.index != position or any(i >= position for i in node.inputs):
                raise ValueError(f"node {position} is not in topological order")

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def users(self) -> tuple[tuple[NodeIndex, ...], ...]:
        """Returns the nodes that read each node's value, ascending, without duplicates.

        Entry ``i`` belongs to the node of graph index ``i``.
        """
        users: list[list[NodeIndex]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for source in dict.fromkeys(node.inputs):
                users[source].append(node.index)
        return tuple(map(tuple, users))

    @cached_property
    def downstream(self) -> tuple[NodeSet, ...]:
        """Returns, for each node, the set of nodes that are reachable from it, without itself."""
        reach = [0] * len(self.nodes)
        for index in range(len(self.nodes) - 1, -1, -1):
            bits = 0
            for user in self.users[index]:
                bits |= reach[user] | 1 << user
            reach[index] = bits
        return tuple(map(NodeSet, reach))

    @cached_property
    def upstream(self) -> tuple[NodeSet, ...]:
        """Returns, for each node, the set of nodes from which it is reachable, without itself."""
        reach = [0] * len(self.nodes)
        for node in self.nodes:
            bits = 0
            for source in node.inputs:
                bits |= reach[source] | 1 << source
            reach[node.index] = bits
        return tuple(map(NodeSet, reach))

    @cached_property
    def operators(self) -> tuple[NodeIndex, ...]:
        """Returns the node index of each operator, by operator number; operators are the calls."""
        return tuple(n.index for n in self.nodes if n.form == "call")

    @cached_property
    def operator_number(self) -> dict[NodeIndex, OperatorNumber]:
        """Return the operator number of each call's node index."""
        return {index: OperatorNumber(number) for number, index in enumerate(self.operators)}

    @cached_property
    def output_set(self) -> NodeSet:
        """Returns the nodes whose value leaves the function."""
        return node_set(self.record.outputs)

    def to_indices(self, numbers: Iterable[OperatorNumber]) -> NodeSet:
        """Return the calls with these operator numbers, without the glue between them."""
        return node_set(self.operators[number] for number in numbers)

    def to_operators(self, nodes: NodeSet) -> tuple[OperatorNumber, ...]:
        """Return the operator numbers, ascending, of the calls in a set of nodes."""
        number = self.operator_number
        return tuple(number[i] for i in members(nodes) if i in number)

    def close(self, nodes: NodeSet) -> NodeSet:
        """Return a set of calls with the glue that it needs so that no tuple crosses its border.

        Tuples read inside, projections of tuples made inside, and constants read only through them
        are added; glue may belong to several candidates, only calls are covered once. Constants
        read by calls inside are added too: weights are bound.
        """
        closed = int(nodes)
        for index in members(nodes):
            node = self.nodes[index]
            for source in node.inputs:
                self_node = self.nodes[source]
                if self_node.form == "tuple":
                    closed |= 1 << source
                    for field in self_node.inputs:
                        if self.nodes[field].form == "constant":
                            closed |= 1 << field
                elif self_node.form == "constant":
                    closed |= 1 << source
            if node.is_tuple:
                for user in self.users[index]:
                    if self.nodes[user].form == "projection":
                        closed |= 1 << user
        return NodeSet(closed)

    def producer(self, index: NodeIndex) -> NodeIndex:
        """Return the call (or parameter, or constant) behind a projection; the node itself else."""
        node = self.nodes[index]
        while node.form == "projection":
            node = self.nodes[node.inputs[0]]
        return node.index

    def boundary(self, nodes: NodeSet) -> tuple[tuple[NodeIndex, ...], tuple[NodeIndex, ...]]:
        """Return the tensor values that cross the border of a closed set.

        Args:
            nodes: A set that ``close`` returned.

        Returns:
            Two tuples of node indices, each ascending: the inputs, which are parameters, calls and
            projections outside that are read inside; and the outputs, which are calls and
            projections inside whose value is read outside or leaves the function.
        """
        bits = int(nodes)
        reads: set[NodeIndex] = set()
        gives: set[NodeIndex] = set()
        for index in members(nodes):
            node = self.nodes[index]
            for source in node.inputs:
                if not bits >> source & 1:
                    reads.add(source)
            if node.form in ("call", "projection") and not node.is_tuple:
                used_outside = self.output_set >> index & 1
                for user in self.users[index]:
                    if not bits >> user & 1:
                        used_outside = 1
                    elif self.nodes[user].form == "tuple":
                        # A tuple inside may also be read by a call outside; the field leaves then.
                        used_outside |= any(
                            not bits >> reader & 1 for reader in self.users[user]
                        ) or bool(self.output_set >> user & 1)
                if used_outside:
                    gives.add(index)
        return tuple(sorted(reads)), tuple(sorted(gives))
