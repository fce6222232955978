"""Builds dataflow graphs for tests from records, without TVM and ONNX."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import GraphRecord, Node, OpKind, TensorType, Value
from collage_engine.records.operators import OPERATORS
from collage_engine.records.toolchain import ToolchainInstance


class GraphBuilder:
    """Adds operators in order; methods return the number of the operator, or a value's handle.

    Both are plain numbers here, which tests calculate with: hence so much that is ``Any``.

    Parameters, constants and further results have negative handles until the graph is built: their
    indices are behind the operators'.
    """

    def __init__(self, shape: Sequence[int] = (10, 10), dtype: str = "float32") -> None:
        self.nodes: list[Node] = []
        self.default = TensorType(tuple(shape), dtype)
        self.others: list[Value] = []

    def _type(self, shape: Sequence[int] | None, dtype: str | None) -> TensorType:
        return TensorType(
            self.default.shape if shape is None else tuple(shape), dtype or self.default.dtype
        )

    def type(self, handle: int) -> TensorType:
        """Returns the type of a value."""
        return self.nodes[handle].type if handle >= 0 else self.others[-1 - handle].type

    def _other(self, **fields: Any) -> int:
        index: Any = -1 - len(self.others)
        self.others.append(Value(index=index, **fields))
        return self.others[-1].index

    def parameter(
        self, name: str = "x", shape: Sequence[int] | None = None, dtype: str | None = None
    ) -> int:
        return self._other(name=name, type=self._type(shape, dtype))

    def constant(
        self,
        shape: Sequence[int] = (),
        name: str = "",
        dtype: str | None = None,
        largest: int | None = None,
    ) -> int:
        kind = self._type(shape, dtype)
        return self._other(name=name, type=kind, constant=True, largest=largest)

    def call(
        self,
        op: str,
        *inputs: Any,
        shape: Sequence[int] | None = None,
        kind: OpKind | None = None,
        name: str = "",
        results: int = 1,
        dtype: str | None = None,
        **attributes: Any,
    ) -> int:
        index: Any = len(self.nodes)
        kind_of_value = self._type(shape, dtype)
        made = [Value(index=index, type=kind_of_value, producer=index)]
        for _ in range(results - 1):
            self._other(type=kind_of_value, producer=index)
            made.append(self.others[-1])
        self.nodes.append(
            Node(
                index=index,
                op=op,
                inputs=inputs,
                results=tuple(made),
                kind=kind or (OPERATORS[op].kind if op in OPERATORS else "opaque"),
                name=name,
                attributes=attributes,
            )
        )
        return index

    def result(self, operator: int, place: int) -> int:
        """Returns the handle of one of an operator's results."""
        return self.nodes[operator].results[place].index

    def index(self, handle: int) -> Any:
        """Returns the index that a value has in the built graph."""
        return handle if handle >= 0 else len(self.nodes) - 1 - handle

    def build(self, *outputs: int) -> DataflowGraph:
        def final(value: Value) -> Value:
            return msgspec.structs.replace(value, index=self.index(value.index))

        nodes = [
            msgspec.structs.replace(
                node,
                inputs=tuple(map(self.index, node.inputs)),
                results=tuple(map(final, node.results)),
            )
            for node in self.nodes
        ]
        given = [final(value) for value in self.others if value.producer is None]
        return DataflowGraph(
            GraphRecord(
                nodes=tuple(nodes),
                parameters=tuple(value for value in given if not value.constant),
                constants=tuple(value for value in given if value.constant),
                outputs=tuple(map(self.index, outputs)),
            )
        )


def operator(number: Any, op: str, *inputs: Any, kind: OpKind = "opaque", **fields: Any) -> Node:
    """Returns an operator with one result of four floats; ``type`` may name another type."""
    of_result = fields.pop("type", TensorType((1, 4), "float32"))
    result = Value(index=number, type=of_result, producer=number)
    return Node(index=number, op=op, inputs=inputs, results=(result,), kind=kind, **fields)


def record_of(*nodes: Node, parameters: Sequence[str] = ()) -> GraphRecord:
    """Returns a record without outputs, whose parameters are not read."""
    kind = TensorType((1, 4), "float32")
    first: Any = len(nodes)
    given = (Value(index=first + at, type=kind, name=n) for at, n in enumerate(parameters))
    return GraphRecord(nodes=nodes, parameters=tuple(given), outputs=())


def instance(name: str, **config: str) -> ToolchainInstance:
    return ToolchainInstance(toolchain=name, config=tuple(sorted(config.items())))


def chain(*ops: str) -> DataflowGraph:
    """Returns a graph of unary operators one after the other."""
    b = GraphBuilder()
    value = b.parameter()
    for op in ops:
        value = b.call(op, value)
    return b.build(value)


def conv_block(b: GraphBuilder, x: int, channels: int = 64, relu: bool = True) -> int:
    """Adds conv2d + bias (+ relu), as the importer leaves them; returns the last node."""
    weight = b.constant((channels, 64, 3, 3))
    y = b.call("nn.conv2d", x, weight, strides=[1, 1])
    y = b.call("add", y, b.constant((1, channels, 1, 1)))
    return b.call("nn.relu", y) if relu else y


def resnet(blocks: int = 16) -> DataflowGraph:
    """Returns bottleneck residual blocks of 10 or 12 operators; 16 make about ResNet-50."""
    b = GraphBuilder((1, 64, 56, 56))
    x = conv_block(b, b.parameter("data"))
    x = b.call("nn.max_pool2d", x)
    for number in range(blocks):
        y = conv_block(b, conv_block(b, x))
        y = conv_block(b, y, relu=False)
        skip = conv_block(b, x, relu=False) if number % 4 == 0 else x
        x = b.call("nn.relu", b.call("add", y, skip))
    x = b.call("mean", x, shape=(1, 64))
    x = b.call("reshape", x, shape=(1, 64))
    x = b.call("matmul", x, b.constant((64, 1000)), shape=(1, 1000))
    return b.build(b.call("add", x, b.constant((1000,)), shape=(1, 1000)))


def random_graph(rng: random.Random, operators: int = 8, lists: bool = True) -> DataflowGraph:
    """Returns a random graph of operators; with ``lists`` some take or give several values."""
    b = GraphBuilder()
    values = [b.parameter("x")]
    if rng.random() < 0.3:
        values.append(b.parameter("y"))
    made = 0
    while made < operators:
        choice = rng.random()
        recent = values[-4:]
        if lists and choice < 0.1:
            values.append(b.call("concat", *(rng.choice(values) for _ in range(rng.randint(1, 3)))))
        elif lists and choice < 0.2:
            split = b.call("split", rng.choice(recent), results=2)
            used = [0, 1] if rng.random() < 0.7 else [rng.randrange(2)]
            values.extend(b.result(split, place) for place in used)
        elif choice < 0.5:
            op = rng.choice(["add", "multiply"])
            values.append(b.call(op, rng.choice(recent), rng.choice(values)))
        elif choice < 0.6:
            values.append(b.call("nn.conv2d", rng.choice(recent), b.constant((3, 3))))
        else:
            op = rng.choice(["nn.relu", "abs", "reshape", "mean", "cumsum", "tanh"])
            values.append(b.call(op, rng.choice(recent)))
        made += 1
    read = {i for n in b.nodes for i in n.inputs}
    outputs: list[int] = [n.index for n in b.nodes if not read.intersection(n.outputs)]
    if rng.random() < 0.2:
        extra = rng.choice(values)
        if extra >= 0 and extra not in outputs:
            outputs.append(extra)
    return b.build(*(outputs or [values[-1]]))
