"""Transposes square tiles in registers, and writes permutations with them.

Weaving rows i and i + n/2 together element by element, for all i, is one perfect shuffle of the
whole n × n block; log2(n) of them transpose it (Stone, "Parallel processing with the perfect
shuffle", 1971). A weave is one LLVM intrinsic: far fewer TIR nodes than a shuffle spelled out,
whose visits took most of a kernel's compile time.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Buffer

from collage_engine.kernels.tir_builder import Index, Stmt, int64, seq


def ramp(start: Index, lanes: int) -> Expr:
    """Returns the indices of a vector."""
    return tirx.Ramp(int64(start), int64(1), lanes)


def vector_load(buffer: Buffer, start: Index, lanes: int) -> Expr:
    """Reads a vector."""
    return tirx.BufferLoad(buffer, [ramp(start, lanes)])


def vector_store(buffer: Buffer, value: Expr, start: Index, lanes: int) -> Stmt:
    """Stores a vector."""
    return tirx.BufferStore(buffer, value, [ramp(start, lanes)])


def transposed_tile(
    lanes: int,
    row: Callable[[int], Expr],
    column: Callable[[int, Expr], Stmt],
    dtype: str = "float32",
) -> Stmt:
    """Transposes a square tile in registers.

    Args:
        lanes: The side of the tile: lanes of a vector.
        row: ``row(i)`` loads a row as a vector.
        column: ``column(j, vector)`` stores a column.
        dtype: The element type.

    Returns:
        The statements that transpose the tile and store its columns.
    """
    half = lanes // 2
    wide, narrow = f"{dtype}x{2 * lanes}", f"{dtype}x{lanes}"
    statements: list[Stmt] = []

    def weave(a: Expr, b: Expr) -> Expr:
        var = tirx.Var("v", wide)
        both = tirx.call_llvm_pure_intrin(wide, "llvm.vector.interleave2", a, b)
        statements.append(tirx.Bind(var, both))
        return var

    current = [row(i) for i in range(lanes)]
    size = 1
    while size < lanes:
        woven = [weave(current[i], current[i + half]) for i in range(half)]
        current = [
            part
            for both in woven
            for part in (tirx.vectorlow(narrow, both), tirx.vectorhigh(narrow, both))
        ]
        size *= 2
    return seq(*statements, *(column(j, current[j]) for j in range(lanes)))
