"""What is confirmed against what, and what came of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from collage_engine.build.built import BuiltModule
from collage_engine.records.candidate import CoverPart
from collage_engine.records.memory import MemorySeen
from collage_engine.records.placement import BaselineKind
from collage_engine.records.precision import is_reduced

if TYPE_CHECKING:
    import numpy as np

ContenderKind = Literal["collage"] | BaselineKind


@dataclass(frozen=True)
class Sample:
    """Inputs by name, and what the user's own file computes of them."""

    inputs: Mapping[str, np.ndarray]
    truth: Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A cover, or a baseline, to be timed end to end."""

    name: str
    kind: ContenderKind
    cover: tuple[CoverPart, ...] = ()
    order: int = 0
    """Settles ties after the number of partitions: the user's order, smaller first."""
    python_session: bool = False
    """Timed as the toolchain's users run it: its Python session on the user's own file."""
    reason: str | None = None
    """Why it cannot be built at all; it is listed, not timed."""
    eligible: bool = True
    """Whether it may win: a baseline that breaks a pin is timed but not exported."""
    barred: str | None = None
    """Which deployment constraint it breaks; then it is not eligible."""

    @property
    def key(self) -> tuple[object, ...]:
        """Contenders with equal keys are the same module; they are built and timed once."""
        parts = sorted(
            (
                part.instance.id,
                part.instance.threads,
                part.instance.precision,
                tuple(sorted(part.operators)),
                tuple(sorted(part.takes.items())),
                tuple(sorted(part.gives.items())),
            )
            for part in self.cover
        )
        return (self.python_session, *parts)


@dataclass(kw_only=True)
class ContenderResult:
    """A contender's confirmation."""

    contender: Contender
    reason: str | None = None
    """Why it has no time: refused by a toolchain, crashed, wrong numbers."""
    selection_us: list[float] = field(default_factory=list)
    """Median call of each selection round; NaN where it sat out."""
    rounds_us: list[float] = field(default_factory=list)
    """Median call of each fresh round (NaN: sat out); what is reported comes from these."""
    calls_us: list[float] = field(default_factory=list)
    """Single calls of the fresh rounds."""
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    memory: MemorySeen | None = None
    """Of its process."""
    folder: Path | None = None
    """Where its module lies, with ``built.json``."""
    built: BuiltModule | None = None
    build_s: float = 0.0
    heat: list[tuple[float, list[float]]] = field(default_factory=list)
    """Rounds of the heat it left in, where memory did not hold all contenders at once."""

    @property
    def exportable(self) -> bool:
        return self.reason is None and self.folder is not None and self.contender.eligible

    @property
    def measured_us(self) -> float | None:
        """Median of the fresh rounds' medians."""
        known = [us for us in self.rounds_us if us == us]
        return statistics.median(known) if known else None

    @property
    def spread_us(self) -> tuple[float, float] | None:
        """20th and 80th percentile of the fresh rounds' medians, which ``measured_us`` is of."""
        known = sorted(us for us in self.rounds_us if us == us)
        if not known:
            return None
        last = len(known) - 1
        return known[round(last * 0.2)], known[round(last * 0.8)]

    @property
    def peak_memory_bytes(self) -> int | None:
        """The largest resident size of its process."""
        return None if self.memory is None else self.memory.peak_bytes

    @property
    def partitions(self) -> int:
        return len(self.contender.cover)

    @property
    def reduced(self) -> bool:
        """Whether a part of it computes in less than float32 values have."""
        return any(is_reduced(part.instance) for part in self.contender.cover)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Paired difference ``a − b`` in µs over the rounds both took part in, 95 % interval."""

    us: float
    low_us: float
    high_us: float

    @property
    def tied(self) -> bool:
        return self.low_us <= 0.0 <= self.high_us
