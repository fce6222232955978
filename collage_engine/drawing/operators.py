"""Gives a graph what a picture of it needs: used inputs and outputs as items, and ONNX nodes.

Edges lead from operator to operator. Graph inputs that are used and graph outputs are items of
their own, so that a picture has a beginning and an end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from collage_engine.records.graph import GraphRecord, Node, Value, ValueIndex, nodes_of
from collage_engine.records.operators import NodeTitles, short_name
from collage_engine.support.text import NAMED


@dataclass(frozen=True)
class OperatorGraph:
    """Operators 0…count−1 (operator numbers), then used inputs, then outputs, and their edges."""

    calls: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    """Pairs of items, without duplicates, ordered by target."""
    titles: NodeTitles = field(repr=False)
    nodes: tuple[tuple[int, ...], ...] = field(repr=False)
    """The operators of each ONNX node; the nodes come by their first operators."""
    node_of: tuple[int, ...] = field(repr=False)
    """The place in ``nodes`` of each operator's node."""

    @property
    def count(self) -> int:
        """Return how many operators there are."""
        return len(self.calls)

    @property
    def items(self) -> int:
        """Return how many operators, used inputs and outputs there are."""
        return len(self.calls) + len(self.inputs) + len(self.outputs)

    def name(self, item: int) -> str:
        """Return the name of an item in the user's file."""
        if item < self.count:
            call = self.calls[item]
            return call.name or f"{call.op}#{item}"
        item -= self.count
        if item < len(self.inputs):
            return self.inputs[item].name
        return self.outputs[item - len(self.inputs)]

    def title(self, operator: int) -> str:
        """Return what an operator is in the user's file: the type of its ONNX node."""
        return self.titles[operator]

    def content(self, operators: Sequence[int]) -> str:
        """Return a group's nodes in short, the most frequent first: ``Conv ×9, Add ×8``."""
        counts = Counter(self.titles.of(n for n in operators if n < self.count))
        named = counts.most_common(NAMED)
        return ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in named)

    def count_nodes(self, operators: Iterable[int]) -> int:
        """Return how many ONNX nodes hold some operators."""
        return len({self.node_of[operator] for operator in operators})

    def whole_nodes(self, operators: Iterable[int]) -> frozenset[int]:
        """Return the operators of all ONNX nodes that hold some operators."""
        held = {self.node_of[operator] for operator in operators}
        return frozenset(operator for node in held for operator in self.nodes[node])

    def label(self, operators: Sequence[int]) -> str:
        """Return the nodes of a partition in short, by ONNX type: ``Conv+Relu``."""
        return self.titles.joined(n for n in operators if n < self.count)

    def label_with_name(self, operators: Sequence[int]) -> str:
        """Return the label with the first operator's name: ``Conv+Relu · layer1.0/conv1``."""
        names = self.onnx_names(operators)
        first = f" · {short_name(names[0])}" if names else ""
        return self.label(operators) + first

    def onnx_names(self, operators: Sequence[int]) -> list[str]:
        """Return the user's names of the ONNX nodes that operators came from, each once."""
        names = (name for n in operators if n < self.count for name in self.calls[n].onnx_nodes)
        return list(dict.fromkeys(names))

    def producers(self, operator: int) -> tuple[int, ...]:
        """Return the operators whose values an operator reads."""
        return tuple(a for a, b in self.edges if b == operator and a < self.count)

    def consumers(self, operator: int) -> tuple[int, ...]:
        """Return the operators that read an operator's values."""
        return tuple(b for a, b in self.edges if a == operator and b < self.count)


def operator_graph(graph: GraphRecord) -> OperatorGraph:
    """Return a dataflow graph as pictures show it."""
    calls, count = graph.nodes, len(graph.nodes)
    used: dict[ValueIndex, int] = {}
    """The items of the parameters that are used."""

    def sources(values: Iterable[ValueIndex]) -> list[int]:
        """Return the items that make some values, each once."""
        items: dict[int, None] = {}
        for value in map(graph.values.__getitem__, values):
            if value.producer is not None:
                items[value.producer] = None
            elif not value.constant:
                items[used.setdefault(value.index, count + len(used))] = None
        return list(items)

    edges: list[tuple[int, int]] = []
    for call in calls:
        edges.extend((source, call.index) for source in sources(call.inputs))
    leaving = [sources([index]) for index in graph.outputs]
    first_output = count + len(used)
    for place, items in enumerate(leaving):
        edges.extend((source, first_output + place) for source in items)
    held: dict[int, list[int]] = {}
    for operator, node_number in enumerate(nodes_of(calls)):
        held.setdefault(node_number, []).append(operator)
    parts = tuple(map(tuple, held.values()))
    node_of = {operator: at for at, operators in enumerate(parts) for operator in operators}
    names = tuple(
        graph.output_names[at] if at < len(graph.output_names) else f"output {at}"
        for at in range(len(graph.outputs))
    )
    return OperatorGraph(
        calls=calls,
        inputs=tuple(graph.values[index] for index in used),
        outputs=names,
        edges=tuple(edges),
        titles=NodeTitles(calls),
        nodes=parts,
        node_of=tuple(node_of[operator] for operator in range(count)),
    )
