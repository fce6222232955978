"""Quantised models of the zoo, and the means to quantise others: QDQ with measured scales."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper, shape_inference

from tests.support.model_runs import run_onnx
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


def qdq(size: int = 8) -> ModelProto:
    """Two int8 convolutions, the first with a ReLU."""
    net = Net("qdq", opset=13, seed=20)
    x = net.op("Relu", net.conv(net.input("image", [1, 3, size, size]), 3, 8))
    net.output(net.conv(x, 8, 4))
    return quantize(net.model())


def quantize(model: ModelProto, seed: int = 0, signed: bool = False) -> ModelProto:
    """A float32 model as QuantizeLinear and DequantizeLinear around its operators.

    Static quantisation as onnxruntime.quantization does it: ranges are those seen on a normal
    random input; activations per tensor (uint8 with a zero point, or symmetric int8), weights per
    output channel and symmetric, biases int32 with the product of the scales. A Relu stays with
    the operator before it.
    """
    values = _activations(model, seed)
    graph, small = model.graph, np.int8 if signed else np.uint8
    constants = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    readers = {value: [n for n in graph.node if value in n.input] for value in values}
    outputs = {o.name for o in graph.output}
    net = Net(f"qdq_{graph.name}", opset=13)
    floats: dict[str, str] = {}
    unchanged: set[str] = set()

    def scale_of(value: str) -> tuple[np.float32, int]:
        low, high = min(values[value].min(), 0.0), max(values[value].max(), 0.0)
        if signed:
            return np.float32(max(-low, high, 1e-8) / 127), 0
        step = np.float32(max(high - low, 1e-8) / 255)
        return step, int(np.clip(np.round(-low / step), 0, 255))

    def dequantized(name: str, *inputs: str, output: str = "", **attributes: int) -> str:
        more: Any = {
            "outputs": [output or f"{name}_dq"],
            "name": f"{name}_dequantize",
            **attributes,
        }
        return net.op("DequantizeLinear", *inputs, **more)

    def rounded(value: str, source: str) -> None:
        """Quantise ``source``; readers of ``value`` see the dequantised one."""
        step, zero = scale_of(value)
        about = net.const(step, name=f"{value}_scale"), net.const(zero, small, f"{value}_zero")
        q = net.op(
            "QuantizeLinear", source, *about, outputs=[f"{value}_q"], name=f"{value}_quantize"
        )
        output = value if value in outputs else ""
        floats[value] = dequantized(value, q, *about, output=output)

    def stored(name: str, whole: np.ndarray, steps: np.ndarray, axis: int) -> str:
        """Store a constant as whole numbers with a step for each channel."""
        zeros = np.zeros(steps.size, whole.dtype)
        inputs = {f"{name}_q": whole, f"{name}_scale": steps, f"{name}_zero": zeros}
        return dequantized(name, *(net.const(a, name=n) for n, a in inputs.items()), axis=axis)

    def weights(node: onnx.NodeProto) -> list[str]:
        name, *biases = node.input[1:]
        array = constants[name]
        is_turned = any(a.name == "transB" and a.i for a in node.attribute)
        axis = 0 if node.op_type == "Conv" or is_turned else 1
        other = tuple(d for d in range(array.ndim) if d != axis)
        steps = (np.abs(array).max(other, keepdims=True) / 127).clip(1e-8).astype(np.float32)
        whole = np.clip(np.round(array / steps), -127, 127).astype(np.int8)
        made = [stored(name, whole, steps.ravel(), axis)]
        for bias in biases:
            step = steps.ravel() * scale_of(node.input[0])[0]
            made.append(stored(bias, np.round(constants[bias] / step).astype(np.int32), step, 0))
        return made

    for value in graph.input:
        if any(r.op_type in QUANTIZED for r in readers[value.name]):
            rounded(value.name, value.name)
    for node in graph.node:
        new = copy.deepcopy(node)
        inputs = [floats.get(v, v) for v in node.input]
        if node.op_type in ("Conv", "Gemm", "MatMul") and node.input[1] in constants:
            inputs[1:] = weights(node)
        unchanged.update(name for name in inputs if name in constants)
        new.input[:] = inputs
        net.nodes.append(new)
        value = node.output[0]
        follows = [r.op_type for r in readers[value]] == ["Relu"]
        if node.op_type in (*QUANTIZED, "Relu") and not follows:
            new.output[:] = [f"{value}_float"]
            rounded(value, f"{value}_float")
    for name in sorted(unchanged):
        net.const(constants[name], name=name)
    net.inputs, net.outputs = list(graph.input), list(graph.output)
    out = net.model()
    onnx.checker.check_model(out)
    return shape_inference.infer_shapes(out)


def _activations(model: ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Every value of the model on a normal random input."""
    exposed = copy.deepcopy(model)
    names = [value for node in model.graph.node for value in node.output]
    del exposed.graph.output[:]
    exposed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    random = np.random.default_rng(seed)
    feeds = {}
    for given in model.graph.input:
        shape = [d.dim_value for d in given.type.tensor_type.shape.dim]
        feeds[given.name] = random.standard_normal(shape).astype(np.float32)
    return feeds | dict(zip(names, run_onnx(exposed, feeds), strict=True))


def quantized_weight(
    element: int, per_channel: bool = False, rows: int = 8, columns: int = 16, seed: int = 0
) -> ModelProto:
    """A product with a weight that is dequantised from ``element``, and a ReLU."""
    net = Net("weights", opset=21)
    x = net.input("x", [4, rows])
    values = np.random.default_rng(seed).integers(-7, 8, (rows, columns)).astype(np.float32)
    net.weights.append(helper.make_tensor("w", element, [rows, columns], values.ravel()))
    scale = net.const(np.full(columns if per_channel else (), 0.1, np.float32))
    axis: Any = {"axis": 1} if per_channel else {}
    floats = net.op("DequantizeLinear", "w", scale, name="weight", **axis)
    net.output(net.op("Relu", net.op("MatMul", x, floats, name="product")), shape=[4, columns])
    model = net.model(check=False)
    model.ir_version = 10
    return model
