"""Convolutions with constant weights: choice of the way, packing, computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Call, Expr

from collage_engine.kernels.choices import plan_for
from collage_engine.kernels.cpu.direct_spatial import writer as conv_spatial
from collage_engine.kernels.cpu.winograd import cost as winograd_plan
from collage_engine.kernels.cpu.winograd import reference as winograd
from collage_engine.kernels.cpu.writing import tile_choice as conv_plan
from collage_engine.kernels.relax_values import (
    ANCHOR,
    const,
    dtype_of,
    float_operands,
    narrowed,
    note,
    widened,
)
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import product

SPATIAL = {3: "W", 4: "HW", 5: "DHW"}
SHALLOW = 256
"""Products per output element below which channels-first images keep their layout."""
DIRECT = {"way": "direct"}
"""The plan of a convolution that is to be multiplied out."""


def described(call: Call) -> tuple[Geometry, np.ndarray] | None:
    """A convolution's sizes and its weight (OIHW…), or None when it is not one of ours."""
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
    geometry = Geometry(
        layout == f"N{axes}C",
        shape,
        out,
        weight.shape,
        int(attributes.groups),
        [int(v) for v in attributes.strides],
        [int(v) for v in attributes.padding],
        [int(v) for v in attributes.dilation],
    )
    return geometry, weight


def legalize(builder: relax.BlockBuilder, call: Call, cpu: Cpu) -> Expr | None:
    """The convolution with its weight packed, or None when it is not one of ours."""
    found = described(call)
    if found is None:
        return None
    geometry, weight = found
    dtype = dtype_of(call)
    plan = plan_for(geometry.workload(cpu), geometry.description())
    way = geometry.way(cpu, plan)
    packed = geometry.pack(weight, way, cpu, plan)
    return builder.call_te(
        lambda x, w: narrowed(geometry.compute(widened(x), w, way, plan), dtype),
        call.args[0],
        const(packed),
        primfunc_name_hint=f"conv{geometry.dims}d",
        primfunc_attrs=ANCHOR,
    )


def both_sides(padding: list[int], dims: int) -> list[int]:
    """Padding before and after each axis, from TVM's short forms."""
    if len(padding) == 1:
        return padding * (2 * dims)
    return padding * 2 if len(padding) == dims else padding


