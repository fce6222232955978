"""Rewrites transposed convolutions as ordinary ones.

With strides of s an output row u (counted before padding is cut off) has the rest r = u mod s and
reads only the taps r, r + s, r + 2 s, …: for each rest, an ordinary convolution of stride 1 over
the input, with ⌈k / s⌉ taps. All rests together are one convolution with s times the channels along
each axis, whose results are then laid side by side ("sub-pixel convolution", Shi et al. 2016).
Nothing is multiplied by the zeros that a transposed convolution is usually explained with.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as combinations
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from collage_engine.kernels.relax_values import (
    const,
    float_operands,
    name_of,
    static_shape,
)

SPATIAL = {
    "relax.nn.conv1d_transpose": "W",
    "relax.nn.conv2d_transpose": "HW",
    "relax.nn.conv3d_transpose": "DHW",
}


@dataclass(frozen=True)
class SubPixels:
    """The ordinary convolution, and how its results become the transposed one's."""

    weight: np.ndarray
    """O, I, kernel; outputs by rest and channel, or by channel and rest."""
    strides: tuple[int, ...]
    """Strides of the transposed convolution: the number of rests along each axis."""
    channels: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    """``before`` and ``after``: elements of padding of the ordinary convolution along each axis."""
    first: tuple[int, ...]
    """Positions cut off in front once results lie side by side."""
    out: tuple[int, ...]
    """Spatial sizes of the transposed convolution's result."""


def sub_pixels(call: Any, *, last: bool) -> SubPixels | None:
    """Return how a call is written as an ordinary convolution.

    Args:
        call: A call of any operator.
        last: Whether outputs are ordered by rest, then channel, for channels-last images.

    Returns:
        None where it is not so written (groups, dilation, a weight that is no constant).
    """
    axes = SPATIAL.get(name_of(call))
    if axes is None:
        return None
    operands = float_operands(call)
    attributes, dims = call.attrs, len(axes)
    if operands is None or int(attributes.groups) != 1:
        return None
    shape, weight, out = operands
    layout = str(attributes.data_layout)
    if layout != f"NC{axes}" or str(attributes.out_layout or layout) != layout:
        return None
    if str(attributes.kernel_layout) != f"IO{axes}" or any(int(d) > 1 for d in attributes.dilation):
        return None
    strides = tuple(int(s) for s in attributes.strides)
    padding = [int(p) for p in attributes.padding]
    padding = padding * (2 * dims // len(padding))
    taps = [-(-k // s) for k, s in zip(weight.shape[2:], strides, strict=True)]
    begin = [p // s for p, s in zip(padding[:dims], strides, strict=True)]
    end = [(o + p - 1) // s for o, p, s in zip(out[2:], padding[:dims], strides, strict=True)]
    before = tuple(t - 1 - b for t, b in zip(taps, begin, strict=True))
    after = tuple(e - (n - 1) for e, n in zip(end, shape[2:], strict=True))
    if min(*before, *after) < 0:
        return None
    inside, outside = weight.shape[:2]
    wide = np.zeros((*strides, outside, inside, *taps), weight.dtype)
    for rest in combinations(*(range(s) for s in strides)):
        every = [slice(r, None, s) for r, s in zip(rest, strides, strict=True)]
        picked = weight[(slice(None), slice(None), *every)]
        # The last tap reads the earliest input; those that are missing are zero.
        turned = np.flip(picked.swapaxes(0, 1), tuple(range(2, 2 + dims)))
        window = tuple(slice(t - e, t) for t, e in zip(taps, turned.shape[2:], strict=True))
        target: Any = (*rest, slice(None), slice(None), *window)
        wide[target] = turned
    if not last:
        wide = np.moveaxis(wide, dims, 0)
    return SubPixels(
        weight=np.ascontiguousarray(wide.reshape(-1, inside, *taps)),
        strides=strides,
        channels=outside,
        before=before,
        after=after,
        first=tuple(p - b * s for p, b, s in zip(padding[:dims], begin, strides, strict=True)),
        out=tuple(out[2:]),
    )


def emit(builder: relax.BlockBuilder, data: Any, pixels: SubPixels, *, last: bool) -> Any:
    """Return the result over data of the order that ``sub_pixels`` was asked for.

    Channels last only with two spatial axes.
    """
    dims = len(pixels.strides)
    axes = "DHW"[3 - dims :]
    layout = f"N{axes}C" if last else f"NC{axes}"
    make = (relax.op.nn.conv1d, relax.op.nn.conv2d, relax.op.nn.conv3d)[dims - 1]
    value = builder.emit(
        make(
            data,
            const(pixels.weight),
            padding=[*pixels.before, *pixels.after],
            data_layout=layout,
            kernel_layout=f"OI{axes}",
            out_layout=layout,
        )
    )
    shape = static_shape(value)
    assert shape is not None
    size = shape[1:-1] if last else shape[2:]
    if any(s > 1 for s in pixels.strides):
        wide = [e * s for e, s in zip(size, pixels.strides, strict=True)]
        if last:
            split = [shape[0], *size, *pixels.strides, pixels.channels]
            sides = [axis for d in range(dims) for axis in (1 + d, 1 + dims + d)]
            order, merged = [0, *sides, 1 + 2 * dims], [shape[0], *wide, pixels.channels]
        else:
            split = [shape[0], pixels.channels, *pixels.strides, *size]
            sides = [axis for d in range(dims) for axis in (2 + dims + d, 2 + d)]
            order, merged = [0, 1, *sides], [shape[0], pixels.channels, *wide]
        value = builder.emit(relax.op.reshape(value, split))
        value = builder.emit(relax.op.permute_dims(value, order))
        value = builder.emit(relax.op.reshape(value, merged))
        size = tuple(wide)
    if any(pixels.first) or size != pixels.out:
        ends = [f + o for f, o in zip(pixels.first, pixels.out, strict=True)]
        spatial = list(range(1, 1 + dims) if last else range(2, 2 + dims))
        value = builder.emit(
            relax.op.strided_slice(value, spatial, list(pixels.first), ends, [1] * dims)
        )
    return value


def rewritten(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with ``main``'s transposed convolutions as ordinary ones, plain layout."""
    main = module.get_global_var("main")
    if not any(
        name_of(binding.value) in SPATIAL
        for block in module["main"].body.blocks
        for binding in block.bindings
    ):
        return module
    attributes = module["main"].attrs
    writing = _Rewriting(module)
    function = writing.visit_expr(module["main"])
    if attributes:
        function = function.with_attrs(dict(attributes))
    writing.builder_.update_func(main, function)
    return writing.builder_.get()


@mutator
class _Rewriting(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        pixels = sub_pixels(call, last=False)
        return call if pixels is None else emit(self.builder_, call.args[0], pixels, last=False)
