"""Computes convolutions of signals and images as matrix products.

With channels first, the filters are multiplied by gathered columns; with channels last, gathered
rows are multiplied by the filters. A 1×1 kernel that reads every pixel multiplies the data in
place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.blas.program import BlasProgram, Ints, Step, View, collapsed
from collage_engine.toolchains.runtime.per_axis import pads, per_axis


@dataclass(frozen=True)
class Shape:
    """The sizes of a convolution of images as (rows, columns); a signal has one row."""

    images: int
    groups: int
    channels: int
    """Input channels that one group has."""
    filters: int
    """Output channels that one group has."""
    data: Ints
    out: Ints
    kernel: Ints
    strides: Ints
    dilation: Ints
    begin: Ints
    channels_last: bool


def shape_of(node: Node, data: Node, weights: Node) -> Shape:
    """Returns the sizes of a convolution.

    Raises:
        UnsupportedError: It cannot be computed as a matrix product, for the reason in the message.
    """
    attributes = node.attributes
    layout = str(attributes.get("data_layout", "NCHW"))
    kernel_layout = str(attributes["kernel_layout"])
    space = layout.replace("N", "").replace("C", "")
    rank = len(space)
    last = layout == f"N{space}C"
    if layout not in (f"NC{space}", f"N{space}C"):
        raise UnsupportedError(f"{onnx_type(node.op)}: no layout {layout}")
    if attributes.get("out_layout", layout) not in (layout, ""):
        raise UnsupportedError(f"{onnx_type(node.op)}: the result keeps the layout of the data")
    if sorted(kernel_layout) != sorted("OI" + space):
        raise UnsupportedError(f"{onnx_type(node.op)}: no kernel layout {kernel_layout}")
    if weights.form != "constant" and kernel_layout != "OI" + space:
        raise UnsupportedError(
            f"{onnx_type(node.op)}: weights that are computed must be in OI{space}"
        )
    if weights.form != "constant" and last:
        raise UnsupportedError(
            f"{onnx_type(node.op)}: with channels last the weights must be constants"
        )
    given = dict(zip(layout, data.type.shape, strict=True))
    made = dict(zip(layout, node.type.shape, strict=True))
    kernel = dict(zip(kernel_layout, weights.type.shape, strict=True))
    if 0 in (*data.type.shape, *node.type.shape):
        raise UnsupportedError(f"{onnx_type(node.op)}: empty tensors")
    groups = int(attributes.get("groups", 1))
    filters = kernel["O"] // groups
    if groups > 1 and kernel["I"] == 1:
        raise UnsupportedError(
            f"{onnx_type(node.op)}: a depthwise convolution is no matrix product: each of "
            f"{groups} groups reads one channel"
        )
    begin, _ = pads(attributes["padding"], rank)
    lead = (1,) * (2 - rank)
    return Shape(
        images=given["N"],
        groups=groups,
        channels=kernel["I"],
        filters=filters,
        data=lead + tuple(given[a] for a in space),
        out=lead + tuple(made[a] for a in space),
        kernel=lead + tuple(kernel[a] for a in space),
        strides=lead + per_axis(attributes["strides"], rank),
        dilation=lead + per_axis(attributes["dilation"], rank),
        begin=(0,) * (2 - rank) + begin,
        channels_last=last,
    )


def convolution(
    program: BlasProgram, dims: Ints, shape: Shape, data: View, weights: View
) -> tuple[View, Step]:
    """Appends the step of a convolution; returns its result and the step.

    Args:
        program: The program, to which the step is appended.
        dims: The result's sizes in the order of axes in which the step computes.
        shape: The sizes of the convolution.
        data: The image in that order; all pixels are one axis to the runtime.
        weights: The filters in the order of ``filters_of``.
    """
    rank = len(dims)
    pixels = tuple(range(1, rank - 1)) if shape.channels_last else tuple(range(2, rank))
    channel = rank - 1 if shape.channels_last else 1

    def describe(step: Step) -> dict[str, Any]:
        x, filters = step.reads

        def strides(own: Ints) -> Ints:
            pixel = collapsed(pixels, step.dims, own)
            inner = (pixel, own[channel]) if shape.channels_last else (own[channel], pixel)
            return (own[0], *inner)

        return {
            "images": shape.images,
            "groups": shape.groups,
            "filters": shape.filters,
            "channels": shape.channels,
            "channels_last": int(shape.channels_last),
            **_pair("", "h", "w", shape.data),
            **_pair("out_", "h", "w", shape.out),
            **_pair("kernel_", "h", "w", shape.kernel),
            **_pair("stride_", "h", "w", shape.strides),
            **_pair("dilation_", "h", "w", shape.dilation),
            **_pair("pad_", "h", "w", shape.begin),
            "x": x.place(),
            "weights": filters.place(),
            "y": step.out.place(),
            "post": [p.as_json(strides(p.strides) if p.strides else ()) for p in step.posts],
        }

    return program.emit("convolution", dims, [program.dense(data), weights], describe, (pixels,))


def _pair(prefix: str, first: str, second: str, values: Ints) -> dict[str, int]:
    return {prefix + first: values[0], prefix + second: values[1]}


def filters_of(program: BlasProgram, node: Node, index: int, shape: Shape) -> View:
    """Returns constant weights in the order in which the product reads them.

    The order is (filter, channel, kernel), or (group, kernel, channel, filter) with channels last.
    """
    array = program.value(index)
    layout = str(node.attributes["kernel_layout"])
    space = layout.replace("O", "").replace("I", "")
    array = array.transpose([layout.index(a) for a in "OI" + space])
    if shape.channels_last:
        grouped = array.reshape(shape.groups, shape.filters, *array.shape[1:])
        rank = len(space)
        array = grouped.transpose(0, *range(3, 3 + rank), 2, 1)
    return program.constant(array)
