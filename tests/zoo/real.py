"""Models of the zoo at their published sizes, for the benchmark against other runtimes."""

from __future__ import annotations

from onnx import ModelProto

from tests.zoo.net import Net
from tests.zoo.quantized import quantize
from tests.zoo.text import bert, encoder_layer, gpt2


def bert_small() -> ModelProto:
    """The 4-layer BERT that Turc (2019) published as BERT-Small: 4 × 512, 8 heads, 128 tokens."""
    return bert(layers=4, length=128, hidden=512, heads=8, vocabulary=30522)


def gpt2_small() -> ModelProto:
    """The first three layers of GPT-2 small (d 768, 12 heads, 50257 tokens) on 64 tokens."""
    return gpt2(layers=3, length=64, hidden=768, heads=12, vocabulary=50257, head=False)


def vit_b_block() -> ModelProto:
    """One encoder block of ViT-B/16 (Dosovitskiy 2020): 197 tokens of 768, 12 heads."""
    net = Net("vit_b_block", seed=30)
    net.output(encoder_layer(net, net.input("x", [1, 197, 768]), 197, 768, 12, pre_norm=True))
    return net.model()


def unet_brain(size: int = 256, width: int = 32, levels: int = 4) -> ModelProto:
    """The U-Net of Buda (2019) for brain segmentation: 256², 32 to 512 channels, transposed
    convolutions up, skips by concatenation."""
    net = Net("unet_brain", opset=13, seed=31)

    def twice(x: str, taken: int, given: int) -> str:
        for channels in (taken, given):
            x = net.op("Relu", net.batch_norm(net.conv(x, channels, given, bias=False), given))
        return x

    x, channels = net.input("image", [1, 3, size, size]), 3
    skips = []
    for level in range(levels):
        x = twice(x, channels, width << level)
        channels = width << level
        skips.append(x)
        x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = twice(x, channels, 2 * channels)
    for level in reversed(range(levels)):
        given = width << level
        up = net.weight(2 * given, given, 2, 2, fan_in=2 * given, gain=1.0)
        x = net.op("ConvTranspose", x, up, net.vector(given), kernel_shape=[2, 2], strides=[2, 2])
        x = twice(net.op("Concat", x, skips[level], axis=1), 2 * given, given)
    net.output(net.op("Sigmoid", net.conv(x, width, 1, 1, gain=1.0)))
    return net.model()


def se_resnet50(size: int = 224, classes: int = 1000, reduction: int = 16) -> ModelProto:
    """SE-ResNet-50 (Hu 2018): bottlenecks whose output is squeezed, excited and scaled."""
    net = Net("se_resnet50", opset=13, seed=32)

    def conv(x: str, taken: int, given: int, kernel: int, *, stride: int = 1, gain: float) -> str:
        x = net.conv(x, taken, given, kernel, stride=stride, bias=False, gain=gain)
        return net.batch_norm(x, given)

    def squeeze(x: str, channels: int) -> str:
        s = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
        for taken, given, act in (
            (channels, channels // reduction, "Relu"),
            (channels // reduction, channels, "Sigmoid"),
        ):
            s = net.op("Gemm", s, net.weight(given, taken, gain=1.0), net.vector(given), transB=1)
            s = net.op(act, s)
        return net.op("Mul", x, net.reshape(s, 1, channels, 1, 1))

    x = net.input("image", [1, 3, size, size])
    x = net.op("Relu", conv(x, 3, 64, 7, stride=2, gain=2.0))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner, outer = 64 << stage, 256 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = net.op("Relu", conv(x, channels, inner, 1, gain=2.0))
            y = net.op("Relu", conv(y, inner, inner, 3, stride=stride, gain=2.0))
            y = squeeze(conv(y, inner, outer, 1, gain=1.0), outer)
            if not block:
                x = conv(x, channels, outer, 1, stride=stride, gain=1.0)
            x = net.op("Relu", net.op("Add", y, x))
            channels = outer
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    weights = net.weight(classes, channels, gain=1.0)
    net.output(net.op("Gemm", x, weights, net.vector(classes), transB=1, name="classifier"))
    return net.model()


def resnet_block(wide: int = 256, size: int = 56) -> ModelProto:
    """ResNet-50's bottleneck at 56² (256 → 64 → 64 → 256, residual), batch norms folded."""
    net = Net("resnet_block", opset=13, seed=33)
    narrow = wide // 4
    data = net.input("x", [1, wide, size, size])
    y = net.op("Relu", net.conv(data, wide, narrow, 1))
    y = net.op("Relu", net.conv(y, narrow, narrow))
    y = net.conv(y, narrow, wide, 1, gain=1.0)
    net.output(net.op("Relu", net.op("Add", y, data)))
    return net.model()


def resnet_block_int8() -> ModelProto:
    """``resnet_block`` quantised."""
    return quantize(resnet_block())
