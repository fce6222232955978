"""Checks that the precision of a run exists and changes something for the model and machine."""

from __future__ import annotations

from collections.abc import Sequence

from collage_engine.model.importer import ImportedModel
from collage_engine.records.precision import (
    BFLOAT16,
    DEVICE_ONLY,
    FLOAT32,
    INT8,
    is_reduced,
    short,
)
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import UsageError

QUANTISED = {"quantize", "dequantize"}
"""Operators of which a model has some if it was quantised."""


def check_precision(model: ImportedModel, precision: str, target: str = "cpu") -> None:
    """Check that the precision of a run exists and changes something.

    Args:
        model: The model, which must be quantised for int8.
        precision: The precision.
        target: What the run places on.

    Raises:
        UsageError: There is no such precision, or it would change nothing here.
    """
    known = (FLOAT32, BFLOAT16, INT8, *DEVICE_ONLY)
    if precision not in known:
        said = ", ".join(map(short, known))
        raise UsageError(f"--precision {precision}: known are {said}")
    if precision in DEVICE_ONLY and not target.startswith("cuda"):
        raise UsageError(
            f"--precision {short(precision)} is for NVIDIA devices (--target cuda): no toolchain "
            "computes in it on a processor; use --precision bf16"
        )
    if precision == INT8 and not any(node.op in QUANTISED for node in model.graph.nodes):
        raise UsageError(
            "--precision int8: the model has no QuantizeLinear or DequantizeLinear nodes, so "
            "nothing says how to round to 8 bits: quantise it first (for example with "
            "onnxruntime.quantization), or use --precision bf16"
        )


def missing_precision(precision: str, instances: Sequence[ToolchainInstance]) -> str | None:
    """Return a warning where no toolchain instance computes in the precision; else None."""
    reduces = (BFLOAT16, *DEVICE_ONLY)
    if precision not in reduces or any(map(is_reduced, instances)):
        return None
    if any(instance.architecture for instance in instances):
        return (
            f"no chosen toolchain computes in {short(precision)} on this device: everything "
            "stays float32"
        )
    return (
        "no toolchain computes in bf16 on this processor (AVX512_BF16 or AMX is needed): "
        "everything stays float32"
    )
