"""Defines the dataflow graph: the model's records, and what every rule asks of them.

Reachability is one bit set per operator, so convexity and cycle questions are a few integer
operations (Collage's ``DataflowGraph::downstream_map_``, TVM v0.18, ``dataflow_graph.h``).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from collage_engine.records.graph import (
    GraphRecord,
    Node,
    OperatorNumber,
    OperatorSet,
    Value,
    ValueIndex,
    first,
    members,
    operator_set,
)


class DataflowGraph:
    """A graph of operators in topological order, with what each reads, feeds and can reach.

    Attributes:
        nodes: The operators, by operator number.
        values: All values, by index.
        inputs: By operator number the operators whose values an operator reads, each once.
        leaving: The operators with a value that leaves the model.
    """

    def __init__(self, record: GraphRecord) -> None:
        self.record = record
        self.nodes: tuple[Node, ...] = record.nodes
        self.values: tuple[Value, ...] = record.values
        if any(value.index != index for index, value in enumerate(self.values)):
            raise ValueError("two values have one index, or there is none of an index")
        self.inputs: tuple[tuple[OperatorNumber, ...], ...] = tuple(record.operator_inputs())
        for position, node in enumerate(self.nodes):
            if node.index != position or node.results[0].index != position:
                raise ValueError(f"operator {position} has another number, or its first result has")
            if any(source >= position for source in self.inputs[position]):
                raise ValueError(f"operator {position} is not in topological order")
        self.leaving = operator_set(record.producers(record.outputs))

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def operators(self) -> tuple[OperatorNumber, ...]:
        """Return the numbers of all operators."""
        return tuple(node.index for node in self.nodes)

    @cached_property
    def everything(self) -> OperatorSet:
        """Return the set of all operators."""
        return (1 << len(self.nodes)) - 1

    # Values

    @cached_property
    def readers(self) -> tuple[tuple[OperatorNumber, ...], ...]:
        """Return the operators that read each value, ascending and each once, by value index."""
        readers: list[list[OperatorNumber]] = [[] for _ in self.values]
        for node in self.nodes:
            for index in dict.fromkeys(node.inputs):
                readers[index].append(node.index)
        return tuple(map(tuple, readers))

    @cached_property
    def leaving_values(self) -> frozenset[ValueIndex]:
        """Return the values that leave the model."""
        return frozenset(self.record.outputs)

    def is_used(self, index: ValueIndex) -> bool:
        """Tell whether a value is read by an operator or leaves the model."""
        return bool(self.readers[index]) or index in self.leaving_values

    def operator_of(self, index: int) -> Node | None:
        """Return the operator that computes a value; None of a parameter or constant."""
        producer = self.values[index].producer
        return None if producer is None else self.nodes[producer]

    def used_results(self, operator: OperatorNumber) -> tuple[ValueIndex, ...]:
        """Return the results of an operator that are read or leave the model."""
        return tuple(index for index in self.nodes[operator].outputs if self.is_used(index))

    def boundary(
        self, operators: OperatorSet
    ) -> tuple[tuple[ValueIndex, ...], tuple[ValueIndex, ...]]:
        """Return the values that cross the border of a set of operators.

        Returns:
            The inputs, which are parameters and results of operators outside that are read inside;
            and the outputs, which are results of operators inside that are read outside or leave
            the model. Both ascend.
        """
        reads: set[ValueIndex] = set()
        gives: list[ValueIndex] = []
        for operator in members(operators):
            for index in self.nodes[operator].inputs:
                value = self.values[index]
                outside = value.producer is None or not operators >> value.producer & 1
                if outside and not value.constant:
                    reads.add(index)
            gives += (i for i in self.nodes[operator].outputs if self.leaves(i, operators))
        return tuple(sorted(reads)), tuple(sorted(gives))

    def leaves(self, index: ValueIndex, operators: OperatorSet) -> bool:
        """Tell whether a value is read outside a set of operators, or leaves the model."""
        if index in self.leaving_values:
            return True
        return any(not operators >> reader & 1 for reader in self.readers[index])

    def constants_of(self, operators: OperatorSet) -> tuple[ValueIndex, ...]:
        """Return the constants that some operators read, ascending."""
        read = {i for operator in members(operators) for i in self.nodes[operator].inputs}
        return tuple(sorted(index for index in read if self.values[index].constant))

    @cached_property
    def given(self) -> OperatorSet:
        """Return the operators that read a parameter, or a constant that is no scalar."""
        return operator_set(
            node.index
            for node in self.nodes
            for value in map(self.values.__getitem__, node.inputs)
            if value.producer is None and not (value.constant and value.type.shape == ())
        )

    # Reachability

    @cached_property
    def users(self) -> tuple[tuple[OperatorNumber, ...], ...]:
        """Return the operators that read values of each operator, ascending and each once."""
        users: list[list[OperatorNumber]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for source in self.inputs[node.index]:
                users[source].append(node.index)
        return tuple(map(tuple, users))

    @cached_property
    def downstream(self) -> tuple[OperatorSet, ...]:
        """Return the operators strictly reachable from each."""
        reach = [0] * len(self.nodes)
        for operator in range(len(self.nodes) - 1, -1, -1):
            bits = 0
            for user in self.users[operator]:
                bits |= reach[user] | 1 << user
            reach[operator] = bits
        return tuple(map(OperatorSet, reach))

    @cached_property
    def upstream(self) -> tuple[OperatorSet, ...]:
        """Return the operators from which each is strictly reachable."""
        reach: list[int] = []
        for sources in self.inputs:
            bits = 0
            for source in sources:
                bits |= reach[source] | 1 << source
            reach.append(bits)
        return tuple(map(OperatorSet, reach))

    def exits(self, operators: OperatorSet) -> tuple[OperatorNumber, ...]:
        """Return the operators inside a set with a value that is read outside or leaves the model.

        They ascend.
        """
        return tuple(
            o
            for o in members(operators)
            if self.leaving >> o & 1 or any(not operators >> u & 1 for u in self.users[o])
        )

    def is_closed(self, operators: OperatorSet, root: OperatorNumber) -> bool:
        """Tell whether only the values of ``root`` leave a set, which is convex then."""
        return not any(operator != root for operator in self.exits(operators))

    def convex(self, operators: OperatorSet) -> bool:
        """Tell whether no path leaves the set and comes back."""
        users = {user for operator in members(operators) for user in self.users[operator]}
        return not any(
            self.downstream[user] & operators for user in users if not operators >> user & 1
        )

    def components(self, operators: OperatorSet) -> list[OperatorSet]:
        """Return the connected pieces of a set, by first operator."""
        import networkx as nx  # takes 0.2 s to import

        graph: nx.Graph[OperatorNumber] = nx.Graph()
        for operator in members(operators):
            graph.add_node(operator)
            inside = (s for s in self.inputs[operator] if operators >> s & 1)
            graph.add_edges_from((source, operator) for source in inside)
        return sorted(map(operator_set, nx.connected_components(graph)), key=first)

    # Whole ONNX nodes

    @cached_property
    def atoms(self) -> dict[OperatorNumber, OperatorSet]:
        """Return the operators of each ONNX node that has several, by each of these operators.

        Only one candidate together can hold them.
        """
        groups: dict[int, OperatorSet] = {}
        for node in self.nodes:
            if node.onnx_node >= 0:
                known = groups.get(node.onnx_node, 0)
                groups[node.onnx_node] = known | 1 << node.index
        together = self._inseparable(groups.values())
        return {o: bits for bits in together for o in members(bits) if bits.bit_count() > 1}

    def whole(self, groups: Iterable[OperatorSet]) -> list[OperatorSet]:
        """Return disjoint sets of all operators that keep some groups, and all atoms, together.

        They come by their first operators. No two of them depend on each other in a circle, so each
        is convex.

        Args:
            groups: Sets of operators, which may overlap.
        """
        return self._inseparable([*groups, *set(self.atoms.values())])

    def _inseparable(self, groups: Iterable[OperatorSet]) -> list[OperatorSet]:
        """Return the finest sets without cycles between them of which each group is in one.

        They are the strongly connected components of the operators' graph with an edge back from
        each member of a group to the one before it, so that what lies between them is inside, too.
        """
        several = [tuple(members(group)) for group in groups if group.bit_count() > 1]
        if not several:
            return [1 << operator for operator in members(self.everything)]
        import networkx as nx  # takes 0.2 s to import

        graph: nx.DiGraph[OperatorNumber] = nx.DiGraph()
        graph.add_nodes_from(members(self.everything))
        for user, sources in enumerate(self.inputs):
            graph.add_edges_from((source, user) for source in sources)
        for ring in several:
            graph.add_edges_from(zip(ring, (*ring[1:], ring[0]), strict=True))
        found = map(operator_set, nx.strongly_connected_components(graph))
        return sorted(found, key=first)

    def complete(self, operators: OperatorSet) -> OperatorSet:
        """Return the set with the atoms of its operators completed."""
        completed = operators
        for operator in members(operators) if self.atoms else ():
            completed |= self.atoms.get(operator, 0)
        return completed

    def whole_part(self, operators: OperatorSet) -> OperatorSet:
        """Return the set without the atoms of which it holds a part only."""
        for atom in set(self.atoms.values()):
            if atom & ~operators:
                operators &= ~atom
        return operators