class Geometry:
    """Sizes of one convolution, in TVM's argument conventions."""

    def __init__(
        self,
        channels_last: bool,
        data: tuple[int, ...],
        out: tuple[int, ...],
        weight: tuple[int, ...],
        groups: int,
        strides: list[int],
        padding: list[int],
        dilation: list[int],
    ) -> None:
        self.channels_last = channels_last
        self.data, self.out_shape, self.weight = data, out, weight
        self.groups, self.strides, self.dilation = groups, strides, dilation
        dims = len(data) - 2
        self.padding = both_sides(padding, dims)
        self.dims = dims
        self.kernel = tuple(weight[2:])
        self.co, self.ci_group = weight[0], weight[1]
        self.co_group = self.co // groups
        self.ci = self.ci_group * groups
        self.size = data[1:-1] if channels_last else data[2:]
        self.out = out[1:-1] if channels_last else out[2:]

    @property
    def depthwise(self) -> bool:
        if self.ci_group != 1 or self.groups == 1:
            return False
        return not self.channels_last or self.co == self.groups

    def description(self) -> dict[str, Any]:
        """The arguments that make this geometry again, as JSON values."""
        return {
            "family": "conv",
            "channels_last": self.channels_last,
            "data": list(self.data),
            "out": list(self.out_shape),
            "weight": list(self.weight),
            "groups": self.groups,
            "strides": list(self.strides),
            "padding": list(self.padding),
            "dilation": list(self.dilation),
        }

    @staticmethod
    def from_description(d: dict[str, Any]) -> Geometry:
        return Geometry(
            d["channels_last"],
            tuple(d["data"]),
            tuple(d["out"]),
            tuple(d["weight"]),
            d["groups"],
            d["strides"],
            d["padding"],
            d["dilation"],
        )

    def workload(self, cpu: Cpu) -> str:
        """One line that equal convolutions share."""

        def sizes(values: Any) -> str:
            return "x".join(map(str, values))

        layout = "last" if self.channels_last else "first"
        return (
            f"conv channels {layout} {sizes(self.data)} weight {sizes(self.weight)} strides "
            f"{sizes(self.strides)} padding {sizes(self.padding)} dilation "
            f"{sizes(self.dilation)} groups {self.groups} threads {cpu.threads}"
        )

    def ways(self, cpu: Cpu) -> tuple[str, ...]:
        """All ways it can be written in."""
        if self.depthwise:
            return ("depthwise",)
        fewer = ("winograd",) if self.takes_winograd(cpu) else ()
        if self.channels_last or product(self.out) < cpu.lanes("float32"):
            return ("channels", *fewer)
        return ("channels", "spatial", *fewer)

    def takes_winograd(self, cpu: Cpu) -> bool:
        return self.dims == 2 and winograd_plan.takes(
            self.kernel, self.strides, self.dilation, self.groups, (self.ci, self.co), cpu
        )

    def way(self, cpu: Cpu, plan: Mapping[str, Any] | None = None) -> str:
        chosen = (plan or {}).get("way")
        if chosen in self.ways(cpu):
            return str(chosen)
        if self.depthwise:
            return "depthwise"
        sizes = self.co, self.ci, self.out
        if chosen is None and self.takes_winograd(cpu) and winograd_plan.worthwhile(cpu, *sizes):
            return "winograd"
        if self.channels_last:
            return "channels"
        if self.co_group < cpu.lanes("float32"):
            return "spatial" if product(self.out) >= cpu.lanes("float32") else "channels"
        # Moving the image's channels to the lanes and back pays when many products use it.
        few = self.ci_group * product(self.kernel) < SHALLOW
        return "spatial" if few and product(self.out) >= cpu.lanes("float32") else "channels"

    def positions(self) -> int:
        """Vector lanes' worth of positions the spatial way computes, surplus included."""
        pitches = [
            -(-(b + s + a) // stride)
            for b, s, a, stride in zip(
                self.padding[: self.dims],
                self.size,
                self.padding[self.dims :],
                self.strides,
                strict=True,
            )
        ]
        span = 0
        for o, p in zip(self.out, pitches, strict=True):
            span = span * p + (o - 1)
        lanes = 16
        return -(-(span + 1) // lanes) * lanes

    def pack(
        self, weight: np.ndarray, way: str, cpu: Cpu, plan: Mapping[str, Any] | None = None
    ) -> np.ndarray:
        """The weight (OIHW…) in single precision as the way, or a chosen plan, wants it."""
        weight = weight.astype(np.float32)
        if way == "depthwise":
            flat = weight.reshape(self.co, *self.kernel)
            return flat.transpose(*range(1, self.dims + 1), 0) if self.channels_last else flat
        if way == "winograd":
            outputs = winograd_plan.outputs_of(cpu, self.co, self.ci, self.out, plan)
            rows, columns = winograd_plan.tiles_of(self.out, outputs)
            block = winograd_plan.block(cpu, self.co, rows * columns)
            lanes = cpu.lanes("float32")
            block = lanes * int((plan or {}).get("block", block // lanes))
            return winograd.pack(weight, outputs, block)
        groups, co, ci = self.groups, self.co_group, self.ci_group
        grouped = weight.reshape(groups, co, ci, *self.kernel)
        chunk = ci
        if way == "channels":
            taps = product(self.kernel)
            plain = conv_plan.is_plain(taps, any(self.padding))
            image = conv_plan.image_of(self.out, plain)
            cut = conv_plan.chosen_plan(cpu, co, ci, taps, image, plan or {})
            block, chunk = cut.block, cut.chunk
        else:
            block = conv_spatial.rows_of(cpu, co, self.positions())
            block = max(1, min(16, co, int((plan or {}).get("block", block))))
        blocks = -(-co // block)
        padded = np.zeros((groups, blocks * block, ci, *self.kernel), np.float32)
        padded[:, :co] = grouped
        split = padded.reshape(groups, blocks, block, ci // chunk, chunk, *self.kernel)
        taps_axes = tuple(range(5, 5 + self.dims))
        if way == "channels":
            return split.transpose(0, 1, 3, *taps_axes, 4, 2)
        return split[:, :, :, 0].transpose(0, 1, 3, *(a - 1 for a in taps_axes), 2)

    def compute(
        self, data: Any, weight: Any, way: str, plan: Mapping[str, Any] | None = None
    ) -> Any:
        """The reference computation over the packed weight; the schedules' specification."""
        taps = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(self.kernel)]
        channel = te.reduce_axis((0, self.ci_group), "rc")
        if way == "winograd":
            taps = winograd.axes()
        block = int(weight.shape[-1])
        before = self.padding[: self.dims]
        padded = any(self.padding)

        def element(*index: Any) -> Any:
            n = index[0]
            c = index[-1] if self.channels_last else index[1]
            place = index[1:-1] if self.channels_last else index[2:]
            at = [
                p * s + k * d - b
                for p, s, k, d, b in zip(
                    place, self.strides, taps[: self.dims], self.dilation, before, strict=True
                )
            ]
            if way == "depthwise":
                source = c if self.co == self.ci else tirx.floordiv(c, self.co // self.ci)
            else:
                group = tirx.floordiv(c, self.co_group) if self.groups > 1 else 0
                source = group * self.ci_group + channel if self.groups > 1 else channel
            x = data(n, *at, source) if self.channels_last else data(n, source, *at)
            if padded:
                tests = [t for a, s in zip(at, self.size, strict=True) for t in (a >= 0, a < s)]
                x = tirx.if_then_else(tirx.all(*tests), x, tirx.const(0, "float32"))
            if way == "depthwise":
                w = weight(*taps, c) if self.channels_last else weight(c, *taps)
                return te.sum(x * w, axis=taps)
            inner = tirx.floormod(c, self.co_group) if self.groups > 1 else c
            b, r = tirx.floordiv(inner, block), tirx.floormod(inner, block)
            if way == "winograd":
                w = winograd.tap(weight, b, r, channel, taps)
            elif way == "channels":
                chunk = int(weight.shape[-2])
                outer, inside = tirx.floordiv(channel, chunk), tirx.floormod(channel, chunk)
                w = weight(group, b, outer, *taps, inside, r)
            else:
                w = weight(group, b, channel, *taps, r)
            return te.sum(x * w, axis=[channel, *taps])

        return te.compute(
            self.out_shape,
            element,
            name="conv",
            attrs=note(
                family="conv",
                way=way,
                channels_last=self.channels_last,
                groups=self.groups,
                kernel=list(self.kernel),
                strides=self.strides,
                padding=self.padding,
                dilation=self.dilation,
                **({"plan": dict(plan)} if plan else {}),
            ),
        )
