"""Knows the ONNX nodes that OpenVINO reads as something else, or computes wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
