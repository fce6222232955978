"""Multiplies small constant matrices by vectors of vectors, as Winograd's transforms do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from collage_engine.kernels.cpu.winograd.matrices import Matrix
from collage_engine.kernels.tir_builder import (
    Stmt,
    allocate,
    f32,
    load,
    local,
    seq,
    store,
    vectorized,
)

Expr = Any


def combined(
    rows: Matrix,
    inputs: Sequence[Callable[[Any], Expr]],
    width: int,
    give: Callable[[int, Any, Expr], Stmt],
) -> Stmt:
    """Multiplies a small constant matrix by a vector of vectors.

    Points of Winograd's method come in pairs, a and −a. Rows for both share their sums of even and
    of odd terms; terms for both share their factor. (LLVM computes equal expressions once.)

    Args:
        rows: The matrix.
        inputs: Functions that load a lane of each vector.
        width: Lanes of a vector.
        give: A function that is called with the number of a row, a lane and the value of that row,
            and that returns the statement which stores it.

    Returns:
        The statements of all rows.
    """

    def value(number: int, x: Any) -> Expr:
        row = rows[number]
        if number and _alternate(rows[number - 1], row):
            row = rows[number - 1]
            return _total(row, inputs, x, 0) - _total(row, inputs, x, 1)
        if number + 1 < len(rows) and _alternate(row, rows[number + 1]):
            return _total(row, inputs, x, 0) + _total(row, inputs, x, 1)
        return _total(row, inputs, x, None)

    return seq(
        *(
            vectorized(width, lambda x, number=number: give(number, x, value(number, x)))
            for number in range(len(rows))
        )
    )


def on_both_sides(
    matrix: Matrix,
    width: int,
    element: Callable[[int, int, Any], Expr],
    give: Callable[[int, int, Any, Expr], Stmt],
) -> Stmt:
    """Return M d Mᵀ of a square of vectors.

    Args:
        matrix: M.
        width: Lanes of a vector.
        element: ``element(p, q, lane)`` reads one of d.
        give: ``give(p, q, lane, value)`` takes one of the results.
    """
    rows, side = len(matrix), len(matrix[0])
    half = local((rows * side * width,), name="half")

    def place(p: int, q: int, x: Any) -> Any:
        return (p * side + q) * width + x

    def column(q: int) -> Stmt:
        inputs = [lambda x, p=p: element(p, q, x) for p in range(side)]
        return combined(
            matrix, inputs, width, lambda p, x, value: store(half, value, place(p, q, x))
        )

    def line(p: int) -> Stmt:
        inputs = [lambda x, q=q: load(half, place(p, q, x)) for q in range(side)]
        return combined(matrix, inputs, width, lambda q, x, value: give(p, q, x, value))

    return seq(allocate(half), *map(column, range(side)), *map(line, range(rows)))


def _alternate(a: Sequence[float], b: Sequence[float]) -> bool:
    """Tells whether the second row is the first with the signs of its odd terms turned."""
    turned = all(w == (-v if k % 2 else v) for k, (v, w) in enumerate(zip(a, b, strict=True)))
    return turned and any(a[::2]) and any(a[1::2])


def _total(
    row: Sequence[float],
    inputs: Sequence[Callable[[Any], Expr]],
    x: Any,
    parity: int | None,
) -> Expr:
    """Returns the row's sum of its even or its odd terms; of all of them for None."""
    found = None
    k = 0
    while k < len(row):
        factor, term, step = row[k], None, 1
        paired = parity is None and k % 2 and k + 1 < len(row)
        if factor and paired and abs(row[k + 1]) == abs(factor):
            first, second, step = inputs[k](x), inputs[k + 1](x), 2
            term = first + second if row[k + 1] == factor else first - second
        if term is None and factor and parity in (None, k % 2):
            term = inputs[k](x)
        k += step
        if term is None:
            continue
        if abs(factor) != 1:
            term = term * f32(abs(factor))
        if found is None:
            found = term if factor > 0 else f32(0.0) - term
        else:
            found = found + term if factor > 0 else found - term
    return f32(0.0) if found is None else found
