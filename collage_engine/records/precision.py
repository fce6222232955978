"""Precisions: what a run admits, what an instance computes in, and how exact outputs are.

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
from collage_engine.support.typed import Count, Figure

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


def keep_float32(instance: ToolchainInstance, full: Iterable[int]) -> ToolchainInstance:
    """Return the reduced instance that leaves the products of some operators in float32.

    ``full``: places among a partition's operators, counted from 0 in ascending order, so that
    equal partitions elsewhere have equal instances.
    """
    config = [pair for pair in instance.config if pair[0] != FULL]
    places = ranges(full)
    return msgspec.structs.replace(
        instance, config=(*config, (FULL, places)) if places else tuple(config)
    )


def float32_nodes(instance: ToolchainInstance) -> frozenset[int]:
    """Return the places of operators whose products a reduced instance leaves in float32."""
    return places_of(instance.option(FULL))


def places_of(text: str) -> frozenset[int]:
    """Read what ``ranges`` has written."""
    indices: set[int] = set()
    for part in filter(None, text.split("+")):
        first, _, last = part.partition("-")
        indices.update(range(int(first), int(last or first) + 1))
    return frozenset(indices)


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


class RunTolerance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far outputs may be from the true ones, as ``max|y−r| / max|r|``, and why so far."""

    value: float
    """The largest that any output is allowed."""
    source: Literal["user", "precision", "rounding"]
    """Who asks for it: the user; the precision and the element types; or the rounding that the
    model amplifies."""
    default: float
    """What the precision and the element types ask for."""
    noise: dict[str, float] = {}
    """By output: how far it moves when inputs and weights change in the last bit; only outputs for
    which a multiple of it is larger than the default."""
    by_output: dict[str, float] = {}
    """By output: what it is allowed, where outputs are allowed different errors; 0: it must be
    equal, as whole numbers, booleans and texts must. Of a large map of whole numbers it is the
    share of values that may differ, since they hang on the last bit of floats."""

    def of(self, output: str) -> float:
        """Return what an output is allowed."""
        return self.by_output.get(output, self.value)


class RoundedProduct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A convolution or matrix product that reduced precision could round."""

    operator: Count
    """Its operator number."""
    operations: Figure
    """Its arithmetic operations, which stand for the time that rounding it saves."""
    error: Figure | None = None
    """Largest relative error of the outputs when its operands alone are rounded, emulated; None: it
    was not found out."""
    rounded: bool = False
    """Whether it may be rounded within the tolerance, together with the others that may."""
    rank: Count | None = None
    """Its place in the order in which products are rounded as the tolerance grows, from 0; None:
    rounding it saves nothing, or no order was needed."""


class RoundingTrial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole model that was built with some of its products, or all, rounded."""

    toolchain: str
    rounded: Count
    """How many products."""
    emulated_error: Figure | None = None
    """Largest relative error of an output that the emulation predicted; None: it is not finite."""
    max_rel_error: float | None = None
    """The same as measured."""
    measured_us: Figure | None = None
    """Its time, at the speed of the placement that led then; None: it was not timed."""
    reason: str | None = None
    """Why it does not take part: its error, or why it could not be run."""


class Rounding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was found out of rounding single products."""

    products: tuple[RoundedProduct, ...] = ()
    """What rounding each product does, in the model's order; empty: nothing was emulated."""
    ranked_for: str = ""
    """The toolchain whose order the products' ranks are; empty: they have none."""
    tried: tuple[RoundingTrial, ...] = ()
    """Whole models with all products rounded, then with a part of them, in the order of builds."""


class Accuracy(Rounding, frozen=True, kw_only=True, omit_defaults=True):
    """The tolerance that was kept, and what that cost and gained.

    Errors are ``max|y−r| / max|r|`` of an output.
    """

    precision: str
    """Lowest that the run admitted."""
    tolerance: float
    """Bound on the whole model's ``max_rel_error``."""
    samples: Count
    """Sets of inputs on which it was kept."""
    max_rel_error: float | None = None
    """Of what is exported, the largest over the samples."""
    float32_us: Figure | None = None
    """End to end, of the fastest contender without reduced precision."""
    float32_max_rel_error: float | None = None
