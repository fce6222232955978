"""Derives axes and paddings of convolutions of images and of volumes."""

from __future__ import annotations

from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.cudnn.program import Ints, View

SPACE = "DHW"
"""Names of the axes of space in layouts; operators of fewer dimensions use the last ones."""


def in_order(view: View, layout: str, logical: str, op: str) -> View:
    """Returns a view with its axes in the order batch, channels, space.

    Raises:
        UnsupportedError: The operator's layout is not one of these axes.
    """
    if sorted(layout) != sorted(logical):
        raise UnsupportedError(f"{onnx_type(op)}: cuDNN has no layout {layout}")
    return view.permuted(tuple(layout.index(c) for c in logical))


def deconvolution_end(
    node: Node, x: View, kernel: Ints, strides: Ints, dilation: Ints, begin: Ints, layout: str
) -> Ints:
    """Returns the padding behind each axis with which the result has its size.

    Output padding reduces it.
    """
    rank = len(kernel)
    logical = "NC" + SPACE[3 - rank :]
    sizes = [node.type.shape[layout.index(c)] for c in logical[2:]]
    return tuple(
        (x.dims[2 + d] - 1) * strides[d] + (kernel[d] - 1) * dilation[d] + 1 - begin[d] - sizes[d]
        for d in range(rank)
    )
