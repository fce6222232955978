"""Derives the matrices of Winograd's method: fewer products for outputs of a 3×3 kernel.

``m`` outputs of a kernel of ``r`` taps along one axis take ``m + r − 1`` products instead of
``m·r``: Y = Aᵀ[(G g) ⊙ (Bᵀ d)], the same along both axes of an image. Matrices for any set of
points by Toom and Cook (A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural
Networks", CVPR 2016; exact here, in fractions). The points are 0, ±1, ±2 and infinity; rounding
grows with their number: about ten times a direct convolution's for m = 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

TAPS = 3
"""Taps along each axis of the kernels that the method is written for."""
OUTPUTS = (2, 4)
"""Outputs of a tile along each axis for which matrices are made: F(2×2, 3×3) and F(4×4, 3×3)."""
POINTS = (Fraction(0), Fraction(1), Fraction(-1), Fraction(2), Fraction(-2))
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
        """Returns which rows of G g give each tap of the kernel g back, as (row, factor).

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
    weights = [_product([a - b for b in finite if b != a]) for a in finite]
    back = [[*(a**k for a in finite), Fraction(int(k == outputs - 1))] for k in range(outputs)]
    kernel = [[a**k / w for k in range(TAPS)] for a, w in zip(finite, weights, strict=True)]
    kernel.append([Fraction(int(k == TAPS - 1)) for k in range(TAPS)])
    data = [_polynomial([b for b in finite if b != a]) for a in finite]
    data = [[*row, Fraction(0)] for row in data]
    data.append(_polynomial(finite))
    return Transforms(outputs, _floats(data), _floats(kernel), _floats(back))


def transformed(weight: np.ndarray, outputs: int) -> np.ndarray:
    """Return G g Gᵀ of each kernel, [O, I, 3, 3] → [O, I, points, points], in single precision."""
    kernel = np.asarray(transforms(outputs).kernel, np.float64)
    wide = np.einsum("pk,oikl,ql->oipq", kernel, weight.astype(np.float64), kernel, optimize=True)
    return wide.astype(np.float32)


def _product(values: Sequence[Fraction]) -> Fraction:
    found = Fraction(1)
    for value in values:
        found *= value
    return found


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Returns the coefficients of Π (x − root), the constant first."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [s - root * f for s, f in zip(shifted, [*found, Fraction(0)], strict=True)]
    return found


def _floats(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(tuple(float(value) for value in row) for row in rows)
