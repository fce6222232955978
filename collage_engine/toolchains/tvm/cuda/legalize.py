"""Legalises convolutions and matrix products for an NVIDIA device.

A convolution's columns are pixels and its rows output channels, so neighbouring threads read and
write neighbouring pixels; B is read from the image where it is needed and never stored (implicit
GEMM).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Call, Expr

from collage_engine.toolchains.tvm.cuda.direct import (
    DirectPlans,
    direct_out,
    direct_planner,
    few_rows,
    noted_direct,
    packed_filters,
    shape_of_direct,
)
from collage_engine.toolchains.tvm.cuda.epilogue import OUT
from collage_engine.toolchains.tvm.cuda.indices import (
    broadcast,
    fused,
    unfused,
    volume,
    where,
    worthwhile,
)
from collage_engine.toolchains.tvm.cuda.precisions import math_of
from collage_engine.toolchains.tvm.cuda.products import (
    Element,
    Plans,
    added,
    noted_product,
    planner,
)
from collage_engine.toolchains.tvm.cuda.tiles import PLAIN, Sizes
from collage_engine.toolchains.tvm.cuda.windows import Window, window_of
from collage_engine.toolchains.tvm.legalize.common import (
    ANCHOR,
    const,
    constant_of,
    dtype_of,
    static_shape,
)


class Products:
    """Legalises products for one architecture and precision."""

    def __init__(
        self, architecture: str, precision: str, plans: Plans | None = None,
        direct_plans: DirectPlans | None = None,
    ) -> None:  # fmt: skip
        self.architecture, self.precision = architecture, precision
        self.plans = plans or planner(architecture)
        self.direct_plans = direct_plans or direct_planner(architecture)

    def table(self) -> dict[str, Any]:
        """For ``relax.transform.LegalizeOps``; what is not ours falls to TVM's own."""

        def bind(function: Any) -> Any:
            def legalize(builder: relax.BlockBuilder, call: Call) -> Expr:
                found = function(builder, call)
                return call.op.get_attr("FLegalize")(builder, call) if found is None else found

            return legalize

        own: dict[str, Any] = {"relax.matmul": self.matmul}
        for dims in (1, 2, 3):
            own[f"relax.nn.conv{dims}d"] = self.convolution
            own[f"relax.nn.conv{dims}d_transpose"] = self.transposed_convolution
        return {name: bind(function) for name, function in own.items()}

    # -- operators ------------------------------------------------------------------------

    def matmul(self, builder: relax.BlockBuilder, call: Call) -> Expr | None:
        left, right = call.args
        a, b, out = static_shape(left), static_shape(right), static_shape(call)
        if a is None or b is None or out is None or min(len(a), len(b)) < 2:
            return None
        math = self._math(call, left, right)
        batch = out[:-2]
        merged = all(e == 1 for e in b[:-2])
        # Rows of all batches together where the right operand is one and the same.
        sizes = (
            Sizes(1, volume(a[:-1]), out[-1], a[-1])
            if merged
            else Sizes(volume(batch), out[-2], out[-1], a[-1])
        )
        if math is None or not worthwhile(sizes):
            return None

        def elements(x: Any, y: Any) -> tuple[Element, Element]:
            def at_a(s: Any, m: Any, k: Any) -> Any:
                if merged:
                    return x(*unfused(m, a[:-1]), k)
                return x(*broadcast(unfused(s, batch), a[:-2]), m, k)

            def at_b(s: Any, k: Any, n: Any) -> Any:
                if merged:
                    return y(*(0 for _ in b[:-2]), k, n)
                return y(*broadcast(unfused(s, batch), b[:-2]), k, n)

            return at_a, at_b

        def place(*index: Any) -> tuple[Any, Any, Any]:
            if merged:
                return tirx.const(0), fused(index[:-1], out[:-1]), index[-1]
            return fused(index[:-2], batch), index[-2], index[-1]

        how = {"kind": "matmul", "merged": merged}
        return self._emit(builder, call, [left, right], elements, sizes, math, out, place, how,
                          vectors=(a[-1], out[-1]))  # fmt: skip

    def convolution(self, builder: relax.BlockBuilder, call: Call) -> Expr | None:
        window = window_of(call, "OI")
        if window is None:
            return None
        shape, weight, out = window.shape, window.weight, window.out
        groups, strides = window.groups, window.strides
        dilation, padding = window.dilation, window.padding
        simple = max(weight[2:]) == 1 and set(strides) == {1} and not any(padding)

        def read(x: Any, image: Any, channel: Any, pixel: Sequence[Any], tap: Sequence[Any]) -> Any:
            before = padding[: len(strides)]
            at = [p * s + t * d - b for p, s, t, d, b
                  in zip(pixel, strides, tap, dilation, before, strict=True)]  # fmt: skip
            value = x(image, channel, *at)
            tests = []
            for i, e in enumerate(shape[2:]):
                if padding[i]:
                    tests.append(at[i] >= 0)
                reach = (out[2 + i] - 1) * strides[i] + (weight[2 + i] - 1) * dilation[i]
                if reach - padding[i] >= e:
                    tests.append(at[i] < e)
            return where(tests, value)

        if few_rows(window):
            return self.direct(builder, call, window)
        filters = (groups, weight[0] // groups, weight[1], *weight[2:])
        return self._convolution(builder, call, filters, out, read,
                                 lambda w: w.reshape(filters), simple, shape)  # fmt: skip

    def transposed_convolution(self, builder: relax.BlockBuilder, call: Call) -> Expr | None:
        """As a convolution that reads zeros between the pixels it spreads."""
        window = window_of(call, "IO")
        if window is None:
            return None
        shape, weight, out = window.shape, window.weight, window.out
        groups, strides = window.groups, window.strides
        dilation, padding = window.dilation, window.padding

        def read(x: Any, image: Any, channel: Any, pixel: Sequence[Any], tap: Sequence[Any]) -> Any:
            tests, at = [], []
            for i, (p, t) in enumerate(zip(pixel, tap, strict=True)):
                spread = p + padding[i] - t * dilation[i]
                tests += [spread >= 0, spread <= (shape[2 + i] - 1) * strides[i]]
                if strides[i] > 1:
                    tests.append(tirx.floormod(spread, strides[i]) == 0)
                at.append(tirx.floordiv(spread, strides[i]) if strides[i] > 1 else spread)
            return where(tests, x(image, channel, *at))

        filters = (groups, weight[1], weight[0] // groups, *weight[2:])

        def turned(w: np.ndarray) -> np.ndarray:
            split = w.reshape(groups, weight[0] // groups, weight[1], *weight[2:])
            return split.swapaxes(1, 2)

        return self._convolution(builder, call, filters, out, read, turned, False, shape)

    def _convolution(
        self, builder: relax.BlockBuilder, call: Call, filters: tuple[int, ...],
        out: tuple[int, ...], read: Any, arranged: Callable[[np.ndarray], np.ndarray],
        simple: bool, shape: tuple[int, ...],
    ) -> Expr | None:  # fmt: skip
        """``filters``: groups, rows, channels, then taps: the shape of the arranged weight."""
        groups, rows, channels, *taps = filters
        data, kernel = call.args
        weight = constant_of(kernel)
        math = self._math(call, data, kernel)
        pixels = volume(out[2:])
        sizes = Sizes(groups, rows, out[0] * pixels, channels * volume(taps))
        if math is None or weight is None or not worthwhile(sizes):
            return None
        packed = np.ascontiguousarray(arranged(weight)).reshape(groups, rows, sizes.k)
        if math == PLAIN:
            packed = packed.swapaxes(1, 2)  # shared memory holds slices of A by k

        def elements(x: Any, w: Any) -> tuple[Element, Element]:
            def at_a(s: Any, m: Any, k: Any) -> Any:
                return w(s, k, m) if math == PLAIN else w(s, m, k)

            def at_b(s: Any, k: Any, n: Any) -> Any:
                image, *pixel = unfused(n, (out[0], *out[2:]))
                channel, *tap = unfused(k, (channels, *taps))
                first = channel if groups == 1 else s * channels + channel
                return read(x, image, first, pixel, tap)

            return at_a, at_b

        def place(*index: Any) -> tuple[Any, Any, Any]:
            image, channel, *pixel = index
            n = fused((image, *pixel), (out[0], *out[2:]))
            if groups == 1:
                return tirx.const(0), channel, n
            return tirx.floordiv(channel, rows), tirx.floormod(channel, rows), n

        along = pixels if simple else 1
        return self._emit(
            builder, call, [data, const(packed)], elements, sizes, math, out, place,
            {"kind": "conv", "groups": groups}, vectors=(rows if math == PLAIN else sizes.k, along),
        )  # fmt: skip

    def direct(self, builder: relax.BlockBuilder, call: Call, window: Window) -> Expr | None:
        """A convolution with few output channels a group."""
        data, kernel = call.args
        weight, dtype = constant_of(kernel), dtype_of(data)
        if weight is None or self._math(call, data, kernel) is None:
            return None
        shape = shape_of_direct(window, dtype)
        plan = self.direct_plans(shape)
        if plan is None:
            return None
        packed = packed_filters(weight, shape)

        def compute(x: Any, w: Any) -> Any:
            def image(n: Any, c: Any, *at: Any) -> Any:
                return x(n, c, *at[3 - len(window.strides) :])

            whole = noted_direct(image, w, shape, plan, window.out)
            return direct_out(whole, shape, window.out, dtype_of(call))

        return builder.call_te(
            compute, data, const(packed),
            primfunc_name_hint=name_of(call), primfunc_attrs=ANCHOR,
        )  # fmt: skip

    # -- the product ----------------------------------------------------------------------

    def _math(self, call: Call, *operands: Expr) -> str | None:
        dtype = dtype_of(operands[0])
        if any(dtype_of(o) != dtype for o in operands) or dtype_of(call) not in (dtype, "float32"):
            return None
        return math_of(dtype, self.precision, self.architecture)

    def _emit(
        self, builder: relax.BlockBuilder, call: Call, operands: list[Expr], elements: Any,
        sizes: Sizes, math: str, out: tuple[int, ...], place: Any, how: dict[str, Any], *,
        vectors: tuple[int, int],
    ) -> Expr:  # fmt: skip
        """``vectors``: what the contiguous lengths of A's and B's reads are multiples of."""
        plan = self.plans(sizes, math)
        name, dtype, result_dtype = name_of(call), dtype_of(operands[0]), dtype_of(call)
        given = "float32" if plan.split > 1 else result_dtype

        def compute(x: Any, y: Any) -> Any:
            at_a, at_b = elements(x, y)
            whole = noted_product(at_a, at_b, sizes, plan, dtype, how, out, vectors)
            shape = out if plan.split == 1 else (plan.split, *out)

            def element(*index: Any) -> Any:
                if plan.split == 1:
                    s, m, n = place(*index)
                    return whole(s, m, n).astype(given)
                s, m, n = place(*index[1:])
                return whole(index[0] * sizes.s + s, m, n)

            return te.compute(shape, element, name=OUT)

        result = builder.call_te(
            compute, *operands, primfunc_name_hint=name,
            primfunc_attrs=ANCHOR,
        )  # fmt: skip
        if plan.split == 1:
            return result
        return builder.call_te(
            lambda parts: added(parts, out, result_dtype), builder.emit(result),
            primfunc_name_hint=f"{name}_sum", primfunc_attrs={"op_pattern": 0},
        )  # fmt: skip


def name_of(call: Call) -> str:
    """``conv2d`` of ``relax.nn.conv2d``."""
    return str(call.op.name).rpartition(".")[2]
