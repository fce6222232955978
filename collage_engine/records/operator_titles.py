"""What operators are called: by their ONNX type first, as people know them from the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from collage_engine.records.graph import Node, nodes_of

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
    "image.grid_sample": "GridSample",
    "cumsum": "CumSum",
    "prod": "ReduceProd",
    "equal": "Equal",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "logical_not": "Not",
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
    "bitwise_not": "BitwiseNot",
    "isinf": "IsInf",
    "isnan": "IsNaN",
    "acos": "Acos",
    "acosh": "Acosh",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atanh": "Atanh",
    "cosh": "Cosh",
    "sinh": "Sinh",
    "tan": "Tan",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "sign": "Sign",
    "sin": "Sin",
    "cos": "Cos",
    "einsum": "Einsum",
    "topk": "TopK",
    "one_hot": "OneHot",
    "gather_elements": "GatherElements",
    "gather_nd": "GatherND",
    "scatter_elements": "ScatterElements",
    "scatter_nd": "ScatterND",
    "quantize": "QuantizeLinear",
    "dequantize": "DequantizeLinear",
}
"""The ONNX operator that people know a Relax operator as. What ``model.onnx_forms`` writes for it
is a table of its own, since that is part of measurement keys and this is not; a test compares
them."""
NODES_NAMED = 4
"""Nodes that the name of a partition lists; chosen."""
_TYPE = re.compile(r"[A-Z][A-Za-z]*")
"""The last part of names such as ``/layer1/conv1/Conv``, which only repeats the type."""


def onnx_type(op: str) -> str:
    """Return the ONNX type of a Relax operator; the last part of its name where ONNX has none.

    Args:
        op: Such as ``nn.conv2d``, or ``onnx:DOMAIN.TYPE`` of an opaque operator, which keeps its
            domain: com.microsoft's Attention is not ONNX's.
    """
    last = op.rsplit(":" if ":" in op else ".", 1)[-1]
    return ONNX_TYPES.get(op) or last or "operator"


class NodeTitles:
    """What operators are called: by the ONNX node in the user's file of which they are a part.

    Args:
        calls: The operators of a graph, by operator number.
    """

    def __init__(self, calls: Sequence[Node]) -> None:
        self._titles = [call.onnx_type or onnx_type(call.op) for call in calls]
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

    def joined(self, operators: Iterable[int]) -> str:
        """Return a partition's nodes in short: ``Conv+Relu``, ``Div+Erf+Add+Mul+… (23 nodes)``."""
        titles = self.of(operators)
        if len(titles) <= NODES_NAMED:
            return "+".join(titles)
        return "+".join(titles[:NODES_NAMED]) + f"+… ({len(titles)} nodes)"


def short_name(name: str) -> str:
    """Return the part of an ONNX node's name that distinguishes it: ``layer1.0/conv1``.

    The last two parts are kept, without one that only repeats the type.
    """
    parts = [part for part in name.split("/") if part]
    if len(parts) > 1 and _TYPE.fullmatch(parts[-1]):
        parts.pop()
    return "/".join(parts[-2:]) or name
