"""The graph of operator calls, without what lies between them.

Edges lead from call to call through constants, tuples and projections. Graph inputs that are used
and graph outputs are items of their own, so that a picture has a beginning and an end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from collage_engine.drawing.formatting import short_operator
from collage_engine.records.graph import GraphRecord, Node
from collage_engine.records.numbering import NodeIndex

ONNX_TYPES = {
    "nn.conv1d": "Conv",
    "nn.conv2d": "Conv",
    "nn.conv3d": "Conv",
    "nn.conv1d_transpose": "ConvTranspose",
    "nn.conv2d_transpose": "ConvTranspose",
    "nn.max_pool1d": "MaxPool",
    "nn.max_pool2d": "MaxPool",
    "nn.max_pool3d": "MaxPool",
    "nn.avg_pool1d": "AveragePool",
    "nn.avg_pool2d": "AveragePool",
    "nn.avg_pool3d": "AveragePool",
    "nn.adaptive_avg_pool2d": "GlobalAveragePool",
    "nn.batch_norm": "BatchNormalization",
    "nn.layer_norm": "LayerNormalization",
    "nn.group_norm": "GroupNormalization",
    "nn.instance_norm": "InstanceNormalization",
    "nn.relu": "Relu",
    "nn.leakyrelu": "LeakyRelu",
    "nn.prelu": "PRelu",
    "nn.gelu": "Gelu",
    "nn.silu": "Silu",
    "nn.softmax": "Softmax",
    "nn.log_softmax": "LogSoftmax",
    "nn.softplus": "Softplus",
    "nn.dropout": "Dropout",
    "nn.pad": "Pad",
    "nn.attention": "Attention",
    "matmul": "MatMul",
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "power": "Pow",
    "maximum": "Max",
    "minimum": "Min",
    "negative": "Neg",
    "abs": "Abs",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "log": "Log",
    "erf": "Erf",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "clip": "Clip",
    "mean": "ReduceMean",
    "sum": "ReduceSum",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "argmax": "ArgMax",
    "argmin": "ArgMin",
    "reshape": "Reshape",
    "flatten": "Flatten",
    "permute_dims": "Transpose",
    "expand_dims": "Unsqueeze",
    "squeeze": "Squeeze",
    "concat": "Concat",
    "split": "Split",
    "strided_slice": "Slice",
    "take": "Gather",
    "astype": "Cast",
    "where": "Where",
    "tile": "Tile",
    "broadcast_to": "Expand",
    "image.resize2d": "Resize",
    "cumsum": "CumSum",
}
"""Relax operator → the ONNX operator that people know it as."""
_KINDS_NAMED = 3
"""Kinds of operators that the name of a group lists; chosen."""
_OPERATORS_NAMED = 4
"""Operators that the label of a partition names; chosen."""


@dataclass(frozen=True)
class OperatorGraph:
    """Operators 0…count−1 (operator numbers), then used inputs, then outputs, and their edges."""

    calls: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    """(item, item), without duplicates, ordered by target."""
    number: dict[NodeIndex, int] = field(repr=False)
    """Node index → operator number, calls only."""
    predecessors: tuple[tuple[int, ...], ...] = field(repr=False)
    successors: tuple[tuple[int, ...], ...] = field(repr=False)

    @property
    def count(self) -> int:
        """How many operators there are."""
        return len(self.calls)

    @property
    def items(self) -> int:
        """How many operators, used inputs and outputs there are."""
        return len(self.calls) + len(self.inputs) + len(self.outputs)

    def name(self, item: int) -> str:
        """The name of an item in the user's file."""
        if item < self.count:
            call = self.calls[item]
            return call.name or f"{call.op}#{item}"
        item -= self.count
        if item < len(self.inputs):
            return self.inputs[item].name
        return self.outputs[item - len(self.inputs)]

    def title(self, operator: int) -> str:
        """What an operator is in the user's file: ``Conv``, ``Conv bias``, ``Relu``.

        Where an addition came from the same ONNX node as the product before it, it is that
        node's bias. An operator that ONNX does not have keeps its internal name.
        """
        call = self.calls[operator]
        if call.op == "add" and call.onnx_nodes:
            for at in self.predecessors[operator]:
                if at < self.count and set(self.calls[at].onnx_nodes) & set(call.onnx_nodes):
                    product = ONNX_TYPES.get(self.calls[at].op)
                    if product in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
                        return f"{product} bias"
        return ONNX_TYPES.get(call.op) or short_operator(call.op)

    def content(self, operators: Sequence[int]) -> str:
        """The operators of a group in short, the most frequent first: ``Conv ×9, Add ×8``."""
        counts = Counter(self.title(n) for n in operators if n < self.count)
        named = counts.most_common(_KINDS_NAMED)
        return ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in named)

    def label(self, operators: Sequence[int]) -> str:
        """The operators of a partition in short: ``conv2d+add+relu``, ``divide+… (23)``."""
        names = [short_operator(self.calls[n].op) for n in operators if n < self.count]
        more = f"… ({len(names)})" if len(names) > _OPERATORS_NAMED else ""
        return "+".join(names[:_OPERATORS_NAMED]) + more

    def producers(self, operator: int) -> tuple[int, ...]:
        """The operators whose values an operator reads."""
        return tuple(i for i in self.predecessors[operator] if i < self.count)

    def consumers(self, operator: int) -> tuple[int, ...]:
        """The operators that read an operator's values."""
        return tuple(i for i in self.successors[operator] if i < self.count)


