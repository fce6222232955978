"""The measuring child and its parent exchange these messages.

The parent opens a model (``OpenRequest``), then asks for one group of candidates after the other
(``TimingRequest``) and gets a ``TimingReply`` for each of them. ``Bench`` is what prepares
candidates in the child; ``timing.bench`` has the real one.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Protocol

from collage_engine.records.cost import Cost
from collage_engine.records.format import Formats
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.timing.protocol import ProtocolSettings, TimedCall
from collage_engine.timing.speed_probe import Reading

WRONG_NUMBERS = "wrong numbers"
"""How reasons begin that hold for one model's values only, not wherever the key is equal."""


@dataclass(frozen=True)
class OpenRequest:
    """The first request to a child: which model to open, and with which settings to time."""

    model_path: str
    shapes: dict[str, tuple[int, ...]]
    truth_folder: str
    marker_path: str
    fingerprint: str
    settings: ProtocolSettings = field(default_factory=ProtocolSettings)
    probe_reference: Reading | None = None
    """The speed probe's reference; None: the child takes it now, and answers with it."""
    sha256: str | None = None
    """Of the model file: another one under its name must not be measured in its stead."""


@dataclass(frozen=True)
class TimingRequest:
    """Candidates over one set of operators; ``instances`` go by their place in the replies."""

    nodes: tuple[int, ...]
    """Operator numbers."""
    instances: dict[int, ToolchainInstance]
    """In this order they are compiled and run by themselves."""
    formats: dict[int, tuple[Formats, Formats]] = field(default_factory=dict)
    """What the candidate in a place takes and gives, by operator number; absent: plain."""
    seed: int = 0
    """Of the order of candidates within a round."""


@dataclass(frozen=True)
class TimingReply:
    """A message on the way: the cost of the candidate in this place, or that its turn began."""

    place: int
    cost: Cost | None = None


class Prepared(Protocol):
    """A compiled candidate whose numbers were right."""

    time: TimedCall
    max_rel_error: float | None
    """None: no true value is finite, so that nothing was compared."""

    def warm_inputs(self) -> None:
        """Read the inputs, so that they lie in the caches."""
        ...

    def close(self) -> None:
        """Give back what the candidate holds."""
        ...


class Bench(Protocol):
    """What can prepare candidates of one model."""

    cold: bool
    """Whether a time with cold weights is wanted."""

    def prepare(
        self,
        nodes: tuple[int, ...],
        instance: ToolchainInstance,
        about_to_run: Callable[[], None],
        takes: Formats | None = None,
        gives: Formats | None = None,
    ) -> Prepared:
        """Compile a candidate, run it by itself on the true inputs, and check its numbers.

        Raises:
            Exception: any, with the reason; the candidate is then invalid.
        """
        ...

    def evict(self) -> None:
        """Empty the caches."""
        ...


class Phase(IntEnum):
    """What the candidate at risk is doing, as the marker notes it."""

    NOTHING = 0
    COMPILING = 1
    RUNNING = 2
    TIMED = 3

    @property
    def text(self) -> str:
        """Return the phase within a sentence; empty where nothing is at risk."""
        return {1: "compiling", 2: "running by itself", 3: "being timed"}.get(self.value, "")


_MARK = struct.Struct("<ii")
_NOBODY = -1
"""Number that marks that no candidate is at risk."""


class Marker:
    """Which candidate is at risk, and doing what: a mapped file that survives the writer's crash.

    Writing it takes some nanoseconds, so that it may be written before every sample.
    """

    def __init__(self, path: str | Path, *, create: bool = False) -> None:
        self.path = Path(path)
        if create:
            self.path.write_bytes(_MARK.pack(_NOBODY, Phase.NOTHING))
        with self.path.open("r+b") as stream:
            self._map = mmap.mmap(stream.fileno(), _MARK.size)

    def set(self, place: int, phase: Phase) -> None:
        """Note that the candidate in this place enters this phase."""
        _MARK.pack_into(self._map, 0, place, phase)

    def clear(self) -> None:
        """Note that no candidate is at risk."""
        _MARK.pack_into(self._map, 0, _NOBODY, Phase.NOTHING)

    def get(self) -> tuple[int, Phase]:
        """Return the place at risk (-1: none) and its phase."""
        place, phase = _MARK.unpack_from(self._map, 0)
        known = phase in Phase._value2member_map_
        return place, Phase(phase) if known else Phase.NOTHING

    def blame(self, places: Sequence[int]) -> tuple[int | None, Phase]:
        """Return which candidate was at risk when the child ended, and in which phase.

        Args:
            places: The candidates that may be to blame.

        Returns:
            The place; None where none of these was at risk.
        """
        place, phase = self.get()
        return (place, phase) if place in places else (None, Phase.NOTHING)

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()
