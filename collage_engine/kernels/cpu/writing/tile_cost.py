"""Estimates the costs of register tiles in cycles."""

from __future__ import annotations

from collage_engine.kernels.target import Cpu


def cycles(cpu: Cpu, height: int, vectors: int) -> float:
    """Returns the cycles of one step of the reduction of a register tile.

    Multiply-adds start two a cycle and so do loads; a sum waits four cycles for the one before.
    What every step takes beside is two cycles, by least squares over nine tiles. Where vectors are
    multiplied in halves (``Cpu.halves``) the multiply-adds, one a cycle, hide everything else (37
    tiles on such a processor, within 4 %). Only the order of tiles matters, which these ratios of
    instructions give on processors of any clock; tuning corrects it.

    Args:
        cpu: The processor.
        height: Rows of the tile, whose elements are broadcast.
        vectors: Vectors of columns.
    """
    if cpu.halves:
        return max(height * vectors + 0.4, 3.3)
    loads_ = (height + vectors) / 2 + (0.15 * height if vectors == 1 else 0.0)
    return max(height * vectors / 2, loads_, 4.0) + 2.0


def fits(cpu: Cpu, height: int, vectors: int) -> bool:
    """Tells whether the accumulators, one row of vectors and a broadcast stay in registers."""
    return height * vectors + vectors + 1 <= cpu.registers


def cost(cpu: Cpu, rows_total: int, vectors_total: int, height: int, vectors: int) -> float:
    """Returns the cycles per reduction step of a whole matrix, its remainders included.

    Args:
        cpu: The processor.
        rows_total: Rows of the matrix.
        vectors_total: Columns of the matrix, counted in vectors.
        height: Rows of a register tile.
        vectors: Vectors of a register tile.
    """
    full_r, rest_r = divmod(rows_total, height)
    full_v, rest_v = divmod(vectors_total, vectors)
    total = full_r * full_v * cycles(cpu, height, vectors)
    if rest_r:
        total += full_v * cycles(cpu, rest_r, vectors)
    if rest_v:
        total += full_r * cycles(cpu, height, rest_v)
    if rest_r and rest_v:
        total += cycles(cpu, rest_r, rest_v)
    return total
