"""The windows of convolutions and poolings, one axis at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import Node


class Window(NamedTuple):
    """Along one axis: tap ``t`` of output ``o`` reads ``o * stride + t * dilation - before``."""

    size: int
    """Of the input."""
    out: int
    """Of the output."""
    taps: int
    stride: int
    dilation: int
    before: int
    """Padding before the input's first element."""

    def pairs_in_range(self) -> int:
        """Return the number of (output position, tap) pairs that touch no padding."""
        found = 0
        for tap in range(self.taps):
            # A pair counts when 0 <= position * stride + offset < size.
            offset = tap * self.dilation - self.before
            first = max(0, -(offset // self.stride) if offset < 0 else 0)
            last = min(self.out - 1, (self.size - 1 - offset) // self.stride)
            found += max(0, last - first + 1)
        return found

    def covers_input(self) -> bool:
        """Tell whether the windows leave no input position untouched.

        False where that is unknown.
        """
        reach = (self.out - 1) * self.stride + self.taps - self.before
        return self.dilation == 1 and self.stride <= self.taps and reach >= self.size


def convolution_windows(graph: DataflowGraph, node: Node) -> list[Window]:
    """Return a convolution's windows, one per spatial axis.

    None when its layout is a packed one.
    """
    data, weight = (graph.nodes[i].type for i in node.inputs[:2])
    layout = str(node.attributes.get("data_layout", ""))
    kernel = str(node.attributes.get("kernel_layout", ""))
    spatial = [axis for axis in layout if axis not in "NC"]
    if len(kernel) != len(weight.shape) or sorted(kernel) != sorted(["O", "I", *spatial]):
        return []
    taps = [weight.shape[kernel.index(axis)] for axis in spatial]
    return _windows(node, data.shape, layout, taps)


def pool_windows(graph: DataflowGraph, node: Node) -> list[Window]:
    """Return a pooling's windows, one per spatial axis; none when its layout is a packed one."""
    data = graph.nodes[node.inputs[0]].type
    layout = str(node.attributes.get("layout", ""))
    if node.is_tuple:
        return []
    taps = _sizes(node.attributes.get("pool_size"), len(layout) - 2)
    return _windows(node, data.shape, layout, taps)


def _windows(node: Node, data: Sequence[int], layout: str, taps: Sequence[int]) -> list[Window]:
    """Return windows over data of a shape and layout; none where the result has another layout."""
    out_layout = str(node.attributes.get("out_layout") or layout)
    if len(layout) != len(data) or out_layout != layout:
        return []
    spatial = [layout.index(axis) for axis in layout if axis not in "NC"]
    rank = len(spatial)
    strides = _sizes(node.attributes.get("strides"), rank)
    dilation = _sizes(node.attributes.get("dilation"), rank)
    padding = _sizes(node.attributes.get("padding", 0), 2 * rank)
    return [
        Window(
            data[at],
            node.type.shape[at],
            taps[place],
            strides[place],
            dilation[place],
            padding[place],
        )
        for place, at in enumerate(spatial)
    ]


def _sizes(value: Any, count: int) -> list[int]:
    """Return an attribute that may be one number for all axes, or half a symmetric padding."""
    if value is None:
        return [1] * count
    if isinstance(value, int):
        return [value] * count
    found = [int(v) for v in value]
    return found if len(found) == count else found * (count // len(found))
