"""Square tiles transposed in registers, and permutations written with them.

A vector-by-vector block is transposed by swapping ever larger sub-blocks of two rows: log2(lanes)
rounds of two-operand shuffles (the classic network; see Hacker's Delight, section 7-3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from collage_engine.toolchains.tvm.emit import Stmt, allocate, int64, local, seq


def ramp(start: Any, lanes: int) -> Expr:
    return tirx.Ramp(int64(start), int64(1), lanes)


def vector_load(buffer: Any, start: Any, lanes: int) -> Expr:
    return tirx.BufferLoad(buffer, [ramp(start, lanes)])


def vector_store(buffer: Any, value: Expr, start: Any, lanes: int) -> Stmt:
    return tirx.BufferStore(buffer, value, [ramp(start, lanes)])


def transposed_tile(
    lanes: int,
    row: Callable[[int], Expr],
    column: Callable[[int, Expr], Stmt | None],
    dtype: str = "float32",
) -> Stmt:
    """``column(j, vector)`` for the columns of the tile whose rows are ``row(i)``."""
    current = local((lanes * lanes,), dtype, "tile")
    statements: list[Stmt] = [allocate(current)]
    statements += [vector_store(current, row(i), i * lanes, lanes) for i in range(lanes)]
    size = 1
    while size < lanes:
        new = local((lanes * lanes,), dtype, "tile")
        statements.append(allocate(new))
        low = [j if not j & size else lanes + (j ^ size) for j in range(lanes)]
        high = [(j ^ size) if not j & size else lanes + j for j in range(lanes)]
        for i in range(lanes):
            if i & size:
                continue
            pair = [vector_load(current, k * lanes, lanes) for k in (i, i + size)]
            for target, pattern in ((i, low), (i + size, high)):
                picked = tirx.Shuffle(pair, [tirx.const(p, "int32") for p in pattern])
                statements.append(vector_store(new, picked, target * lanes, lanes))
        current = new
        size *= 2
    statements += [column(j, vector_load(current, j * lanes, lanes)) for j in range(lanes)]
    return seq(*statements)
