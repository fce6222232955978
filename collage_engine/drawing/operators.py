"""Gives a graph what a picture of it needs: used inputs and outputs as items, and ONNX nodes.

Edges lead from operator to operator. Graph inputs that are used and graph outputs are items of
their own, so that a picture has a beginning and an end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from collage_engine.records.graph import GraphRecord, ValueIndex
from collage_engine.records.operators import NodeTitles, short_name
from collage_engine.support.text import NAMED


class OperatorGraph:
    """Operators 0…count−1 (operator numbers), then used inputs, then outputs, and their edges."""

    def __init__(self, record: GraphRecord) -> None:
        """Give numbers to what pictures of a dataflow graph show."""
        self.calls, self.count = record.nodes, len(record.nodes)
        self.titles = NodeTitles(self.calls)
        used: dict[ValueIndex, int] = {}
        """The items of the parameters that are used."""

        def sources(values: Iterable[ValueIndex]) -> list[int]:
            """Return the items that make some values, each once."""
            items: dict[int, None] = {}
            for value in map(record.values.__getitem__, values):
                if value.producer is not None:
                    items[value.producer] = None
                elif not value.constant:
                    items[used.setdefault(value.index, self.count + len(used))] = None
            return list(items)

        edges: list[tuple[int, int]] = []
        for call in self.calls:
            edges += [(source, call.index) for source in sources(call.inputs)]
        leaving = [sources([index]) for index in record.outputs]
        self.inputs = tuple(record.values[index] for index in used)
        names = [call.name or f"{call.op}#{item}" for item, call in enumerate(self.calls)]
        names += [value.name for value in self.inputs]
        for place, items in enumerate(leaving):
            edges += [(source, len(names)) for source in items]
            known = place < len(record.output_names)
            names.append(record.output_names[place] if known else f"output {place}")
        self.names = tuple(names)
        """The names of all items in the user's file."""
        self.edges = tuple(edges)
        """Pairs of items, without duplicates, ordered by target."""
        held: dict[int, list[int]] = {}
        for operator, number in enumerate(record.node_of_operator):
            held.setdefault(number, []).append(operator)
        self.nodes = tuple(map(tuple, held.values()))
        """The operators of each ONNX node; the nodes come by their first operators."""
        place_of = {number: place for place, number in enumerate(held)}
        self.node_of = tuple(map(place_of.__getitem__, record.node_of_operator))
        """The place in ``nodes`` of each operator's node."""

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
