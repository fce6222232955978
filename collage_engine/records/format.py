"""Formats: how a value lies in memory at a partition's border; and what crossing it costs.

``plain`` is row major in the value's own (logical) order of axes. ``nhwc`` is a value of logical
axes N, C, H, W stored N, H, W, C: the tensor that is handed on then has the *stored* shape, also
row major. Where both are the same bytes (one channel, or one pixel) only ``plain`` is used, so
that nobody pays, or measures, for a difference that is none.

Costs are in microseconds. The rooms that can import toolchains write these constants into the
document; the search under deployment limits reads them in a process that imports no toolchain.
"""

from __future__ import annotations

from collections.abc import Mapping

from collage_engine.records.graph import TensorType

PLAIN = "plain"
NHWC = "nhwc"
HOST = "host"
"""Plain, in the host's memory, where a placement is on a device: bringing it there is a copy."""

TO_STORED: dict[str, tuple[int, ...]] = {NHWC: (0, 2, 3, 1)}
"""Stored axis → logical axis, as ``transpose`` takes it; plain has no entry."""
TO_LOGICAL: dict[str, tuple[int, ...]] = {NHWC: (0, 3, 1, 2)}

PIXELS = frozenset({"float32", "float16", "bfloat16", "int8", "uint8"})

Formats = Mapping[int, str]
"""Value → format; what is absent is plain."""


def differs(kind: TensorType, name: str = NHWC) -> bool:
    """Tell whether a value of this type can be in the format, and is other bytes then than plain.

    Pixels only, no indices: floats and 8-bit integers. On the host anything is other bytes.
    """
    if name == HOST:
        return True
    if name == PLAIN or len(kind.shape) != 4 or kind.dtype not in PIXELS:
        return False
    _, channels, height, width = kind.shape
    return channels > 1 and height * width > 1


def stored_shape(shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Return the shape of the tensor that holds a value of this logical shape in a format."""
    axes = TO_STORED.get(name)
    return shape if axes is None else tuple(shape[axis] for axis in axes)


def stored_type(kind: TensorType, name: str) -> TensorType:
    """Return the type of a tensor as it lies in memory in a format."""
    return kind if name == PLAIN else TensorType(stored_shape(kind.shape, name), kind.dtype)


CONVERSION = "format:"


def conversion_constant(kind: TensorType, source: str, target: str) -> str:
    """Return the name of the machine constant that says what a conversion takes, in microseconds.

    It reads ``format:plain:nhwc:float32:1x64x56x56``.
    """
    shape = "x".join(map(str, kind.shape))
    return f"{CONVERSION}{source}:{target}:{kind.dtype}:{shape}"


def border_words(takes: Mapping[int, str], gives: Mapping[int, str]) -> str:
    """Return a phrase such as ``input and output nhwc``; empty when all is plain."""
    taken, given = (
        ", ".join("values on the host" if name == HOST else name for name in sorted(names))
        for names in (set(takes.values()), set(gives.values()))
    )
    if taken == given:
        return f"input and output {taken}" if taken else ""
    parts = [f"input {taken}"] if taken else []
    return ", ".join([*parts, *([f"output {given}"] if given else [])])


LAUNCH = "launch"
"""What launching a partition costs."""
CALL = "call"
"""What a user's call costs besides its partitions and what is between them: the copies of inputs
and outputs. The cost of a whole model, which is timed as users call it, holds it already."""
PAIR = "pair:"
"""Prefix of ``pair:<from>:<to>``: what handing a value on from one toolchain costs."""


def pair_name(source: str, target: str) -> str:
    """Return the constant's name for two toolchains; their names hold no colon."""
    return f"{PAIR}{source}:{target}"


def split_pair(name: str) -> tuple[str, str]:
    """Return the toolchains (from, to) that a name of :func:`pair_name` is of."""
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
