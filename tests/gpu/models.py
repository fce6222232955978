"""The models of the benchmark on the device, in single and half precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper, shape_inference

from tests.zoo import light
from tests.zoo.net import Net
from tests.zoo.text import bert, gpt2
from tests.zoo.vision import mobilenet_v2


def resnext50(size: int = 224, classes: int = 1000, groups: int = 32) -> ModelProto:
    """ResNeXt-50 32×4d (Xie 2017)."""
    net = Net("resnext50", opset=13, seed=40)

    def conv(
        x: str,
        taken: int,
        given: int,
        kernel: int,
        *,
        stride: int = 1,
        group: int = 1,
        gain: float = 2.0,
    ) -> str:
        x = net.conv(x, taken, given, kernel, stride=stride, group=group, bias=False, gain=gain)
        return net.batch_norm(x, given)

    x = net.op("Relu", conv(net.input("image", [1, 3, size, size]), 3, 64, 7, stride=2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner, outer = 128 << stage, 256 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = net.op("Relu", conv(x, channels, inner, 1))
            y = net.op("Relu", conv(y, inner, inner, 3, stride=stride, group=groups))
            y = conv(y, inner, outer, 1, gain=0.7)
            if not block:
                x = conv(x, channels, outer, 1, stride=stride, gain=1.0)
            x = net.op("Relu", net.op("Add", y, x))
            channels = outer
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    weights = net.weight(classes, channels, gain=1.0)
    net.output(net.op("Gemm", x, weights, net.vector(classes), transB=1))
    return net.model()


def dcgan(noise: int = 100, width: int = 64) -> ModelProto:
    """DCGAN's generator (Radford 2016): five transposed convolutions to a 64² image."""
    net = Net("dcgan", opset=13, seed=41)
    x, taken = net.input("noise", [1, noise, 1, 1]), noise
    for given, stride, pad in ((8, 1, 0), (4, 2, 1), (2, 2, 1), (1, 2, 1)):
        weights = net.weight(taken, given * width, 4, 4, fan_in=4 * taken, gain=2.0)
        x = net.op(
            "ConvTranspose", x, weights, kernel_shape=[4, 4], strides=[stride] * 2, pads=[pad] * 4
        )
        x = net.op("Relu", net.batch_norm(x, given * width))
        taken = given * width
    weights = net.weight(taken, 3, 4, 4, fan_in=4 * taken, gain=1.0)
    x = net.op("ConvTranspose", x, weights, kernel_shape=[4, 4], strides=[2, 2], pads=[1] * 4)
    net.output(net.op("Tanh", x))
    return net.model()


MODELS: dict[str, Callable[[], ModelProto]] = {
    "resnet50": lambda: light("resnet50"),
    "bert_base": lambda: bert(layers=12, length=128, hidden=768, heads=12, vocabulary=30522),
    "resnext50": resnext50,
    "mobilenet_v2": mobilenet_v2,
    "gpt2": lambda: gpt2(layers=12, length=64, hidden=768, heads=12, vocabulary=50257),
    "dcgan": dcgan,
}
"""In the order in which the figures are wanted."""


def build(name: str, precision: str) -> ModelProto:
    """A model whose floats are float32 or float16, inputs and outputs too."""
    model = MODELS[name]()
    return model if precision == "float32" else half(model)


LARGEST_HALF = 65504.0


def half(model: ModelProto) -> ModelProto:
    """The model with float16 wherever it had float32."""
    _halve(model.graph)
    model.graph.ClearField("value_info")
    return shape_inference.infer_shapes(model)


def _halve(graph: GraphProto) -> None:
    for weight in graph.initializer:
        weight.CopyFrom(_half_tensor(weight))
    for value in (*graph.input, *graph.output):
        kind = value.type.tensor_type
        if kind.elem_type == TensorProto.FLOAT:
            kind.elem_type = TensorProto.FLOAT16
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                attribute.t.CopyFrom(_half_tensor(attribute.t))
            elif attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16


def _half_tensor(tensor: TensorProto) -> TensorProto:
    if tensor.data_type != TensorProto.FLOAT:
        return tensor
    array = np.clip(numpy_helper.to_array(tensor), -LARGEST_HALF, LARGEST_HALF)
    return numpy_helper.from_array(array.astype(np.float16), tensor.name)
