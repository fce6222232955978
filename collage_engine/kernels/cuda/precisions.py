"""Chooses the arithmetic of products by the device's generation, type and precision."""

from __future__ import annotations

from collage_engine.kernels.cuda.product.plan import F16, PLAIN, S8
from collage_engine.machine.cuda import generation
from collage_engine.records.precision import BFLOAT16, FLOAT16, FLOAT32

FIRST = {F16: 70, S8: 72}
"""Generation (10 × compute capability) whose tensor cores first took an element type; source:
the conditions on ``__CUDA_ARCH__`` in ``crt/mma.h`` of CUDA 13."""


def math_of(dtype: str, precision: str, architecture: str) -> str | None:
    """Returns the arithmetic for an element type; None where this package has none for it.

    What is bfloat16 is multiplied in float32, by plain threads.
    """
    if dtype not in (FLOAT32, FLOAT16, BFLOAT16):
        return None
    half = dtype == FLOAT16 or (dtype == FLOAT32 and precision == FLOAT16)
    return F16 if half and generation(architecture) >= FIRST[F16] else PLAIN
