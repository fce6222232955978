"""Derives the matrices of Winograd's method: fewer products for outputs of a 3×3 kernel.

``m`` outputs of a kernel of ``r`` taps along one axis take ``m + r − 1`` products instead of
``m·r``: Y = Aᵀ[(G g) ⊙ (Bᵀ d)], the same along both axes of an image. Matrices for any set of
points by Toom and Cook (A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural
Networks", CVPR 2016; exact here, but for one division). The points are 0, ±1, ±2 and infinity;
rounding grows with their number: about ten times a direct convolution's for m = 4.

The transforms multiply these small constant matrices by vectors of vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.polynomial.polynomial import polyfromroots
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    allocate,
    f32,
    load,
    local,
    seq,
    store,
    vectorized,
)

TAPS = 3
"""Taps along each axis of the kernels that the method is written for."""
Outputs = Literal[2, 4]
OUTPUTS: tuple[Outputs, ...] = (2, 4)
"""Outputs of a tile along each axis for which matrices are made: F(2×2, 3×3) and F(4×4, 3×3)."""
POINTS = (0, 1, -1, 2, -2)
"""Points where the polynomials of a tile are evaluated, beside infinity: those with the smallest
rounding errors (Lavin and Gray 2016)."""

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Transforms:
    """The matrices of Winograd's method for one axis, each as a tuple of rows."""

    outputs: int
    data: Matrix
    """Bᵀ, which transforms the data: [points, points]."""
    kernel: Matrix
    """G, which transforms the kernel: [points, taps]."""
    back: Matrix
    """Aᵀ, which turns products into outputs: [outputs, points]."""

    @property
    def points(self) -> int:
        """Return the points along the side of a tile."""
        return self.outputs + TAPS - 1

    def restores(self) -> tuple[tuple[tuple[int, float], ...], ...]:
        """Return which rows of G g give each tap of the kernel g back, as (row, factor).

        The value at 0 is the first tap, the one at infinity the last; half the difference of those
        at 1 and −1 is the middle one.
        """
        first, half, last = self.kernel[0][0], self.kernel[1][1], self.kernel[-1][-1]
        return (
            ((0, 1 / first),),
            ((1, 0.5 / half), (2, -0.5 / half)),
            ((self.points - 1, 1 / last),),
        )


@lru_cache(maxsize=8)
def transforms(outputs: int) -> Transforms:
    """Return the matrices for so many outputs along an axis, of ``OUTPUTS``."""
    finite = POINTS[: outputs + TAPS - 2]
    weights = [math.prod(a - b for b in finite if b != a) for a in finite]
    back = [[*(a**k for a in finite), k == outputs - 1] for k in range(outputs)]
    kernel = [[a**k / w for k in range(TAPS)] for a, w in zip(finite, weights, strict=True)]
    kernel.append([k == TAPS - 1 for k in range(TAPS)])
    # Coefficients of Π (x − root), the constant first: whole numbers, so exact in float64.
    data = [[*polyfromroots([b for b in finite if b != a]), 0] for a in finite]
    data.append([*polyfromroots(finite)])
    return Transforms(outputs, _floats(data), _floats(kernel), _floats(back))


def transformed(weight: np.ndarray, outputs: int) -> np.ndarray:
    """Return G g Gᵀ of each kernel, [O, I, 3, 3] → [O, I, points, points], in single precision."""
    kernel = np.asarray(transforms(outputs).kernel, np.float64)
    # One product of all kernels with G ⊗ G: many small ones take ten times as long.
    taps = weight.reshape(-1, TAPS * TAPS).astype(np.float64)
    wide: np.ndarray = (taps @ np.kron(kernel, kernel).T).astype(np.float32)
    return wide.reshape(*weight.shape[:2], len(kernel), len(kernel))


def _floats(rows: Sequence[Sequence[float]]) -> Matrix:
    return tuple(tuple(float(value) for value in row) for row in rows)


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
    """Return the row's sum of its even or its odd terms; of all of them for None."""
    total = None
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
        if total is None:
            total = term if factor > 0 else f32(0.0) - term
        else:
            total = total + term if factor > 0 else total - term
    return f32(0.0) if total is None else total


def pack(weight: np.ndarray, outputs: int, block: int) -> np.ndarray:
    """Return [O, I, 3, 3] as [blocks, points, input channels, block], missing channels zero."""
    wide = transformed(weight, outputs).reshape(*weight.shape[:2], -1)
    lacking = -len(wide) % block
    split = np.pad(wide, [(0, lacking), (0, 0), (0, 0)]).reshape(-1, block, *wide.shape[1:])
    return np.ascontiguousarray(split.transpose(0, 3, 2, 1))


def axes() -> list[Any]:
    """Return the reduction's axes beside the input channel.

    They are the kernel's taps and, for each axis, the two summands that give a tap back.
    """
    named = (("k0", TAPS), ("k1", TAPS), ("s0", 2), ("s1", 2))
    return [te.reduce_axis((0, extent), name) for name, extent in named]


def tap(weight: Any, b: Index, r: Index, channel: Index, over: list[Any]) -> Any:
    """Return one summand of the kernel's element, for channel ``r`` of block ``b``.

    ``over`` holds the indices of the summand along the reduction's axes (see ``axes``).
    """
    matrices = transforms(math.isqrt(int(weight.shape[1])) - TAPS + 1)
    row, factor = _restored(matrices.restores(), over[0], over[2])
    column, other = _restored(matrices.restores(), over[1], over[3])
    return weight(b, row * matrices.points + column, channel, r) * factor * other


def _restored(restores: Any, k: Any, s: Any) -> tuple[Any, Any]:
    """Return row and factor of summand ``s`` of tap ``k``, both as expressions."""

    def choose(values: list[Any]) -> Any:
        selected = values[-1]
        for number, value in reversed(list(enumerate(values[:-1]))):
            selected = tirx.Select(k == number, value, selected)
        return selected

    def summand(tap: int, which: int, absent: Any, make: Any) -> Any:
        terms = restores[tap]
        values = [make(terms[i][which]) if i < len(terms) else absent for i in range(2)]
        return tirx.Select(s == 0, values[0], values[1])

    def whole(v: float) -> Expr:
        return tirx.const(int(v), "int64")

    def real(v: float) -> Expr:
        return tirx.const(float(v), "float32")

    row = choose([summand(t, 0, whole(0), whole) for t in range(TAPS)])
    factor = choose([summand(t, 1, real(0), real) for t in range(TAPS)])
    return row, factor
