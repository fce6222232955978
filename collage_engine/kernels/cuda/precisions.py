"""Chooses the arithmetic of products by the device's generation, type and precision."""

from __future__ import annotations

from collage_engine.kernels.cuda.product.plan import BF16, F16, PLAIN, S8, TF32
from collage_engine.machine.cuda import generation
from collage_engine.records.precision import BFLOAT16, FLOAT16
from collage_engine.records.precision import TF32 as TF32_PRECISION

FIRST = {F16: 70, BF16: 80, TF32: 80, S8: 72}
"""Generation (10 × compute capability) whose tensor cores first took an element type; source:
the conditions on ``__CUDA_ARCH__`` in ``crt/mma.h`` of CUDA 13."""
ASKED = {FLOAT16: F16, BFLOAT16: BF16, TF32_PRECISION: TF32}
"""The arithmetic that a precision means for products of float32."""


def has(architecture: str, precision: str) -> bool:
    """Returns whether a device can compute products of float32 in that lower precision."""
    math = ASKED.get(precision)
    return math is not None and generation(architecture) >= FIRST[math]


def math_of(dtype: str, precision: str, architecture: str) -> str | None:
    """Returns the arithmetic for an element type; None where this package has none for it."""
    if dtype == "float32":
        return ASKED[precision] if has(architecture, precision) else PLAIN
    if dtype == FLOAT16:
        return F16 if generation(architecture) >= FIRST[F16] else PLAIN
    if dtype == BFLOAT16:
        return BF16 if generation(architecture) >= FIRST[BF16] else None
    return None
