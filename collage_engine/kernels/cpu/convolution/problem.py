"""States a convolution with constant weights: how it is recognised, and its plain computation.

Weights are packed in blocks of output channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Self

import msgspec
import numpy as np
from tvm import te, tirx
from tvm.ir import Call, Expr

from collage_engine.kernels.relax_values import (
    both_sides,
    float_operands,
)
from collage_engine.kernels.tir_builder import Index

SPATIAL = {3: "W", 4: "HW", 5: "DHW"}
"""Letters of the spatial axes in TVM's layouts, by the number of all axes."""
NO_KERNEL: tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]] = (1, (), (), ())
"""Groups, strides, padding and dilation of a product, which has no kernel."""


class ConvProblem(msgspec.Struct, frozen=True, tag_field="family", tag="conv"):
    """The sizes of one convolution in float32, in TVM's argument conventions, or of a product.

    ``data`` and ``out_shape`` are in the layout's order, ``weight`` is output channels, input
    channels of a group, kernel. ``padding`` is before every spatial axis, then behind every one.
    A product with a constant matrix has no kernel: its columns are output channels, which are last,
    and ``data`` and ``out_shape`` may have several leading axes.
    """

    channels_last: bool
    data: tuple[int, ...]
    out_shape: tuple[int, ...]
    weight: tuple[int, ...]
    groups: int
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def dims(self) -> int:
        """Returns how many spatial axes there are."""
        return len(self.kernel)

    @property
    def batch(self) -> int:
        """Returns how many images there are."""
        return self.data[0]

    @property
    def kernel(self) -> tuple[int, ...]:
        """Returns the taps along each spatial axis."""
        return self.weight[2:]

    @property
    def taps(self) -> int:
        """Returns the taps of the whole kernel."""
        return prod(self.kernel)

    @property
    def co(self) -> int:
        """Returns how many output channels all groups have together."""
        return self.weight[0]

    @property
    def ci(self) -> int:
        """Returns how many input channels all groups have together."""
        return self.ci_group * self.groups

    @property
    def co_group(self) -> int:
        """Returns how many output channels one group has."""
        return self.co // self.groups

    @property
    def ci_group(self) -> int:
        """Returns how many input channels one group has."""
        return self.weight[1]

    @property
    def size(self) -> tuple[int, ...]:
        """Return the spatial sizes of the data."""
        return self.data[1:-1] if self.channels_last else self.data[2:]

    @property
    def out(self) -> tuple[int, ...]:
        """Return the spatial sizes of the result."""
        return self.out_shape[1:-1] if self.channels_last else self.out_shape[2:]

    @property
    def before(self) -> tuple[int, ...]:
        """Return the padding before each spatial axis."""
        return self.padding[: self.dims]

    @property
    def after(self) -> tuple[int, ...]:
        """Return the padding behind each spatial axis."""
        return self.padding[self.dims :]

    @property
    def padded(self) -> tuple[int, ...]:
        """Return the spatial sizes with the padding."""
        return tuple(b + s + a for b, s, a in zip(self.before, self.size, self.after, strict=True))

    @property
    def is_padded(self) -> bool:
        """Tells whether there is any padding."""
        return any(self.padding)

    @property
    def depthwise(self) -> bool:
        """Tells whether every channel is convolved by itself.

        Channels first, an input channel may have several outputs (a multiplier).
        """
        if self.ci_group != 1 or self.groups == 1:
            return False
        return not self.channels_last or self.co == self.groups

    @property
    def pointwise(self) -> bool:
        """Tells whether output positions are input positions, one by one."""
        return self.taps == 1 and not self.is_padded and all(s == 1 for s in self.strides)

    @property
    def image(self) -> tuple[int, int]:
        """Returns the rows and columns that tiles of positions cover.

        A run of positions is one column, and so are all rows of a product.
        """
        if not self.kernel:
            return prod(self.out_shape[:-1]), 1
        if self.pointwise or self.dims == 1:
            return prod(self.out), 1
        return self.out[-2], self.out[-1]

    def of_points(self) -> Self:
        """Return a product as a convolution of single points; a convolution as it is.

        Rows are positions along one spatial axis, and the kernel is a single tap.
        """
        if self.kernel:
            return self
        rows = self.image[0]
        return msgspec.structs.replace(
            self,
            data=(1, rows, self.ci),
            out_shape=(1, rows, self.co),
            weight=(*self.weight, 1),
            strides=(1,),
            padding=(0, 0),
            dilation=(1,),
        )

    @property
    def multiply_adds(self) -> float:
        """Returns how many products are added up."""
        return float(prod(self.out_shape) * self.depth)

    @property
    def depth(self) -> int:
        """Returns how many products are added up to one result."""
        return prod(self.weight[1:])

    def operands(self, random: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return random data and a random weight; results are about as large as the data."""
        data, weight = (
            random.standard_normal(shape, dtype=np.float32) for shape in (self.data, self.weight)
        )
        return data, weight * np.float32(self.depth**-0.5)


def described(call: Call) -> tuple[ConvProblem, np.ndarray] | None:
    """Return a convolution's problem and its weight (OIHW…), or None when it is not one of ours."""
    operands = float_operands(call)
    if operands is None:
        return None
    shape, weight, out = operands
    axes = SPATIAL.get(len(shape))
    attributes = call.attrs
    if axes is None or str(attributes.out_layout or attributes.data_layout) != str(
        attributes.data_layout
    ):
        return None
    layout, kernel_layout = str(attributes.data_layout), str(attributes.kernel_layout)
    if layout not in (f"NC{axes}", f"N{axes}C") or sorted(kernel_layout) != sorted(f"OI{axes}"):
        return None
    weight = weight.transpose([kernel_layout.index(a) for a in f"OI{axes}"])
    problem = ConvProblem(
        layout == f"N{axes}C",
        shape,
        out,
        weight.shape,
        int(attributes.groups),
        tuple(int(v) for v in attributes.strides),
        both_sides([int(v) for v in attributes.padding], len(axes)),
        tuple(int(v) for v in attributes.dilation),
    )
    return problem, weight


def in_blocks(problem: ConvProblem, weight: np.ndarray, block: int) -> np.ndarray:
    """Return a weight [O, I, *kernel] cut into blocks of output channels.

    Args:
        problem: The convolution.
        weight: Its weight: output channels, input channels of a group, kernel.
        block: Output channels per block.

    Returns:
        A float32 array [groups, blocks, block, input channels of a group, *kernel]; the channels
        that the last block lacks are zero.
    """
    channels = (problem.ci_group, *problem.kernel)
    wide = np.asarray(weight, np.float32).reshape(problem.groups, problem.co_group, *channels)
    lacking = -problem.co_group % block
    if lacking:
        wide = np.pad(wide, [(0, 0), (0, lacking), *[(0, 0)] * len(channels)])
    return wide.reshape(problem.groups, -1, block, *channels)


def taps_of(problem: ConvProblem) -> list[Any]:
    """Return a reduction axis for each of the kernel's axes."""
    return [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(problem.kernel)]


def input_at(
    problem: ConvProblem,
    data: Any,
    index: Sequence[Index],
    taps: Sequence[Index],
    channel: Index,
    rim: Any = None,
) -> Any:
    """Return the input element that a tap of the output at ``index`` reads.

    Args:
        problem: The convolution.
        data: The data's tensor, or what gives an element for indices in the layout's order.
        index: The output element, in the layout's order.
        taps: The tap's place along each axis of the kernel.
        channel: The input channel, of all groups.
        rim: What stands outside the image; 0 by default.
    """
    if not taps:
        return data(*index[:-1], channel)
    position = index[1:-1] if problem.channels_last else index[2:]
    at = [
        p * s + k * d - b
        for p, s, k, d, b in zip(
            position, problem.strides, taps, problem.dilation, problem.before, strict=True
        )
    ]
    x = data(index[0], *at, channel) if problem.channels_last else data(index[0], channel, *at)
    if problem.is_padded:
        tests = [t for a, s in zip(at, problem.size, strict=True) for t in (a >= 0, a < s)]
        x = tirx.if_then_else(tirx.all(*tests), x, tirx.const(0, "float32") if rim is None else rim)
    return x


def blocked_sum(
    problem: ConvProblem,
    data: Any,
    block: int,
    taps: Sequence[Index],
    weight_at: Callable[[Index, Index, Index, Index], Any],
    note: dict[str, str],
) -> Any:
    """Return a convolution or product over a weight that is packed by blocks of output channels.

    Args:
        problem: The convolution or product.
        data: The data's tensor; that of a product may have several leading axes.
        block: Output channels of a block.
        taps: Reduction axes; the kernel's own come first.
        weight_at: The weight's element for (group, block, input channel of the group, output
            channel of the block), at the taps.
        note: The annotation for the block that adds up.
    """
    channel = te.reduce_axis((0, problem.ci_group), "rc")

    def element(*index: Index) -> Expr:
        c = index[-1] if problem.channels_last else index[1]
        group: Index = tirx.floordiv(c, problem.co_group) if problem.groups > 1 else 0
        source = group * problem.ci_group + channel if problem.groups > 1 else channel
        x = input_at(problem, data, index, taps[: problem.dims], source)
        inner = tirx.floormod(c, problem.co_group) if problem.groups > 1 else c
        b, r = tirx.floordiv(inner, block), tirx.floormod(inner, block)
        return te.sum(x * weight_at(group, b, channel, r), axis=[channel, *taps])

    if not problem.kernel:
        return te.compute((*data.shape[:-1], problem.co), element, name="matmul", attrs=note)
    return te.compute(problem.out_shape, element, name="conv", attrs=note)
