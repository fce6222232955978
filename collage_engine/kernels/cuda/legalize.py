"""Legalises convolutions and matrix products for an NVIDIA device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Any

from tvm import relax
from tvm.ir import Call, Expr

from collage_engine.kernels.cuda.direct import (
    NotedDirect,
    direct_chosen,
    direct_result,
    few_rows,
    packed_filters,
    shape_of_direct,
)
from collage_engine.kernels.cuda.problems import (
    Window,
    math_of,
    multiprocessors,
    window_of,
    worthwhile,
)
from collage_engine.kernels.cuda.product.forms import Convolution, Form, Matmul, added, result_of
from collage_engine.kernels.cuda.product.plan import chosen
from collage_engine.kernels.relax_values import (
    ANCHOR,
    const,
    constant_of,
    dtype_of,
    static_shape,
)
from collage_engine.records.precision import FLOAT32


class Products:
    """The legaliser of products for one architecture and precision."""

    def __init__(
        self,
        architecture: str,
        precision: str,
        *,
        full: Collection[int] = (),
    ) -> None:
        """Create a legaliser.

        Args:
            architecture: The device's architecture, for example ``sm_90a``.
            precision: The lowest precision that products of float32 may have.
            full: Which products of ``main``, counted in their order, stay in float32.
        """
        self._full, self._order = frozenset(full), itertools.count()
        self._is_full = False
        """Whether the product that is legalised now stays in float32."""
        self.architecture, self.precision = architecture, precision
        self._count = multiprocessors(architecture)

    def table(self) -> dict[str, Any]:
        """Return the legalisations by operator name, for ``relax.transform.LegalizeOps``.

        What cannot be legalised here is passed to TVM's own legalisation.
        """
        own: dict[str, Callable[[relax.BlockBuilder, Call], Expr | None]] = {
            "relax.matmul": self.matmul
        }
        for dims in (1, 2, 3):
            own[f"relax.nn.conv{dims}d"] = self.convolution
            own[f"relax.nn.conv{dims}d_transpose"] = self.convolution

        def bind(function: Any) -> Any:
            def legalize(builder: relax.BlockBuilder, call: Call) -> Expr:
                self._is_full = next(self._order) in self._full
                replacement = function(builder, call)
                return (
                    call.op.get_attr("FLegalize")(builder, call)
                    if replacement is None
                    else replacement
                )

            return legalize

        return {name: bind(function) for name, function in own.items()}

    def matmul(self, builder: relax.BlockBuilder, call: Call) -> Expr | None:
        """Legalises a matrix product; returns None where tiles do not suit it."""
        left, right = call.args
        a, b, out = static_shape(left), static_shape(right), static_shape(call)
        if a is None or b is None or out is None or min(len(a), len(b)) < 2:
            return None
        form, math = Matmul(a, b, out), self._math(call, left, right)
        if math is None or not worthwhile(form.sizes):
            return None
        return self._emit(builder, call, form, math, left, right)

    def convolution(self, builder: relax.BlockBuilder, call: Call) -> Expr | None:
        """Legalises a convolution, transposed or not.

        Returns:
            The result; None where the weight or the sizes are not constant.
        """
        transposed = name_of(call).endswith("transpose")
        window = window_of(call, "IO" if transposed else "OI")
        if window is None:
            return None
        if not transposed and few_rows(window):
            return self._direct(builder, call, window)
        form = Convolution(window, transposed)
        data, kernel = call.args
        weight, math = constant_of(kernel), self._math(call, data, kernel)
        if math is None or weight is None or not worthwhile(form.sizes):
            return None
        return self._emit(builder, call, form, math, data, const(form.packed(weight, math)))

    def _direct(self, builder: relax.BlockBuilder, call: Call, window: Window) -> Expr | None:
        """Legalises a convolution with few output channels a group."""
        data, kernel = call.args
        weight, dtype = constant_of(kernel), dtype_of(data)
        if weight is None or self._math(call, data, kernel) is None:
            return None
        shape = shape_of_direct(window, dtype)
        plan = direct_chosen(shape, self._count)
        if plan is None:
            return None
        note = NotedDirect(shape, plan, window.out)
        return builder.call_te(
            lambda x, w: direct_result(x, w, note, dtype_of(call)),
            data,
            const(packed_filters(weight, shape)),
            primfunc_name_hint=name_of(call),
            primfunc_attrs=ANCHOR,
        )

    def _math(self, call: Call, *operands: Expr) -> str | None:
        dtype = dtype_of(operands[0])
        if any(dtype_of(o) != dtype for o in operands) or dtype_of(call) not in (dtype, "float32"):
            return None
        precision = FLOAT32 if self._is_full else self.precision
        return math_of(dtype, precision, self.architecture)

    def _emit(
        self, builder: relax.BlockBuilder, call: Call, form: Form, math: str, *operands: Expr
    ) -> Expr:
        plan = chosen(form.sizes, math, self._count)
        dtype, given = dtype_of(operands[0]), dtype_of(call)
        kept = given if plan.split == 1 else "float32"
        result = builder.call_te(
            lambda x, y: result_of(form, x, y, plan, dtype, kept),
            *operands,
            primfunc_name_hint=name_of(call),
            primfunc_attrs=ANCHOR,
        )
        if plan.split == 1:
            return result
        return builder.call_te(
            lambda parts: added(parts, form.out, given),
            builder.emit(result),
            primfunc_name_hint=f"{name_of(call)}_sum",
            primfunc_attrs={"op_pattern": 0},
        )


def name_of(call: Call) -> str:
    """Return the short name of a call's operator: ``conv2d`` of ``relax.nn.conv2d``."""
    return str(call.op.name).rpartition(".")[2]
