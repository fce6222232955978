"""Models of the zoo with operators that Relax lacks: recurrent, control flow, NMS, contributed."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from tests.support.written import written
from tests.zoo.net import Net


def tagger(steps: int = 48, hidden: int = 32, layers: int = 2) -> ModelProto:
    """A sequence tagger: embedding, bidirectional LSTM layers, a linear layer, softmax."""
    net = Net("tagger", opset=17)
    tokens = net.input("tokens", [1, steps], "int64")
    values = net.random.standard_normal
    size, labels = 16, 9
    table = net.const(values((100, size)).astype(np.float32))
    x = net.op("Transpose", net.op("Gather", table, tokens), perm=[1, 0, 2])
    for layer in range(layers):
        rows = 4 * hidden
        weights = [0.2 * values((2, rows, n)) for n in (size, hidden)] + [values((2, 2 * rows))]
        y = net.op(
            "LSTM",
            x,
            *(net.const(w.astype(np.float32)) for w in weights),
            name=f"lstm{layer}",
            hidden_size=hidden,
            direction="bidirectional",
        )
        y = net.op("Transpose", y, perm=[0, 2, 1, 3])
        x, size = net.reshape(y, steps, 1, 2 * hidden), 2 * hidden
    last = net.const(values((size, labels)).astype(np.float32))
    net.output(net.op("Softmax", net.op("MatMul", x, last), axis=-1))
    return net.model()


CONTROL_FLOW = """
(float[4,8] x) => (float[4,8] sum) {
    y = MatMul(x, weight)
    total = ReduceSum<keepdims = 0>(y)
    positive = Greater(total, nothing)
    [choice] chosen = If(positive) <
        then_branch = then () => (float[4,8] kept) { kept = Relu(y) },
        else_branch = other () => (float[4,8] turned) { turned = Neg(y) }
    >
    [loop] looped = Loop(turns, go_on, chosen) <
        body = body (int64 turn, bool go, float[4,8] state) => (bool on, float[4,8] next) {
            less = Mul(state, half)
            next = Add(less, y)
            on = Identity(go)
        }
    >
    corner = Slice(looped, begin, end)
    [determinant] size = Det(corner)
    sum = Add(looped, size)
}
"""


def control_flow() -> ModelProto:
    """A product, an If and a Loop that read it from outside, and a determinant."""
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    numbers = {"begin": np.array([0, 0]), "end": np.array([4, 4]), "turns": np.array(5)}
    floats = {"nothing": np.array(0.0, np.float32), "half": np.array(0.5, np.float32)}
    constants = {"weight": weight, "go_on": np.array(True), **numbers, **floats}
    return written(CONTROL_FLOW, constants, opset=17)


def contrib() -> ModelProto:
    """Two products, the second of them an operator of ONNX Runtime's own domain."""
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    text = "y = MatMul(x, w) [fused] z = com.microsoft.FusedMatMul<alpha = 0.5>(y, w) r = Relu(z)"
    graph = f"(float[4,8] x) => (float[4,8] r) {{ {text} }}"
    return written(graph, {"w": weight}, opset=17, more='"com.microsoft": 1')


def detector() -> ModelProto:
    """A convolution, boxes with NonMaxSuppression, and NonZero: two outputs of open size."""
    net = Net("detector", opset=17)
    x = net.input("x", [1, 3, 16, 16])
    weight = net.const(net.random.standard_normal((8, 3, 3, 3)).astype(np.float32))
    y = net.op("Relu", net.op("Conv", x, weight, kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
    y = net.reshape(y, 1, 8, 256)
    zero, one, two, three, four, eight = (net.const([n], np.int64) for n in (0, 1, 2, 3, 4, 8))
    boxes = net.op("Transpose", net.op("Slice", y, zero, four, one), perm=[0, 2, 1])
    scores = net.op("Slice", y, four, eight, one)
    overlap, score = (net.const([n], np.float32) for n in (0.5, 0.3))
    most = net.const([5], np.int64)
    kept = net.op("NonMaxSuppression", boxes, scores, most, overlap, score, name="nms")
    places = net.op("Squeeze", net.op("Slice", kept, two, three, one), one)
    net.output(net.op("Gather", boxes, places, axis=1))
    high = net.op("Greater", scores, net.const(1.5, np.float32))
    net.output(net.op("NonZero", high, name="nonzero"), "int64")
    net.output(net.op("ReduceMax", scores, axes=[2], keepdims=0))
    return net.model()
