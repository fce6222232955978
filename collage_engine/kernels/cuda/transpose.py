"""Kernels that convert images between formats on an NVIDIA device, through shared memory.

Channels first and channels last are transposes of each other, pixels against channels. A block
reads a square of 32 × 32 elements along the rows of one and writes it along the rows of the other,
so both sides move whole lines of memory.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.ir import Expr
from tvm.s_tir import Schedule

from collage_engine.kernels.tir_builder import Index
from collage_engine.records.errors import ToolchainError
from collage_engine.records.format import NHWC, PLAIN, stored_type
from collage_engine.records.graph import TensorType

SQUARE = 32
"""Rows and columns of the square that a block transposes. Chosen: the threads of a warp."""
ROWS = 8
"""Rows of the square that the threads move at once; chosen."""


def converted(kind: TensorType, source: str, target: str) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Returns a kernel that converts an image between plain and nhwc, and the same unscheduled.

    Args:
        kind: The logical type of the image, which has four axes.
        source: The format of the operand.
        target: The format of the result.

    Raises:
        ToolchainError: The formats or the image are not of that kind.
    """
    if {source, target} != {PLAIN, NHWC} or len(kind.shape) != 4:
        raise ToolchainError(f"there is nothing to convert in {kind} from {source} to {target}")
    given, wanted = stored_type(kind, source), stored_type(kind, target)
    value = te.placeholder(given.shape, given.dtype, name="value")

    def moved(n: Index, i: Index, j: Index, k: Index) -> Expr:
        return value(n, k, i, j) if target == NHWC else value(n, j, k, i)

    result = te.compute(wanted.shape, moved, name="turned")
    plain = te.create_prim_func([value, result])
    return _scheduled(plain, kind.shape[3], target == NHWC), plain


def _scheduled(plain: tirx.PrimFunc, width: int, to_last: bool) -> tirx.PrimFunc:
    schedule = Schedule(plain)
    block = schedule.get_sblock("turned")
    copy = schedule.cache_read(block, 0, "shared")

    def first(n: Index, c: Index, h: Any, w: Any) -> tuple[Index, ...]:
        return n, c, h * width + w

    def last(n: Index, h: Any, w: Any, c: Index) -> tuple[Index, ...]:
        return n, h * width + w, c

    read, written = (first, last) if to_last else (last, first)
    schedule.transform_layout(copy, ("write", 0), read)
    schedule.transform_block_layout(copy, read)
    schedule.transform_block_layout(block, written)
    n, row, column = schedule.get_loops(block)
    row0, row1 = schedule.split(row, [None, SQUARE])
    column0, column1 = schedule.split(column, [None, SQUARE])
    schedule.reorder(n, row0, column0, row1, column1)
    schedule.bind(schedule.fuse(n, row0, column0), "blockIdx.x")
    outer = schedule.get_loops(block)[0]
    schedule.compute_at(copy, outer)
    for each in (block, copy):
        high, wide = schedule.get_loops(each)[-2:]
        part, line = schedule.split(high, [None, ROWS])
        schedule.bind(line, "threadIdx.y")
        schedule.bind(wide, "threadIdx.x")
        schedule.unroll(part)
    schedule.storage_align(copy, 0, -2, SQUARE, 1)  # a column's words lie in different banks
    return schedule.mod["main"]
