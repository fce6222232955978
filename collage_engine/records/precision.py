"""Precisions: what a run admits, and what an instance computes in.

A run's precision is the lowest it admits. Float32 instances are always offered; with ``bfloat16``
others stand beside them that round the operands of products to it. ``int8`` adds nothing of its
own: a quantised (QDQ) model says itself what is rounded to 8 bits, and candidates that compute
that in whole numbers are right to one step.
"""

from __future__ import annotations

from collage_engine.records.toolchain import ToolchainInstance

FLOAT32 = "float32"
BFLOAT16 = "bfloat16"
INT8 = "int8"

SHORT = {BFLOAT16: "bf16"}
"""What users and configurations call a precision, where that is not its own name."""

PRODUCTS = frozenset({
    "matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose",
    "nn.conv2d_transpose", "nn.conv3d_transpose",
})  # fmt: skip
"""Operators that are faster in reduced precision. Without one of them a partition gains nothing
by rounding, and is not offered in it."""


def in_bfloat16(instance: ToolchainInstance) -> ToolchainInstance:
    """The instance that computes in bfloat16 beside this one."""
    return ToolchainInstance(
        toolchain=instance.toolchain,
        config=(*instance.config, ("precision", SHORT[BFLOAT16])),
        threads=instance.threads,
        precision=BFLOAT16,
    )


def is_reduced(instance: ToolchainInstance) -> bool:
    """Whether it rounds float32 values to less."""
    return instance.precision != FLOAT32


def short(precision: str) -> str:
    return SHORT.get(precision, precision)
