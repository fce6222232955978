"""Convolutional models of the zoo."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto

from tests.zoo.net import Net


def mobilenet_v2(size: int = 224, classes: int = 1000, batch: int = 1) -> ModelProto:
    """MobileNetV2 (Sandler 2018), width 1.0, with BatchNormalization and Clip(0, 6)."""
    net = Net("mobilenet_v2", opset=13, seed=2)
    zero, six = net.const(0.0, np.float32), net.const(6.0, np.float32)

    def block(x: str, taken: int, given: int, kernel: int, act: bool, **more: Any) -> str:
        x = net.conv(x, taken, given, kernel, bias=False, gain=2.0 if act else 1.0, **more)
        x = net.batch_norm(x, given)
        return net.op("Clip", x, zero, six) if act else x

    x = block(net.input("input", [batch, 3, size, size]), 3, 32, 3, True, stride=2)
    width = 32
    for expand, given, repeats, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for number in range(repeats):
            step, inner, kept = (stride if number == 0 else 1), width * expand, x
            if expand > 1:
                x = block(x, width, inner, 1, True)
            x = block(x, inner, inner, 3, True, stride=step, group=inner)
            x = block(x, inner, given, 1, False)
            if step == 1 and width == given:
                x = net.op("Add", kept, x)
            width = given
    x = block(x, width, 1280, 1, True)
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    weights = net.weight(classes, 1280, gain=1.0)
    x = net.op("Gemm", x, weights, net.vector(classes), transB=1, name="classifier")
    net.output(x)
    return net.model()


def senet(channels: int = 32, size: int = 28, blocks: int = 2) -> ModelProto:
    """Residual blocks with squeeze and excitation, relu6 and hard swish."""
    net = Net("senet", opset=14, seed=3)
    x = net.conv(net.input("image", [1, 3, size, size]), 3, channels)
    zero, six = net.const(0.0, np.float32), net.const(6.0, np.float32)
    for _ in range(blocks):
        y = net.batch_norm(net.conv(x, channels, channels, bias=False), channels)
        y = net.op("Clip", y, zero, six)
        s = net.op("GlobalAveragePool", y)
        s = net.op("Relu", net.conv(s, channels, channels // 4, 1))
        s = net.op("Sigmoid", net.conv(s, channels // 4, channels, 1, gain=1.0))
        x = net.op("HardSwish", net.op("Add", x, net.op("Mul", y, s)))
    x = net.op("ReduceMean", x, axes=[2, 3], keepdims=0)
    net.output(net.dense(x, channels, 10))
    return net.model()


def unet(size: int = 32, width: int = 8) -> ModelProto:
    """U-Net (Ronneberger 2015), two levels: ConvTranspose up, skips by Concat, Resize."""
    net = Net("unet", opset=13, seed=4)

    def twice(x: str, taken: int, given: int) -> str:
        for channels in (taken, given):
            x = net.op("Relu", net.batch_norm(net.conv(x, channels, given, bias=False), given))
        return x

    top = twice(net.input("image", [1, 3, size, size]), 3, width)
    x = net.op("MaxPool", top, kernel_shape=[2, 2], strides=[2, 2])
    middle = twice(x, width, 2 * width)
    x = net.op("MaxPool", middle, kernel_shape=[2, 2], strides=[2, 2])
    x = twice(x, 2 * width, 4 * width)
    kernel = net.weight(4 * width, 2 * width, 2, 2, fan_in=4 * width)
    x = net.op(
        "ConvTranspose", x, kernel, net.vector(2 * width), kernel_shape=[2, 2], strides=[2, 2]
    )
    x = net.batch_norm(x, 2 * width)
    x = twice(net.op("Concat", x, middle, axis=1), 4 * width, 2 * width)
    scales = net.const([1, 1, 2, 2], np.float32)
    x = net.op(
        "Resize",
        x,
        "",
        scales,
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )
    x = net.conv(x, 2 * width, width)
    x = twice(net.op("Concat", x, top, axis=1), 2 * width, width)
    net.output(net.op("Sigmoid", net.conv(x, width, 1, 1, gain=1.0)))
    return net.model()


def dense_block(layers: int = 3, growth: int = 8, size: int = 16) -> ModelProto:
    """DenseNet's block: BN, relu and conv in that order, everything concatenated."""
    net = Net("dense_block", opset=13, seed=6)
    width = 8
    x = net.conv(net.input("image", [1, 3, size, size]), 3, width)
    for _ in range(layers):
        y = net.op("Relu", net.batch_norm(x, width))
        y = net.op(
            "Relu", net.batch_norm(net.conv(y, width, 4 * growth, 1, bias=False), 4 * growth)
        )
        x = net.op("Concat", x, net.conv(y, 4 * growth, growth, bias=False), axis=1)
        width += growth
    x = net.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    net.output(x)
    return net.model()


def residual_block(channels: int = 16, size: int = 14) -> ModelProto:
    """One ResNet bottleneck with its projection: conv, BN, relu, Sum."""
    net = Net("residual_block", opset=13, seed=7)
    data = net.input("x", [1, channels, size, size])
    y = data
    for taken, given, kernel in ((channels, 8, 1), (8, 8, 3), (8, 32, 1)):
        y = net.batch_norm(net.conv(y, taken, given, kernel, bias=False), given)
        if given == 8:
            y = net.op("Relu", y)
    short = net.batch_norm(net.conv(data, channels, 32, 1, bias=False), 32)
    net.output(net.op("Relu", net.op("Sum", y, short)))
    return net.model()


def float16_net(size: int = 16) -> ModelProto:
    """A small network in float16 between Casts: conv, BN, relu, pool, dense, softmax."""
    net = Net("float16", opset=13, seed=8, dtype="float16")
    x = net.op("Cast", net.input("image", [1, 3, size, size], "float32"), to=10)
    x = net.op("Relu", net.batch_norm(net.conv(x, 3, 8, bias=False), 8))
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Flatten", net.op("GlobalAveragePool", net.op("Relu", net.conv(x, 8, 16))), axis=1)
    x = net.op("Softmax", net.dense(x, 16, 10), axis=-1)
    net.output(net.op("Cast", x, to=1), "float32")
    return net.model()
