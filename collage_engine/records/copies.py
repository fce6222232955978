"""The machine's constants say what copying values between a device and its host costs."""

from __future__ import annotations

from collections.abc import Mapping

from collage_engine.records.format import HOST
from collage_engine.records.graph import TensorType

TO_HOST, TO_DEVICE = "to-host", "to-device"
COPY = "copy:"


def call_constant(direction: str) -> str:
    """Return ``copy:to-host:call``, the name of the µs of a copy of next to nothing."""
    return f"{COPY}{direction}:call"


def byte_constant(direction: str) -> str:
    """Return ``copy:to-host:byte``, the name of the µs of each further byte."""
    return f"{COPY}{direction}:byte"


def copy_us(constants: Mapping[str, float], kind: TensorType, target: str) -> float:
    """Return the µs of copying a value to the host or to the device; NaN: it is not known."""
    direction = TO_HOST if target == HOST else TO_DEVICE
    unknown = float("nan")
    call = constants.get(call_constant(direction), unknown)
    return call + kind.bytes * constants.get(byte_constant(direction), unknown)


FREE = {name(way): 0.0 for name in (call_constant, byte_constant) for way in (TO_HOST, TO_DEVICE)}
"""Where only whether there is a cover is asked for, not what it costs."""
