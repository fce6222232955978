"""Precisions: what a run admits, and what an instance computes in.

A run's precision is the lowest it admits. Float32 instances always take part; with ``bfloat16``
others stand beside them that round the operands of products to it; ``tf32`` and ``float16`` do the
same on NVIDIA devices. ``int8`` adds nothing of its own: a quantised (QDQ) model says itself what
is rounded to 8 bits, and candidates that compute that in whole numbers are right to one step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from collage_engine.records.operators import OPERATORS
from collage_engine.records.toolchain import ToolchainInstance

FLOAT32 = "float32"
BFLOAT16 = "bfloat16"
INT8 = "int8"
TF32 = "tf32"
"""Float32 whose products' operands are rounded to ten bits of mantissa: NVIDIA's tensor cores."""
FLOAT16 = "float16"
Precision = Literal["float32", "tf32", "float16", "bfloat16", "int8"]
"""The precisions of a run."""

TOLERANCES = {
    "float64": 1e-4,
    "float32": 1e-4,
    "float16": 1e-2,
    "tf32": 1e-2,
    "bfloat16": 2e-2,
}
"""Bounds on max|y−r| / max|r| by precision; tf32 has float16's mantissa. Chosen: float32 leaves
room for sums in another order, the others for roundings of about ten operators."""

DEVICE_ONLY = (TF32, FLOAT16)
"""Precisions that only toolchains for NVIDIA devices compute in."""

PRECISION = "precision"
"""Option of an instance that names its reduced precision."""

FULL = "float32"
"""Option of a reduced instance: operators whose products it leaves in float32."""

SHORT = {BFLOAT16: "bf16", FLOAT16: "fp16"}
"""What users and configurations call a precision, where that is not its own name, numpy's."""
LONG = {short: name for name, short in SHORT.items()}

PRODUCTS = frozenset(row.name for row in OPERATORS.values() if row.work)
"""Operators that are faster in reduced precision. Without one of them a partition gains nothing
by rounding, and has no candidate in it."""


def in_precision(instance: ToolchainInstance, precision: str) -> ToolchainInstance:
    """Return the instance that computes products in less than float32 beside this one."""
    return msgspec.structs.replace(
        instance, config=(*instance.config, (PRECISION, short(precision))), precision=precision
    )


def careful(instance: ToolchainInstance, full: Iterable[int]) -> ToolchainInstance:
    """Return the reduced instance that leaves the products of some operators in float32.

    ``full``: places among a partition's operators, counted from 0 in ascending order, so that
    equal partitions elsewhere have equal instances.
    """
    config = [pair for pair in instance.config if pair[0] != FULL]
    places = ranges(full)
    return msgspec.structs.replace(
        instance, config=(*config, (FULL, places)) if places else tuple(config)
    )


def full_places(instance: ToolchainInstance) -> frozenset[int]:
    """Return the places of operators whose products a reduced instance leaves in float32."""
    return places_of(instance.option(FULL))


def places_of(text: str) -> frozenset[int]:
    """Read what ``ranges`` has written."""
    found: set[int] = set()
    for part in filter(None, text.split("+")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def ranges(numbers: Iterable[int], between: str = "+", to: str = "-") -> str:
    """Write numbers as ranges: ``0-3+17`` for 0, 1, 2, 3 and 17."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return between.join(str(a) if a == b else f"{a}{to}{b}" for a, b in runs)


def is_reduced(instance: ToolchainInstance) -> bool:
    """Tell whether it rounds float32 values to less."""
    return instance.precision != FLOAT32


def short(precision: str) -> str:
    """Return the name that users write: ``bf16`` for ``bfloat16``."""
    return SHORT.get(precision, precision)