def operator_graph(graph: GraphRecord) -> OperatorGraph:
    """Reduce a dataflow graph to its operator calls."""
    nodes = graph.nodes
    calls = tuple(node for node in nodes if node.form == "call")
    number = {node.index: at for at, node in enumerate(calls)}
    sources: dict[NodeIndex, tuple[NodeIndex, ...]] = {}
    used_inputs: dict[NodeIndex, int] = {}

    def sources_of(inputs: Sequence[NodeIndex]) -> tuple[NodeIndex, ...]:
        reached: dict[NodeIndex, None] = {}
        for index in inputs:
            for source in sources[index]:
                reached[source] = None
        return tuple(reached)

    # Nodes come in post-DFS order, so that every producer is known before its users; sources
    # are node indices of calls and parameters here.
    raw: list[tuple[NodeIndex, NodeIndex]] = []
    for node in nodes:
        if node.form in ("call", "parameter"):
            sources[node.index] = (node.index,)
            if node.form == "call":
                raw.extend((s, node.index) for s in sources_of(node.inputs))
        elif node.form in ("tuple", "projection"):
            sources[node.index] = sources_of(node.inputs)
        else:
            sources[node.index] = ()

    by_index = {node.index: node for node in nodes}
    output_sources = [sources[index] for index in graph.outputs]
    for source in [s for s, _ in raw] + [s for reached in output_sources for s in reached]:
        if source not in number and source not in used_inputs:
            used_inputs[source] = len(used_inputs)
    inputs = tuple(by_index[index] for index in used_inputs)
    count = len(calls)

    def item(index: NodeIndex) -> int:
        return number[index] if index in number else count + used_inputs[index]

    edges = [(item(a), item(b)) for a, b in raw]
    names = tuple(
        graph.output_names[at] if at < len(graph.output_names) else f"output {at}"
        for at in range(len(graph.outputs))
    )
    for at, reached in enumerate(output_sources):
        edges.extend((item(source), count + len(inputs) + at) for source in reached)
    total = count + len(inputs) + len(names)
    before: list[list[int]] = [[] for _ in range(total)]
    after: list[list[int]] = [[] for _ in range(total)]
    for a, b in edges:
        before[b].append(a)
        after[a].append(b)
    return OperatorGraph(
        calls=calls,
        inputs=inputs,
        outputs=names,
        edges=tuple(edges),
        number=number,
        predecessors=tuple(map(tuple, before)),
        successors=tuple(map(tuple, after)),
    )
