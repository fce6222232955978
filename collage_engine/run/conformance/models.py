"""Small ONNX models that the checks run: together they have every kind of border and operand."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, helper, numpy_helper, parser, shape_inference

OPSET = 17
"""Version of ONNX's operator set of the models: the last one in which a Split needs not say
how many outputs it has (ONNX's ``Changelog.md``)."""

CONVOLUTIONS = """(
    float[1,8,12,12] x, float[8,8,3,3] w0, float[8] w1, float[8,8,1,1] w2, float[8] w3,
    float[8,5] w4, float[5] w5
) => (y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w0, w1)
    b = Relu(a)
    c = Conv(b, w2, w3)
    d = Add(x, c)
    e = Relu(d)
    f = GlobalAveragePool(e)
    g = Flatten(f)
    h = Gemm(g, w4, w5)
    y = Softmax(h)
}"""
"""Two convolutions around a residual sum, then a pooled classifier."""
MODELS = {
    # Two products with bias and ReLU: weights, and a chain behind each.
    "perceptron": """(
        float[4,32] x, float[32,24] w0, float[24] w1, float[24,10] w2, float[10] w3
    ) => (y) {
        a = MatMul(x, w0)
        b = Add(a, w1)
        c = Relu(b)
        d = MatMul(c, w2)
        e = Add(d, w3)
        y = Relu(e)
    }""",
    "convolutions": CONVOLUTIONS,
    # Two inputs, an output that is read on, and an operand that is read twice.
    "borders": """(float[2,6] x0, float[2,6] x1, float[6] w0) => (total, bounded, y) {
        total = Add(x0, x1)
        square = Mul(total, total)
        shifted = Sub(square, w0)
        bounded = Tanh(shifted)
        y = Sigmoid(shifted)
    }""",
    # Operands of fewer axes and of extent 1, and a shared weight.
    "broadcasts": """(float[2,3,4] x0, float[3,1] x1, float[4] w0) => (y) {
        a = Mul(x0, w0)
        b = Add(a, w0)
        c = Add(x1, b)
        y = Abs(c)
    }""",
    # Sums of products of 8 bits over their whole range, which exceed 16 bits.
    "whole numbers": """(float[4,32] x, int8[32,8] w0, float[8] w1) => (sums, y) {
        quantised, scale, zero = DynamicQuantizeLinear(x)
        sums = MatMulInteger(quantised, w0, zero)
        a = Cast <to = 1> (sums)
        b = Mul(a, scale)
        y = Add(b, w1)
    }""",
    # Values that are moved and not computed, a split, and results that are no floats.
    "shapes": """(float[2,8] x) => (turned, largest) {
        left, right = Split <axis = 1> (x)
        a = Add(left, right)
        turned = Transpose <perm = [1, 0]> (a)
        largest = ArgMax <axis = 1, keepdims = 0> (x)
    }""",
}
"""Name, as the checks' sentences call it → the model's graph as ONNX's text."""
DEVICE_MODELS = {
    **MODELS,
    "convolutions in float16": CONVOLUTIONS.replace("float[", "float16["),
}
"""The same for toolchains of NVIDIA devices, some of which compute in half precision only."""


def model_of(graph: str) -> ModelProto:
    """Return the model of a graph, whose inputs that are called w0, w1, … are random weights.

    Whole numbers are over the whole range of their type.
    """
    text = f'<ir_version: 8, opset_import: ["" : {OPSET}]> check {graph}'
    made = parser.parse_model(text)
    random = np.random.default_rng(0)
    inputs = list(made.graph.input)
    del made.graph.input[:]
    for value in inputs:
        if not value.name.startswith("w"):
            made.graph.input.append(value)
            continue
        kind = value.type.tensor_type
        shape = [d.dim_value for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if dtype.kind in "iu":
            ends = np.iinfo(dtype)
            values = random.integers(ends.min, ends.max, shape, dtype, endpoint=True)
        else:
            values = (random.standard_normal(shape) * 0.3).astype(dtype)
        made.graph.initializer.append(numpy_helper.from_array(values, value.name))
    return shape_inference.infer_shapes(made, strict_mode=True)
