"""Builds dataflow graphs for tests from records, without TVM and ONNX."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import GraphRecord, Node, OpKind, TensorType
from collage_engine.records.operators import OPERATORS
from collage_engine.records.toolchain import ToolchainInstance


class GraphBuilder:
    """Adds nodes in order; each method returns the node's index."""

    def __init__(self, shape: Sequence[int] = (10, 10), dtype: str = "float32") -> None:
        self.nodes: list[Node] = []
        self.default = TensorType(tuple(shape), dtype)
        self.inputs: list[int] = []

    def _add(self, **fields: Any) -> int:
        index = len(self.nodes)
        self.nodes.append(Node(index=index, **fields))
        return index

    def _type(self, shape: Sequence[int] | None) -> TensorType:
        return self.default if shape is None else TensorType(tuple(shape), self.default.dtype)

    def parameter(self, name: str = "x", shape: Sequence[int] | None = None) -> int:
        index = self._add(form="parameter", name=name, types=(self._type(shape),))
        self.inputs.append(index)
        return index

    def constant(self, shape: Sequence[int] = (), name: str = "") -> int:
        kind = TensorType(tuple(shape), self.default.dtype)
        return self._add(form="constant", name=name, types=(kind,), scalar=not shape)

    def call(
        self,
        op: str,
        *inputs: int,
        shape: Sequence[int] | None = None,
        kind: OpKind | None = None,
        name: str = "",
        fields: int = 0,
        **attributes: Any,
    ) -> int:
        types = (self._type(shape),) * (fields or 1)
        return self._add(
            form="call",
            op=op,
            inputs=inputs,
            types=types,
            kind=kind or (OPERATORS[op].kind if op in OPERATORS else "opaque"),
            name=name,
            attributes=attributes,
            is_tuple=fields > 0,
        )

    def tuple(self, *inputs: int) -> int:
        types = tuple(self.nodes[i].types[0] for i in inputs)
        return self._add(form="tuple", inputs=inputs, types=types, is_tuple=True)

    def projection(self, source: int, field: int) -> int:
        return self._add(
            form="projection",
            inputs=(source,),
            field=field,
            types=(self.nodes[source].types[field],),
        )

    def build(self, *outputs: int) -> DataflowGraph:
        return DataflowGraph(
            GraphRecord(nodes=tuple(self.nodes), inputs=tuple(self.inputs), outputs=outputs)
        )


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


def random_graph(rng: random.Random, operators: int = 8, glue: bool = True) -> DataflowGraph:
    """Returns a random graph of unary, binary and, with ``glue``, tuple operators."""
    b = GraphBuilder()
    values = [b.parameter("x")]
    if rng.random() < 0.3:
        values.append(b.parameter("y"))
    made = 0
    while made < operators:
        choice = rng.random()
        recent = values[-4:]
        if glue and choice < 0.1:
            fields = [rng.choice(values) for _ in range(rng.randint(1, 3))]
            values.append(b.call("concat", b.tuple(*fields)))
        elif glue and choice < 0.2:
            split = b.call("split", rng.choice(recent), fields=2)
            used = [0, 1] if rng.random() < 0.7 else [rng.randrange(2)]
            if rng.random() < 0.2:  # Its tuple is also read as it is.
                values.append(b.call("stack", split, rng.choice(values)))
            values.extend(b.projection(split, f) for f in used)
        elif choice < 0.5:
            op = rng.choice(["add", "multiply"])
            values.append(b.call(op, rng.choice(recent), rng.choice(values)))
        elif choice < 0.6:
            values.append(b.call("nn.conv2d", rng.choice(recent), b.constant((3, 3))))
        else:
            op = rng.choice(["nn.relu", "abs", "reshape", "mean", "cumsum", "tanh"])
            values.append(b.call(op, rng.choice(recent)))
        made += 1
    used = {i for n in b.nodes for i in n.inputs}
    outputs = [
        n.index
        for n in b.nodes
        if n.form in ("call", "projection") and n.index not in used and not n.is_tuple
    ]
    if rng.random() < 0.2:
        extra = rng.choice(values)
        if b.nodes[extra].form != "parameter" and extra not in outputs:
            outputs.append(extra)
    return b.build(*(outputs or [values[-1]]))
