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
