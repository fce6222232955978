"""Links the operators of a dataflow graph, glue (tuples, projections) dissolved.

Regions, greedy partitions, blocks and every closed candidate are sets of operators; here they
are bit sets over operator numbers, a third as long as those over nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import (
    NO_OPERATORS,
    NodeSet,
    OperatorNumber,
    OperatorSet,
    first,
    members,
    node_set,
    one_operator,
    operator_set,
)


class CallGraph:
    """Operators, numbered 0…N−1 in topological order, with the operators they read and feed."""

    def __init__(self, graph: DataflowGraph) -> None:
        self.graph = graph
        number = graph.operator_number
        self.size = len(graph.operators)
        behind: list[tuple[OperatorNumber, ...]] = []
        """Operators whose value a node hands on: itself, or those behind a glue node."""
        inputs: list[tuple[OperatorNumber, ...]] = []
        for node in graph.nodes:
            if node.form == "call":
                inputs.append(tuple(dict.fromkeys(o for s in node.inputs for o in behind[s])))
                behind.append((number[node.index],))
            elif node.form in ("tuple", "projection"):
                behind.append(tuple(dict.fromkeys(o for s in node.inputs for o in behind[s])))
            else:
                behind.append(())
        self.inputs: tuple[tuple[OperatorNumber, ...], ...] = tuple(inputs)
        users: list[list[OperatorNumber]] = [[] for _ in range(self.size)]
        for operator, sources in enumerate(inputs):
            for source in sources:
                users[source].append(OperatorNumber(operator))
        self.users: tuple[tuple[OperatorNumber, ...], ...] = tuple(map(tuple, users))
        self.leaving = operator_set(o for output in graph.record.outputs for o in behind[output])
        """Operators whose value leaves the function."""
        self.everything = OperatorSet((1 << self.size) - 1)

    @cached_property
    def downstream(self) -> tuple[OperatorSet, ...]:
        """Return the operators strictly reachable from each."""
        reach = [0] * self.size
        for operator in range(self.size - 1, -1, -1):
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

    def neighbours(self, operator: OperatorNumber) -> tuple[OperatorNumber, ...]:
        """Return the operators that an operator reads, then those that read it."""
        return self.inputs[operator] + self.users[operator]

    def border_users(self, operators: OperatorSet) -> set[OperatorNumber]:
        """Return the operators outside that read one inside."""
        return {
            user
            for operator in members(operators)
            for user in self.users[operator]
            if not operators >> user & 1
        }

    def exits(self, operators: OperatorSet) -> tuple[OperatorNumber, ...]:
        """Return the operators inside whose value is read outside or leaves the function."""
        return tuple(
            o
            for o in members(operators)
            if self.leaving >> o & 1 or any(not operators >> u & 1 for u in self.users[o])
        )

    def convex(self, operators: OperatorSet) -> bool:
        """Tell whether no path leaves the set and comes back."""
        return not any(self.downstream[u] & operators for u in self.border_users(operators))

    def component(self, seed: OperatorSet, within: OperatorSet) -> OperatorSet:
        """Return all operators that are connected to some of them through a set.

        Args:
            seed: The operators to start from.
            within: The set that connections may run through.
        """
        found = int(seed)
        work = list(members(seed))
        while work:
            for other in self.neighbours(work.pop()):
                if within >> other & 1 and not found >> other & 1:
                    found |= 1 << other
                    work.append(other)
        return OperatorSet(found)

    def components(self, operators: OperatorSet) -> list[OperatorSet]:
        """Return the connected pieces of a set, by first operator."""
        pieces: list[OperatorSet] = []
        rest = operators
        while rest:
            piece = self.component(one_operator(first(rest)), rest)
            pieces.append(piece)
            rest &= ~piece
        return pieces

    @cached_property
    def atoms(self) -> dict[OperatorNumber, OperatorSet]:
        """Return the sets of operators that only one candidate together can hold, by operator.

        The operators of an ONNX node stay together. So do a call that returns a tuple and a call
        that reads this tuple unprojected, because a tuple would cross a border. Operators that are
        alone are missing.
        """
        graph, number = self.graph, self.graph.operator_number
        groups: dict[int, OperatorSet] = {}
        for index, operator in number.items():
            node = graph.nodes[index]
            if node.onnx_node >= 0:
                known = groups.get(node.onnx_node, NO_OPERATORS)
                groups[node.onnx_node] = known | one_operator(operator)
            if node.is_tuple:
                readers = [u for u in graph.users[index] if graph.nodes[u].form == "call"]
                groups[-1 - operator] = self.from_nodes(node_set([index, *readers]))
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
            return [one_operator(operator) for operator in members(self.everything)]
        import networkx as nx  # takes 0.2 s to import

        graph: nx.DiGraph[OperatorNumber] = nx.DiGraph()
        graph.add_nodes_from(members(self.everything))
        for user, sources in enumerate(self.inputs):
            graph.add_edges_from((source, user) for source in sources)
        for ring in several:
            graph.add_edges_from(zip(ring, (*ring[1:], ring[0]), strict=True))
        found = map(operator_set, nx.strongly_connected_components(graph))
        return sorted(found, key=first)

    def close(self, operators: OperatorSet) -> OperatorSet:
        """Return the set with the atoms of its operators completed."""
        closed = operators
        for operator in members(operators) if self.atoms else ():
            closed |= self.atoms.get(operator, NO_OPERATORS)
        return closed

    def whole_part(self, operators: OperatorSet) -> OperatorSet:
        """Return the set without the atoms of which it holds a part only."""
        for atom in set(self.atoms.values()):
            if atom & ~operators:
                operators &= ~atom
        return operators

    def from_nodes(self, nodes: NodeSet) -> OperatorSet:
        """Return the calls of an index set, as operator numbers."""
        return operator_set(self.graph.to_operators(nodes))

    def of(self, operators: Iterable[OperatorNumber]) -> OperatorSet:
        """Return the set of these operators."""
        return operator_set(operators)


def call_graph(graph: DataflowGraph) -> CallGraph:
    """Return the call graph of a dataflow graph, made once and kept with it."""
    found = graph.__dict__.get("_call_graph")
    if found is None:
        found = graph.__dict__["_call_graph"] = CallGraph(graph)
    return found
