"""Turns transposed convolutions of groups or with dilation into convolutions with zeros between.

Others are taken apart before they are legalised (``toolchains/tvm/transposed.py``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Call, Expr

from collage_engine.kernels.cpu.convolution.problem import SPATIAL, ConvProblem
from collage_engine.kernels.registry import RULES
from collage_engine.kernels.relax_values import (
    ANCHOR,
    both_sides,
    const,
    dtype_of,
    float_operands,
    narrowed,
)
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import Index


def legalize(builder: relax.BlockBuilder, call: Call, cpu: Cpu) -> Expr | None:
    """Returns a transposed convolution as an ordinary one over its input spread out with zeros.

    That multiplies by zeros (strides times each way), yet runs at a convolution's full speed.
    """
    operands = float_operands(call)
    if operands is None:
        return None
    shape, weight, out = operands
    dtype = dtype_of(call)
    axes = SPATIAL.get(len(shape))
    attributes = call.attrs
    if axes is None or str(attributes.data_layout) != f"NC{axes}":
        return None
    if str(attributes.out_layout or f"NC{axes}") != f"NC{axes}":
        return None
    if str(attributes.kernel_layout) != f"IO{axes}":
        return None
    dims, groups = len(axes), int(attributes.groups)
    strides = [int(v) for v in attributes.strides]
    dilation = [int(v) for v in attributes.dilation]
    padding = both_sides([int(v) for v in attributes.padding], dims)
    extra = [int(v) for v in attributes.output_padding]
    extra = extra * dims if len(extra) == 1 else extra
    reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    before = [r - p for r, p in zip(reach, padding[:dims], strict=True)]
    after = [r - p + e for r, p, e in zip(reach, padding[dims:], extra, strict=True)]
    if min(*before, *after, 0) < 0:
        return None
    spread = [
        b + (n - 1) * s + 1 + a
        for b, n, s, a in zip(before, shape[2:], strides, after, strict=True)
    ]
    inside, outside, *taps = weight.shape
    grouped = weight.reshape(groups, inside // groups, outside, *taps).swapaxes(1, 2)
    grouped = grouped.reshape(groups * outside, inside // groups, *taps)
    turned = np.ascontiguousarray(np.flip(grouped, tuple(range(2, 2 + dims))))
    problem = ConvProblem(
        False,
        (*shape[:2], *spread),
        out,
        turned.shape,
        groups,
        (1,) * dims,
        (0,) * (2 * dims),
        tuple(dilation),
    )
    # Most products are with zeros, which a transform would round like the others.
    decision = RULES.default(problem, cpu, multiplied_out=True)
    if decision is None:
        return None

    def compute(x: Any, w: Any) -> Any:
        def element(n: Index, c: Index, *place: Index) -> Expr:
            tests, source = [], []
            for p, b, s, e in zip(place, before, strides, shape[2:], strict=True):
                at = p - b
                tests += [at >= 0, at <= (e - 1) * s]
                if s > 1:
                    tests.append(tirx.floormod(at, s) == 0)
                source.append(tirx.floordiv(at, s) if s > 1 else at)
            zero = tirx.const(0, "float32")
            value = x(n, c, *source).astype("float32")
            return tirx.if_then_else(tirx.all(*tests), value, zero)

        wide = te.compute((*shape[:2], *spread), element, name="spread")
        return narrowed(decision.reference(wide, w), dtype)

    return builder.call_te(
        compute,
        call.args[0],
        const(decision.pack(cpu, turned)),
        primfunc_name_hint=f"conv{dims}d_transpose",
        primfunc_attrs=ANCHOR,
    )
