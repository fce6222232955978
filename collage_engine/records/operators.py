"""The table of operators, what operators are called, and the work that they do.

The table is what every room but the toolchains knows of a Relax operator. A new operator needs a
row, and a converter (``model/converters.py``) if TVM has none. Operators that no converter makes
have no row, and are opaque. What a toolchain makes of an operator stands with the toolchain.

Operations are those of convolutions and matrix products, computed directly: two for each
multiply-add, those on padding counted. That is how achieved GFLOP/s are usually stated; a toolchain
that convolves by Winograd's method performs fewer, and so may seem to exceed the processor's peak.

Asked by what says which operators a toolchain takes, in processes that load no ONNX.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from collage_engine.records.graph import GraphRecord, Node, OpKind, TensorType, nodes_of
from collage_engine.support.text import NAMED


@dataclass(frozen=True)
class Operator:
    """One row of the table."""

    name: str
    """The Relax operator, without ``relax.``."""
    onnx: str
    """The ONNX operator that people know it as; empty: there is none."""
    kind: OpKind
    """What it may be fused with, as Relay's ``TOpPattern`` had it.

    Kinds that are inferred from TIR are looser (a pool or a softmax comes out as anchor, an add
    with a bias as elementwise), so Relay's are written down (TVM v0.18,
    ``python/tvm/relay/op/_tensor.py``, ``_transform.py``, ``_reduce.py``, ``nn/_nn.py`` and the C++
    registrations). Normalisations, which Relay took apart before it came to kinds, are anchors."""
    kernel: bool = True
    """Whether TVM makes kernels of it, and no library call."""
    loop_kind: OpKind | None = None
    """What Relax infers from the loops of the lowered operator (``AnnotateTIROpPattern`` in TVM
    0.27, observed), where that is not ``kind``: FuseOps goes by it."""
    layout: Literal["", "spatial", "carrier"] = ""
    """``spatial``: its operands and results lie in images' axes N, C, H, W; ``carrier``: its result
    is an image as its operand is, which holds for elementwise and broadcasting ones anyway."""
    work: Literal["", "product", "convolution", "transposed"] = ""
    """How its arithmetic operations are counted (``records.operators``); empty: they are none that
    matter. What has some is what reduced precision may round."""
    takes_list: bool = False
    """Whether its operands are a list of any length, as those of a concatenation are."""


_ROWS = (
    Operator("abs", "Abs", "elementwise"),
    Operator("acos", "Acos", "elementwise"),
    Operator("acosh", "Acosh", "elementwise"),
    Operator("add", "Add", "broadcast"),
    Operator("arange", "", "injective"),
    Operator("argmax", "ArgMax", "reduction", loop_kind="anchor"),
    Operator("argmin", "ArgMin", "reduction", loop_kind="anchor"),
    Operator("asin", "Asin", "elementwise"),
    Operator("asinh", "Asinh", "elementwise"),
    Operator("astype", "Cast", "elementwise"),
    Operator("atan", "Atan", "elementwise"),
    Operator("atanh", "Atanh", "elementwise"),
    Operator("bitwise_and", "BitwiseAnd", "broadcast"),
    Operator("bitwise_not", "BitwiseNot", "elementwise"),
    Operator("bitwise_or", "BitwiseOr", "broadcast"),
    Operator("bitwise_xor", "BitwiseXor", "broadcast"),
    Operator("broadcast_to", "Expand", "broadcast"),
    Operator("ceil", "Ceil", "elementwise"),
    Operator("clip", "Clip", "elementwise", layout="carrier"),
    Operator("concat", "Concat", "injective", layout="carrier", takes_list=True),
    Operator("cos", "Cos", "elementwise"),
    Operator("cosh", "Cosh", "elementwise", kernel=False),
    Operator("cumsum", "CumSum", "opaque", kernel=False),
    Operator("dequantize", "DequantizeLinear", "broadcast"),
    Operator("divide", "Div", "broadcast"),
    Operator("einsum", "Einsum", "anchor"),
    Operator("equal", "Equal", "broadcast"),
    Operator("erf", "Erf", "elementwise"),
    Operator("exp", "Exp", "elementwise"),
    Operator("expand_dims", "Unsqueeze", "broadcast"),
    Operator("eye_like", "", "injective"),
    Operator("flatten", "Flatten", "injective"),
    Operator("flip", "", "injective"),
    Operator("floor", "Floor", "elementwise"),
    Operator("floor_divide", "", "broadcast"),
    Operator("floor_mod", "", "broadcast"),
    Operator("full", "", "elementwise"),
    Operator("gather_elements", "GatherElements", "injective", loop_kind="opaque"),
    Operator("gather_nd", "GatherND", "injective", loop_kind="opaque"),
    Operator("greater", "Greater", "broadcast"),
    Operator("greater_equal", "GreaterOrEqual", "broadcast"),
    Operator("image.affine_grid", "", "injective"),
    Operator("image.grid_sample", "GridSample", "anchor"),
    Operator("image.resize2d", "Resize", "injective", layout="spatial"),
    Operator("image.resize3d", "", "injective"),
    Operator("isfinite", "", "elementwise"),
    Operator("isinf", "IsInf", "elementwise"),
    Operator("isnan", "IsNaN", "elementwise"),
    Operator("left_shift", "", "broadcast"),
    Operator("less", "Less", "broadcast"),
    Operator("less_equal", "LessOrEqual", "broadcast"),
    Operator("log", "Log", "elementwise"),
    Operator("logical_and", "And", "broadcast"),
    Operator("logical_not", "Not", "elementwise"),
    Operator("logical_or", "Or", "broadcast"),
    Operator("logical_xor", "Xor", "broadcast"),
    Operator("matmul", "MatMul", "anchor", work="product"),
    Operator("max", "ReduceMax", "reduction"),
    Operator("maximum", "Max", "broadcast"),
    Operator("mean", "ReduceMean", "reduction", loop_kind="anchor"),
    Operator("min", "ReduceMin", "reduction"),
    Operator("minimum", "Min", "broadcast"),
    Operator("mod", "", "broadcast"),
    Operator("multiply", "Mul", "broadcast"),
    Operator("negative", "Neg", "elementwise"),
    Operator("nn.adaptive_avg_pool1d", "", "anchor"),
    Operator("nn.adaptive_avg_pool2d", "GlobalAveragePool", "anchor", layout="spatial"),
    Operator("nn.adaptive_avg_pool3d", "", "anchor"),
    Operator("nn.attention", "Attention", "opaque"),
    Operator("nn.avg_pool1d", "AveragePool", "anchor"),
    Operator("nn.avg_pool2d", "AveragePool", "anchor", layout="spatial"),
    Operator("nn.avg_pool3d", "AveragePool", "anchor"),
    Operator(
        "nn.batch_norm", "BatchNormalization", "opaque", loop_kind="injective", layout="carrier"
    ),
    Operator("nn.conv1d", "Conv", "anchor", work="convolution"),
    Operator("nn.conv1d_transpose", "ConvTranspose", "anchor", work="transposed"),
    Operator("nn.conv2d", "Conv", "anchor", layout="spatial", work="convolution"),
    Operator("nn.conv2d_transpose", "ConvTranspose", "anchor", layout="spatial", work="transposed"),
    Operator("nn.conv3d", "Conv", "anchor", work="convolution"),
    Operator("nn.conv3d_transpose", "", "anchor", work="transposed"),
    Operator("nn.dropout", "Dropout", "opaque"),
    Operator("nn.gelu", "Gelu", "elementwise"),
    Operator("nn.gelu_tanh", "", "elementwise"),
    Operator("nn.group_norm", "GroupNormalization", "anchor", layout="carrier"),
    Operator("nn.instance_norm", "InstanceNormalization", "anchor", layout="carrier"),
    Operator("nn.layer_norm", "LayerNormalization", "anchor"),
    Operator("nn.leakyrelu", "LeakyRelu", "elementwise"),
    Operator("nn.log_softmax", "LogSoftmax", "anchor", layout="carrier"),
    Operator("nn.max_pool1d", "MaxPool", "anchor"),
    Operator("nn.max_pool2d", "MaxPool", "anchor", layout="spatial"),
    Operator("nn.max_pool3d", "MaxPool", "anchor"),
    Operator("nn.pad", "Pad", "injective", layout="carrier"),
    Operator("nn.prelu", "PRelu", "broadcast", loop_kind="elementwise", layout="carrier"),
    Operator("nn.relu", "Relu", "elementwise"),
    Operator("nn.rms_norm", "", "anchor"),
    Operator("nn.silu", "Silu", "elementwise"),
    Operator("nn.softmax", "Softmax", "anchor", layout="carrier"),
    Operator("nn.softplus", "Softplus", "elementwise"),
    Operator("one_hot", "OneHot", "anchor"),
    Operator("ones_like", "", "elementwise"),
    Operator("permute_dims", "Transpose", "injective"),
    Operator("power", "Pow", "broadcast"),
    Operator("prod", "ReduceProd", "reduction"),
    Operator("quantize", "QuantizeLinear", "broadcast"),
    Operator("reshape", "Reshape", "injective"),
    Operator("reverse_sequence", "ReverseSequence", "injective"),
    Operator("right_shift", "", "broadcast"),
    Operator("round", "Round", "elementwise"),
    Operator("scatter_elements", "ScatterElements", "opaque"),
    Operator("scatter_nd", "ScatterND", "opaque"),
    Operator("sigmoid", "Sigmoid", "elementwise"),
    Operator("sign", "Sign", "elementwise"),
    Operator("sin", "Sin", "elementwise"),
    Operator("sinh", "Sinh", "elementwise", kernel=False),
    Operator("split", "Split", "injective", layout="carrier"),
    Operator("sqrt", "Sqrt", "elementwise"),
    Operator("squeeze", "Squeeze", "injective"),
    Operator("stack", "", "injective", takes_list=True),
    Operator("strided_slice", "Slice", "injective", layout="carrier"),
    Operator("subtract", "Sub", "broadcast"),
    Operator("sum", "ReduceSum", "reduction"),
    Operator("take", "Gather", "injective", loop_kind="opaque"),
    Operator("tan", "Tan", "elementwise"),
    Operator("tanh", "Tanh", "elementwise"),
    Operator("tile", "Tile", "broadcast"),
    Operator("topk", "TopK", "opaque", kernel=False),
    Operator("tril", "", "injective"),
    Operator("triu", "", "injective"),
    Operator("variance", "", "reduction", loop_kind="anchor"),
    Operator("vision.roi_align", "", "anchor", kernel=False),
    Operator("vision.roi_pool", "", "anchor", kernel=False),
    Operator("where", "Where", "broadcast", layout="carrier"),
    Operator("zeros", "", "elementwise"),
    Operator("zeros_like", "", "elementwise"),
)

OPERATORS = {row.name: row for row in _ROWS}
"""The rows by the names of the operators."""


def names_where(**fields: object) -> frozenset[str]:
    """Return the operators whose rows have these values: ``names_where(layout="spatial")``."""
    return frozenset(
        row.name
        for row in _ROWS
        if all(getattr(row, field) == value for field, value in fields.items())
    )


_TYPE = re.compile(r"[A-Z][A-Za-z]*")
"""The last part of names such as ``/layer1/conv1/Conv``, which only repeats the type."""


def onnx_type(op: str) -> str:
    """Return the ONNX type of a Relax operator; the last part of its name where ONNX has none.

    Args:
        op: Such as ``nn.conv2d``, or ``onnx:DOMAIN.TYPE`` of an opaque operator, which keeps its
            domain: com.microsoft's Attention is not ONNX's.
    """
    last = op.rsplit(":" if ":" in op else ".", 1)[-1]
    row = OPERATORS.get(op)
    return row.onnx if row is not None and row.onnx else last or "operator"


class NodeTitles:
    """What operators are called: by the ONNX node in the user's file of which they are a part.

    Args:
        calls: The operators of a graph, by operator number.
    """

    def __init__(self, calls: Sequence[Node]) -> None:
        self._titles = [call.onnx_type or onnx_type(call.op) for call in calls]
        self._ops = [call.op for call in calls]
        self._nodes = nodes_of(calls)

    def __getitem__(self, operator: int) -> str:
        """Return the type of an operator's ONNX node: ``HardSwish``."""
        return self._titles[operator]

    def of(self, operators: Iterable[int]) -> list[str]:
        """Return the types of the ONNX nodes that hold some operators, each node once."""
        first: dict[int, int] = {}
        for operator in operators:
            first.setdefault(self._nodes[operator], operator)
        return [self._titles[operator] for operator in first.values()]

    def lowered(self, operator: int) -> str:
        """Return what an operator's ONNX node was lowered to: ``nn.conv2d, add``, each once."""
        own = self._nodes[operator]
        parts = (op for op, node in zip(self._ops, self._nodes, strict=True) if node == own)
        return ", ".join(dict.fromkeys(parts))

    def joined(self, operators: Iterable[int]) -> str:
        """Return a partition's nodes in short: ``Conv+Relu``, ``Div+Erf+Add+Mul+… (23 nodes)``."""
        titles = self.of(operators)
        if len(titles) <= NAMED:
            return "+".join(titles)
        return "+".join(titles[:NAMED]) + f"+… ({len(titles)} nodes)"


