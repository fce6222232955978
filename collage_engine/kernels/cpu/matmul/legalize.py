"""Matrix products, constant right operands packed by blocks of columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Call, Expr

from collage_engine.kernels.choices import plan_for
from collage_engine.kernels.cpu.matmul.writer import Plan, chosen_plan
from collage_engine.kernels.relax_values import (
    ANCHOR,
    FLOATS,
    const,
    constant_of,
    dtype_of,
    narrowed,
    note,
    static_shape,
    widened,
)
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import product


def legalize(builder: relax.BlockBuilder, call: Call, cpu: Cpu) -> Expr | None:
    """The product as a computation our schedules know, or None."""
    left, right = call.args
    a, b, out = static_shape(left), static_shape(right), static_shape(call)
    if a is None or b is None or out is None or len(a) < 2 or len(b) < 2:
        return None
    dtype = dtype_of(call)
    if dtype not in FLOATS or not dtype_of(left) == dtype_of(right) == dtype:
        return None
    array = constant_of(right)
    if array is not None and all(e == 1 for e in b[:-2]) and len(a) >= len(b):
        rows = product(a[:-1])
        depth, columns = b[-2:]
        plan = plan_for(*packed_workload(rows, depth, columns, cpu))
        cut = chosen_plan(cpu, rows, depth, columns, plan)
        packed = pack(array.reshape(b[-2:]).astype(np.float32), cut)
        return builder.call_te(
            lambda x, w: narrowed(packed_product(widened(x), w, out, plan), dtype),
            left,
            const(packed),
            primfunc_name_hint="matmul",
            primfunc_attrs=ANCHOR,
        )
    plan = plan_for(*runtime_workload(a, b, out, cpu))
    return builder.call_te(
        lambda x, y: narrowed(product_of(widened(x), widened(y), out, plan), dtype),
        left,
        right,
        primfunc_name_hint="matmul",
        primfunc_attrs=ANCHOR,
    )


def packed_workload(rows: int, depth: int, columns: int, cpu: Cpu) -> tuple[str, dict[str, Any]]:
    """A line that equal products with a constant share, and their sizes."""
    text = f"matmul {rows}x{depth} constant {depth}x{columns} threads {cpu.threads}"
    return text, {"family": "packed", "rows": rows, "depth": depth, "columns": columns}


def runtime_workload(
    a: tuple[int, ...], b: tuple[int, ...], out: tuple[int, ...], cpu: Cpu
) -> tuple[str, dict[str, Any]]:
    """The same for products of two values that are not known when compiling."""
    left, right = ("x".join(map(str, shape)) for shape in (a, b))
    text = f"matmul {left} by {right} threads {cpu.threads}"
    return text, {"family": "runtime", "left": list(a), "right": list(b), "out": list(out)}


def pack(array: np.ndarray, plan: Plan) -> np.ndarray:
    """[depth, columns] → [1, blocks, chunks, 1, depth of a chunk, block], zeros behind."""
    depth, columns = array.shape
    blocks = -(-columns // plan.block)
    padded = np.zeros((depth, blocks * plan.block), array.dtype)
    padded[:, :columns] = array
    split = padded.reshape(depth // plan.chunk, plan.chunk, blocks, plan.block)
    return split.transpose(2, 0, 1, 3)[None, :, :, None]


def packed_product(
    left: Any, right: Any, out: tuple[int, ...], plan: Mapping[str, Any] | None = None
) -> Any:
    _, _, chunks, _, chunk, block = (int(e) for e in right.shape)
    k = te.reduce_axis((0, chunks * chunk), "k")

    def element(*index: Any) -> Any:
        *lead, n = index
        weight = right(
            0,
            tirx.floordiv(n, block),
            tirx.floordiv(k, chunk),
            0,
            tirx.floormod(k, chunk),
            tirx.floormod(n, block),
        )
        return te.sum(left(*lead, k) * weight, axis=k)

    return te.compute(out, element, name="matmul", attrs=_note(True, plan))


def _note(packed: bool, plan: Mapping[str, Any] | None) -> dict[str, str]:
    return note(family="matmul", packed=packed, **({"plan": dict(plan)} if plan else {}))


def product_of(
    left: Any, right: Any, out: tuple[int, ...], plan: Mapping[str, Any] | None = None
) -> Any:
    k = te.reduce_axis((0, int(left.shape[-1])), "k")

    def element(*index: Any) -> Any:
        *batch, m, n = index

        def of(tensor: Any, *last: Any) -> Any:
            lead = [int(e) for e in tensor.shape[:-2]]
            places = batch[len(batch) - len(lead) :]
            return tensor(*(p if e > 1 else 0 for p, e in zip(places, lead, strict=True)), *last)

        return te.sum(of(left, m, k) * of(right, k, n), axis=k)

    return te.compute(out, element, name="matmul", attrs=_note(False, plan))
