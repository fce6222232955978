"""Names of a run's constants: what hand-overs cost here, and what runtimes bring to a deployment.

Costs are in microseconds. The rooms that can import toolchains write these constants into the
document; the search under deployment limits reads them in a process that imports no toolchain.
"""

from __future__ import annotations

from collections.abc import Mapping

from collage_engine.records.format import HOST
from collage_engine.records.graph import TensorType

LAUNCH = "launch"
"""What launching a partition costs."""
PAIR = "pair:"
"""Prefix of ``pair:<from>:<to>``: what handing a value on from one toolchain instance costs."""


def pair_name(source: str, target: str) -> str:
    """Return the constant's name for two instances; their ids hold no colon."""
    return f"{PAIR}{source}:{target}"


def split_pair(name: str) -> tuple[str, str]:
    """Return the instances (from, to) that a name of :func:`pair_name` is of."""
    _, source, target = name.split(":")
    return source, target


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


BYTES = "runtime-bytes:"
"""``runtime-bytes:<name>`` in the constants: size of the libraries it brings."""
LICENCE = "runtime-licence:"
"""``runtime-licence:<name>:<SPDX>``: 1 where a library of it is under that licence."""
WEIGHTS = "weights-bytes"