def short_name(name: str) -> str:
    """Return the part of an ONNX node's name that distinguishes it: ``layer1.0/conv1``.

    The last two parts are kept, without one that only repeats the type.
    """
    parts = [part for part in name.split("/") if part]
    if len(parts) > 1 and _TYPE.fullmatch(parts[-1]):
        parts.pop()
    return "/".join(parts[-2:]) or name


class Work(NamedTuple):
    """What one operator computes and moves."""

    operations: float
    """Floating-point (or integer) operations."""
    moved_bytes: int
    """Bytes of its inputs, weights included, and of its outputs."""


def work_of_operators(graph: GraphRecord) -> list[Work]:
    """Return the work of each operator, by operator number."""
    values = graph.values
    works = []
    for call in graph.nodes:
        read = [values[index] for index in dict.fromkeys(call.inputs)]
        moved = sum(value.type.bytes for value in (*call.results, *read))
        operands = [values[index].type for index in call.inputs[:2]]
        works.append(Work(_operations(call, operands), moved))
    return works


def _operations(call: Node, operands: Sequence[TensorType]) -> float:
    """Return the operations of a convolution or matrix product; 0 for any other operator."""
    if len(operands) < 2:
        return 0.0
    data, weight = operands
    how = OPERATORS[call.op].work if call.op in OPERATORS else ""
    if how == "product":
        return 2.0 * call.type.elements * data.shape[-1] if data.shape else 0.0
    layout = str(call.attributes.get("kernel_layout", ""))
    if len(layout) != len(weight.shape):
        return 0.0
    if how == "convolution":
        # Each output element sums over the taps of the input channels of its group.
        return 2.0 * call.type.elements * weight.elements / weight.shape[layout.index("O")]
    if how == "transposed":
        return 2.0 * data.elements * weight.elements / weight.shape[layout.index("I")]
    return 0.0


PREFIX = "onnx:"
"""The beginning of an opaque operator's name; Relax's own names have no colon of this kind."""


def is_opaque(op: str) -> bool:
    """Return whether a node's operator is an opaque one."""
    return op.startswith(PREFIX)


def title(op: str) -> str:
    """Return an opaque operator's name for sentences: ``LSTM``, ``com.microsoft.Inverse``."""
    return op.removeprefix(PREFIX)
