"""Knows what OpenVINO reads as something else than ONNX says, or computes otherwise.

Its CPU plugin computes int64 in int32, of which it keeps the low bits, and has kernels of int32 for
some operators only; the others are computed in float32, which holds whole numbers up to 2^24. Seen
in OpenVINO 2026.4 on each operator at the ends of each type, as ``collage toolchains check`` asks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.whole_numbers import COMPARISONS, WholeNumbers, is_whole, most
from collage_engine.records.graph import Node, members
from collage_engine.records.operators import OPERATORS, is_opaque, onnx_type

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy as np
    from onnx import ModelProto, NodeProto


MISREAD: dict[str, int | None] = {
    "Softmax": 13,
    "LogSoftmax": 13,
    "Hardmax": 13,
    "ReduceL1": None,
    "ReduceLogSumExp": None,
    "Attention": None,
}
"""ONNX operators, and the opset from which on OpenVINO 2026.4 reads them right (None: never).

It takes Softmax's axis of old opsets for that of new ones, reduces over all axes in ReduceL1 and
ReduceLogSumExp, and overlooks Attention's window. Of LRN's bias it takes the whole part only; with
a whole bias its results are ONNX Runtime's to 1e-6 (sizes 3 and 5, four exponents).
"""


VNNI = frozenset(("avx512_vnni", "avx_vnni", "amx_int8"))
"""Instruction sets that add products of 8 bits in 32 bits, as Linux names them."""
LARGEST_WEIGHT = 64
"""Largest size of weights of which two products with a uint8 fit 16 bits: 2 * 255 * 64 = 32,640."""


def saturates(model: ModelProto, flags: Collection[str]) -> bool:
    """Tell whether sums in 8-bit products of a model may exceed what the processor adds.

    On x86-64 without VNNI OpenVINO's kernels add products of uint8 and int8 in pairs of 16 bits;
    they make int8 activations uint8. Seen with OpenVINO 2026.4 as an EPYC of Zen 2: 22 steps of 255
    off in a MatMul between DequantizeLinear and QuantizeLinear, 14 in a Conv.

    Args:
        model: The model.
        flags: The processor's instruction sets.
    """
    from onnx import TensorProto

    from collage_engine.model.onnx_file import tensor_array

    if "avx2" not in flags or not VNNI.isdisjoint(flags):
        return False
    weights = {tensor.name: tensor for tensor in model.graph.initializer}

    def is_int8(name: str) -> bool:
        return name in weights and weights[name].data_type == TensorProto.INT8

    constant = {*weights, ""}
    rounded = signed = among_values = False
    read: list[str] = []
    for node in model.graph.node:
        if node.op_type.startswith("QLinear") or node.op_type == "DequantizeLinear":
            rounded |= node.input[0] not in weights
            read += filter(is_int8, node.input)
            # The zero point of values that are no weights: of a QLinearMatMul's second operand.
            zeros = node.input[5:6] if node.op_type == "QLinearMatMul" else node.input[2:3]
            signed |= node.input[0] not in weights and any(map(is_int8, zeros))
        if node.op_type in ("MatMul", "QLinearMatMul"):
            second = node.input[3 if node.op_type == "QLinearMatMul" else 1]
            among_values |= constant.isdisjoint((node.input[0], second))
        if constant.issuperset(node.input):
            constant.update(node.output)
    largest = max((_size_of(tensor_array(weights[name], name)) for name in read), default=0)
    return (signed and among_values) or (rounded and largest > LARGEST_WEIGHT)


def _size_of(array: np.ndarray) -> int:
    """Return the largest absolute value of an int8 array."""
    return max(int(array.max(initial=0)), -int(array.min(initial=0)))


def unsupported_semantics(node: NodeProto, opset: int) -> bool:
    """Tell whether OpenVINO computes something else than a node of an opset says."""
    from onnx import helper

    if node.op_type == "Resize":
        return _resizes_otherwise(node)
    if node.op_type == "LRN":
        # ONNX Runtime computes none over an even size, so that nothing is known of these.
        given: dict[str, float] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        return given["size"] % 2 == 0 or given.get("bias", 1.0) % 1 != 0
    if node.op_type == "ReduceLogSum":  # over no axes it leaves the logarithm out
        return any(a.name == "noop_with_empty_axes" and a.i for a in node.attribute)
    if node.op_type == "MaxPool":  # it counts along the last axis first
        return any(a.name == "storage_order" and a.i for a in node.attribute)
    if node.op_type not in MISREAD:
        return False
    right_from = MISREAD[node.op_type]
    return right_from is None or opset < right_from


def _resizes_otherwise(node: NodeProto) -> bool:
    """Tell whether a Resize uses what OpenVINO leaves out or computes otherwise."""
    from onnx import helper

    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return (
        given.get("coordinate_transformation_mode") == b"half_pixel_symmetric"
        or given.get("keep_aspect_ratio_policy", b"stretch") != b"stretch"
        or bool(given.get("exclude_outside"))
        or bool(given.get("antialias"))
    )


IN_INT32 = {
    *("Abs", "Add", "ArgMax", "ArgMin", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"),
    *("Cast", "Compress", "Concat", "CumSum", "Expand", "Flatten", "Gather", "GatherElements"),
    *("GatherND", "Identity", "Max", "Min", "Mul", "Neg", "NonZero", "OneHot", "Reshape"),
    *("ReverseSequence", "ScatterElements", "ScatterND", "Sign", "Slice", "Split", "Squeeze"),
    *("Sub", "Sum", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where"),
}
"""ONNX operators with kernels of int32; and ``Sign``, which rounding does not change."""
INT32, FLOAT32 = 2**31 - 1, 2**24
"""The largest magnitudes that are computed exactly."""


def inexact(numbers: WholeNumbers, node: Node, bounds: Sequence[float]) -> str | None:
    """Return why OpenVINO does not compute an operator exactly; None where it does.

    Args:
        numbers: The whole numbers of the graph.
        node: The operator.
        bounds: How large they can be.
    """
    values = numbers.graph.values
    kinds = [values[i].type for i in (*node.inputs, *node.outputs) if is_whole(values[i].type)]
    operands = numbers.operands(node, bounds)
    bound = numbers.result(node, bounds)
    results = [min(bound, max(map(most, kinds)))] if any(map(is_whole, node.types)) else []
    if not kinds or (is_opaque(node.op) and not operands and not results):
        return None
    largest = [*operands, *results]
    if max(largest, default=0) > INT32 and any(kind.dtype.endswith("64") for kind in kinds):
        return "OpenVINO computes whole numbers of 64 bits in 32, and these may be larger"
    if node.op in COMPARISONS:
        largest = [min(operands) + 1]  # one that float32 holds is told apart from all others
    elif _becomes_float(numbers, node):
        largest = operands
    name = node.onnx_type or onnx_type(node.op)
    if _wraps_around(node, bound):
        return f"OpenVINO saturates {name} in 8 bits, which wraps around in ONNX"
    if name in IN_INT32 or max(largest, default=0) <= FLOAT32:
        return None
    return f"OpenVINO computes {name} in float32, which holds whole numbers up to 2^24"


def rounds_otherwise(graph: DataflowGraph, node: Node) -> str | None:
    """Return why OpenVINO does not quantise as ONNX does where it matters; None where it does.

    It adds the zero point before it rounds, so that with an odd one halves go to the other side,
    and it saturates no 16 bits. What products were computed of, or go into, may be off by a step
    anyway; other values that the model gives may not.
    """
    if node.op != "quantize" and node.op != "onnx:QuantizeLinear":
        return None
    if not node.type.dtype.endswith("int8"):
        return f"OpenVINO quantises to 8 bits, and does not saturate {node.type.dtype}"
    if any(_is_product(graph.nodes[index]) for index in members(graph.upstream[node.index])):
        return None
    # A scale that is computed from the values themselves gives ties by chance alone.
    follows_floats = graph.values[node.inputs[1]].constant
    waiting, seen = [node.index], {node.index}
    while waiting:
        index = waiting.pop()
        if graph.leaving >> index & 1:
            return "OpenVINO rounds some halves to odd numbers, ONNX to even ones"
        users = {
            i
            for i in graph.users[index]
            if (follows_floats or any(map(is_whole, graph.nodes[i].types)))
            and not _is_product(graph.nodes[i])
        }
        waiting += users - seen
        seen |= users
    return None


def _is_product(node: Node) -> bool:
    return node.op in OPERATORS and bool(OPERATORS[node.op].work)


def _wraps_around(node: Node, bound: float) -> bool:
    """Tell whether an operator's results may be beyond 8 bits, which OpenVINO saturates."""
    kind = node.types[0]
    below_zero = node.op == "subtract" and kind.dtype == "uint8"
    return kind.dtype.endswith("int8") and (below_zero or most(kind) < bound < math.inf)


def _becomes_float(numbers: WholeNumbers, node: Node) -> bool:
    """Tell whether all that reads a product of whole numbers makes floats of it."""
    graph = numbers.graph
    readers = [graph.nodes[user] for user in graph.users[node.index]]
    floats = readers and all(not is_whole(kind) for reader in readers for kind in reader.types)
    return bool(floats) and not graph.leaving >> node.index & 1
