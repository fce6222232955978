"""Models of the zoo with operators that Relax lacks: recurrent, control flow, NMS, contributed."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper

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


def control_flow() -> ModelProto:
    """A product, an If and a Loop that read it from outside, and a determinant."""
    net = Net("control_flow", opset=17)
    x = net.input("x", [4, 8])
    y = net.op("MatMul", x, net.const(net.random.standard_normal((8, 8)).astype(np.float32)))
    total = net.op("ReduceSum", y, keepdims=0)
    positive = net.op("Greater", total, net.const(0.0, np.float32))

    def branch(kind: str) -> object:
        out = helper.make_tensor_value_info(f"{kind}_out", TensorProto.FLOAT, [4, 8])
        return helper.make_graph([helper.make_node(kind, [y], [f"{kind}_out"])], kind, [], [out])

    chosen = net.op(
        "If", positive, name="choice", then_branch=branch("Relu"), else_branch=branch("Neg")
    )
    half = net.const(0.5, np.float32)
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["state", half], ["less"]),
            helper.make_node("Add", ["less", y], ["next"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [4, 8]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [4, 8]),
        ],
    )
    turns, go = net.const(5, np.int64), net.const(True, np.bool_)
    looped = net.op("Loop", turns, go, chosen, name="loop", body=body)
    begin, end = (net.const([n, n], np.int64) for n in (0, 4))
    corner = net.op("Slice", looped, begin, end)
    net.output(net.op("Add", looped, net.op("Det", corner, name="determinant")))
    return net.model()


def contrib() -> ModelProto:
    """Two products, the second of them an operator of ONNX Runtime's own domain."""
    net = Net("contrib", opset=17)
    x = net.input("x", [4, 8])
    weight = net.const(net.random.standard_normal((8, 8)).astype(np.float32))
    y = net.op("MatMul", x, weight)
    y = net.op("FusedMatMul", y, weight, name="fused", domain="com.microsoft", alpha=0.5)
    net.output(net.op("Relu", y))
    model = net.model(check=False)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


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
