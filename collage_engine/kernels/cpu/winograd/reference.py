"""Says what a 3×3 convolution over a transformed weight computes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.winograd.matrices import TAPS, transformed, transforms
from collage_engine.kernels.tir_builder import Index


def pack(weight: np.ndarray, outputs: int, block: int) -> np.ndarray:
    """Return [O, I, 3, 3] as [blocks, points, input channels, block], missing channels zero."""
    co, ci = weight.shape[:2]
    blocks = -(-co // block)
    wide = transformed(weight, outputs).reshape(co, ci, -1)
    padded = np.zeros((blocks * block, ci, wide.shape[2]), np.float32)
    padded[:co] = wide
    split = padded.reshape(blocks, block, ci, wide.shape[2])
    return np.ascontiguousarray(split.transpose(0, 3, 2, 1))


def outputs_of(weight: Any) -> int:
    """Returns the outputs along a tile's side for which a packed weight was made."""
    return math.isqrt(int(weight.shape[1])) - TAPS + 1


def axes() -> list[Any]:
    """Returns the reduction's axes beside the input channel.

    They are the kernel's taps and, for each axis, the two summands that give a tap back.
    """
    named = (("k0", TAPS), ("k1", TAPS), ("s0", 2), ("s1", 2))
    return [te.reduce_axis((0, extent), name) for name, extent in named]


def tap(weight: Any, b: Index, r: Index, channel: Index, over: list[Any]) -> Any:
    """Returns one summand of the kernel's element, for channel ``r`` of block ``b``.

    ``over`` holds the indices of the summand along the reduction's axes (see ``axes``).
    """
    matrices = transforms(outputs_of(weight))
    row, factor = _restored(matrices.restores(), over[0], over[2])
    column, other = _restored(matrices.restores(), over[1], over[3])
    return weight(b, row * matrices.points + column, channel, r) * factor * other


def _restored(restores: Any, k: Any, s: Any) -> tuple[Any, Any]:
    """Return row and factor of summand ``s`` of tap ``k``, both as expressions."""

    def choose(values: list[Any]) -> Any:
        found = values[-1]
        for number, value in reversed(list(enumerate(values[:-1]))):
            found = tirx.Select(k == number, value, found)
        return found

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
