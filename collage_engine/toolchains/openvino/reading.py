"""Writes a sub-graph as an ONNX model that OpenVINO's frontend reads right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.toolchains.base import Function

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

MISREAD: dict[str, int | None] = {
    "Softmax": 13,
    "LogSoftmax": 13,
    "Hardmax": 13,
    "ReduceL1": None,
    "ReduceLogSumExp": None,
    "LRN": None,
}
"""ONNX operators, and the opset from which on OpenVINO 2026.4 reads them right (None: never).

It takes Softmax's axis of old opsets for that of new ones, reduces over all axes in ReduceL1 and
ReduceLogSumExp, and scales LRN otherwise. The same sub-graphs written from the imported graph use
other operators, which it reads right.
"""


def onnx_of(function: Function) -> ModelProto:
    """Returns the slice of the user's model where it is read right, else a model written anew."""
    from collage_engine.model.onnx_writer import to_onnx, write_onnx

    parts = function.model, function.nodes, function.inputs, function.outputs
    found = to_onnx(*parts)
    return write_onnx(*parts) if _misread(found) else found


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


def _misread(model: ModelProto) -> bool:
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
    for node in model.graph.node:
        if node.op_type == "Resize" and _resizes_otherwise(node):
            return True
        if node.op_type in MISREAD:
            right_from = MISREAD[node.op_type]
            if right_from is None or opset < right_from:
                return True
    return False
