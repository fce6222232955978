"""Quantised models of the zoo, and the means to quantise others: QDQ with measured scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper, shape_inference

from tests.zoo.net import Net

QUANTIZED = {
    "Conv",
    "Gemm",
    "MatMul",
    "Add",
    "MaxPool",
    "GlobalAveragePool",
    "Concat",
    "Reshape",
}
"""Operators whose activations are quantised on both sides."""


def float_resnet_block(
    size: int = 56, width: int = 64, blocks: int = 2, batch: int = 1
) -> ModelProto:
    """ResNet-50's first stage (He 2015): a projecting bottleneck and identity ones, in float32."""
    net = Net("resnet_block", opset=13, seed=31)
    x = net.input("image", [batch, width, size, size])
    taken = width
    for number in range(blocks):
        kept = x
        y = net.op("Relu", net.conv(x, taken, width, 1))
        y = net.op("Relu", net.conv(y, width, width, 3))
        y = net.conv(y, width, 4 * width, 1, gain=0.7)
        if number == 0:
            kept = net.conv(x, taken, 4 * width, 1, gain=0.7)
        x = net.op("Relu", net.op("Add", y, kept))
        taken = 4 * width
    net.output(x)
    return net.model()


def qdq_resnet_block(
    size: int = 56, width: int = 64, blocks: int = 2, batch: int = 1
) -> ModelProto:
    """The same in int8: uint8 activations, int8 weights per channel, as exporters write it."""
    return quantize(float_resnet_block(size, width, blocks, batch))


def quantize(model: ModelProto, seed: int = 0, signed: bool = False) -> ModelProto:
    """A float32 model as QuantizeLinear and DequantizeLinear around its operators.

    Static quantisation as onnxruntime.quantization does it: ranges are those seen on a normal
    random input; activations per tensor (uint8 with a zero point, or symmetric int8), weights per
    output channel and symmetric, biases int32 with the product of the scales. A Relu stays with
    the operator before it.
    """
    values = _activations(model, seed)
    graph = model.graph
    constants = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for value in node.input:
            readers.setdefault(value, []).append(node)
    made: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}
    scales: dict[str, tuple[float, int]] = {}
    floats: dict[str, str] = {}

    def const(name: str, array: Any) -> str:
        weights[name] = np.asarray(array)
        return name

    def scale_of(value: str) -> tuple[float, int]:
        if value not in scales:
            low, high = min(values[value].min(), 0.0), max(values[value].max(), 0.0)
            if signed:
                scales[value] = float(np.float32(max(-low, high, 1e-8) / 127)), 0
            else:
                step = np.float32(max(high - low, 1e-8) / 255)
                scales[value] = float(step), int(np.clip(np.round(-low / step), 0, 255))
        return scales[value]

    def rounded(value: str, source: str) -> None:
        """Quantise ``source``; readers of ``value`` see the dequantised one."""
        step, zero = scale_of(value)
        small = np.int8 if signed else np.uint8
        s = const(f"{value}_scale", np.float32(step))
        z = const(f"{value}_zero", np.array(zero, small))
        made.append(
            helper.make_node("QuantizeLinear", [source, s, z], [f"{value}_q"], f"{value}_quantize")
        )
        made.append(
            helper.make_node(
                "DequantizeLinear", [f"{value}_q", s, z], [f"{value}_dq"], f"{value}_dequantize"
            )
        )
        floats[value] = f"{value}_dq"

    def weight(node: onnx.NodeProto) -> tuple[str, np.ndarray]:
        name = node.input[1]
        array = constants[name]
        axis = 0
        if node.op_type == "MatMul" or (node.op_type == "Gemm" and not _attribute(node, "transB")):
            axis = 1
        other = tuple(d for d in range(array.ndim) if d != axis)
        steps = (np.abs(array).max(other) / 127).clip(1e-8).astype(np.float32)
        shape = [-1 if d == axis else 1 for d in range(array.ndim)]
        small = np.clip(np.round(array / steps.reshape(shape)), -127, 127).astype(np.int8)
        inputs = [
            const(f"{name}_q", small),
            const(f"{name}_scale", steps),
            const(f"{name}_zero", np.zeros(steps.size, np.int8)),
        ]
        made.append(
            helper.make_node(
                "DequantizeLinear", inputs, [f"{name}_dq"], f"{name}_dequantize", axis=axis
            )
        )
        return f"{name}_dq", steps

    def bias(node: onnx.NodeProto, steps: np.ndarray) -> str:
        name = node.input[2]
        step = (steps * np.float32(scale_of(node.input[0])[0])).astype(np.float32)
        small = np.round(constants[name] / step).astype(np.int32)
        inputs = [
            const(f"{name}_q", small),
            const(f"{name}_scale", step),
            const(f"{name}_zero", np.zeros(step.size, np.int32)),
        ]
        made.append(
            helper.make_node(
                "DequantizeLinear", inputs, [f"{name}_dq"], f"{name}_dequantize", axis=0
            )
        )
        return f"{name}_dq"

    outputs = {o.name for o in graph.output}
    for value in graph.input:
        if any(r.op_type in QUANTIZED for r in readers.get(value.name, ())):
            rounded(value.name, value.name)
    for node in graph.node:
        inputs = [floats.get(v, v) for v in node.input]
        if node.op_type in ("Conv", "Gemm", "MatMul") and node.input[1] in constants:
            inputs[1], steps = weight(node)
            if len(inputs) > 2:
                inputs[2] = bias(node, steps)
        for value in node.input:
            if value in constants and value not in weights and value in inputs:
                weights[value] = constants[value]
        value = node.output[0]
        follows = [r.op_type for r in readers.get(value, ())] == ["Relu"]
        quantizes = node.op_type in QUANTIZED or node.op_type == "Relu"
        if quantizes and not follows:
            made.append(_renamed(node, inputs, f"{value}_float"))
            rounded(value, f"{value}_float")
            if value in outputs:
                made[-1].output[0] = value
                floats[value] = value
        else:
            made.append(_renamed(node, inputs, value))
    initializers = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    new = helper.make_graph(made, f"qdq_{graph.name}", graph.input, graph.output, initializers)
    out = helper.make_model(
        new, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="collage-zoo"
    )
    onnx.checker.check_model(out)
    return shape_inference.infer_shapes(out)


def _attribute(node: onnx.NodeProto, name: str) -> int:
    return next((a.i for a in node.attribute if a.name == name), 0)


def _renamed(node: onnx.NodeProto, inputs: list[str], output: str) -> onnx.NodeProto:
    new = onnx.NodeProto()
    new.CopyFrom(node)
    del new.input[:], new.output[:]
    new.input.extend(inputs)
    new.output.append(output)
    return new


def _activations(model: ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Every value of the model on a normal random input."""
    import onnxruntime

    exposed = ModelProto()
    exposed.CopyFrom(model)
    known = {o.name for o in exposed.graph.output}
    for node in model.graph.node:
        for value in node.output:
            if value not in known:
                exposed.graph.output.append(onnx.ValueInfoProto(name=value))
    random = np.random.default_rng(seed)
    feeds = {
        i.name: random.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for i in model.graph.input
    }
    session = onnxruntime.InferenceSession(
        exposed.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    results = session.run(None, feeds)
    names = [o.name for o in exposed.graph.output]
    return feeds | dict(zip(names, results, strict=True))
