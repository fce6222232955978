"""A product whose weight is stored in fewer bits and dequantised."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper


def quantized_weight(
    element: int, per_channel: bool = False, rows: int = 8, columns: int = 16, seed: int = 0
) -> ModelProto:
    """A product with a weight that is dequantised from ``element``, and a ReLU."""
    values = np.random.default_rng(seed).integers(-7, 8, (rows, columns)).astype(np.float32)
    weight = helper.make_tensor("w", element, [rows, columns], values.ravel())
    scale = np.full(columns if per_channel else (), 0.1, np.float32)
    weights_as_floats = helper.make_node("DequantizeLinear", ["w", "scale"], ["f"], name="weight")
    if per_channel:
        weights_as_floats.attribute.append(helper.make_attribute("axis", 1))
    graph = helper.make_graph(
        [
            weights_as_floats,
            helper.make_node("MatMul", ["x", "f"], ["m"], name="product"),
            helper.make_node("Relu", ["m"], ["y"]),
        ],
        "weights",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, columns])],
        [weight, numpy_helper.from_array(scale, "scale")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
