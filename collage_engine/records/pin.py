"""Pins, which are what the user demands of a placement, and what became of pins and limits."""

from __future__ import annotations

from typing import Literal

import msgspec

from collage_engine.support.text import NAMED

PinKind = Literal["on", "never", "exactly", "together", "device"]
VerdictState = Literal["honoured", "infeasible", "pending"]


class Pin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pin is a constraint on some operators.

    ``on``: on ``toolchain`` (an instance id pins the instance too); ``never``: not on it;
    ``exactly``: these operators as exactly one partition (of ``toolchain`` if given);
    ``together``: in one partition, others welcome; ``device``: on ``device``.
    """

    kind: PinKind
    nodes: tuple[int, ...]
    """Operator numbers of the graph in hand."""
    toolchain: str | None = None
    device: str | None = None
    text: str = ""
    """As the user wrote it: ``conv1*,conv2=onednn``."""
    onnx_nodes: tuple[str, ...] = ()
    """Names the nodes go by in the file; what survives into the next version of a model."""

    @property
    def written(self) -> str:
        """Return the pin as the user wrote it, which names it in documents."""
        return self.text or self.kind

    @property
    def title(self) -> str:
        """Return the pin for a sentence; see ``pin_title``."""
        return pin_title(self.written, self.onnx_nodes)

    def fault(self, operators: int) -> str | None:
        """Return why it does not fit a graph of so many operators; None: it does."""
        if not self.nodes:
            return "it is on no node"
        outside = next((n for n in self.nodes if not 0 <= n < operators), None)
        if outside is not None:
            return f"it is on node {outside}, and operators are 0…{operators - 1}"
        if self.kind in ("on", "never") and not self.toolchain:
            return f"a pin of kind {self.kind!r} names no toolchain"
        if self.kind == "device" and not self.device:
            return "a pin of kind 'device' names no device"
        return None


def pin_title(text: str, onnx_nodes: tuple[str, ...] = ()) -> str:
    """Return a pin for a sentence: as it was written, but of many nodes the first one only.

    For example ``conv1 and 4 more=onednn``.

    Args:
        text: The pin as it was written.
        onnx_nodes: The nodes it is on; none: the names in the text are counted.
    """
    names, equals, demand = text.rpartition("=")
    several = onnx_nodes or names.split(",")
    if "," not in names or len(several) <= NAMED:
        return text
    return f"{several[0]} and {len(several) - 1} more{equals}{demand}"


def written_name(name: str) -> str:
    """Return a node's name as pins are written, in double quotes where it would be taken apart."""
    if "," in name or '"' in name or name != name.strip():
        return '"' + name.replace('"', '""') + '"'
    return name


class PinVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict says what became of a pin."""

    pin: str
    state: VerdictState
    price_us: float | None = None
    """Cost with it less cost without it, other pins kept; None when not known."""
    reason: str | None = None
    contradicts: tuple[int, ...] = ()
    """Indices of pins that cannot hold together with it."""


class LimitVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a deployment limit, and its price."""

    constraint: str
    """``allow``, ``max_runtimes``, ``max_bytes``, ``licences`` or ``max_memory``."""
    text: str
    """In words: ``at most 1 runtime``."""
    state: VerdictState
    price_us: float | None = None
    """Least cost with it less least cost without it, pins and other limits kept; of a limit on
    memory the difference of measured times."""
    reason: str | None = None
