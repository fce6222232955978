"""Knows the ONNX nodes that OpenVINO's frontend reads as something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import NodeProto

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


def misreads(node: NodeProto, opset: int) -> bool:
    """Tell whether OpenVINO computes something else than a node of an opset says."""
    from onnx import helper

    if node.op_type == "Resize":
        return _resizes_otherwise(node)
    if node.op_type == "LRN":
        # ONNX Runtime computes none over an even size, so that nothing is known of these.
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        return given["size"] % 2 == 0 or given.get("bias", 1.0) % 1 != 0
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
