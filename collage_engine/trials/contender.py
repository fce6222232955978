"""Contenders take part in the race; their results say what came of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np

from collage_engine.lowering.built import BuiltModule
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.candidate import Candidate
from collage_engine.records.placement import BaselineKind, LayerTime, MemorySeen
from collage_engine.records.precision import is_reduced
from collage_engine.toolchains.registry import title_of
from collage_engine.wording.titles import contender_title

ContenderKind = Literal["collage"] | BaselineKind
COLLAGE: Final = "collage"
"""The name of a placement of ours, and its kind."""


ModuleKey: TypeAlias = tuple[object, ...]
"""The identity of a module: contenders with equal ones are timed once."""


@dataclass(frozen=True)
class Sample:
    """Inputs by name, and what the user's own file computes of them.

    Attributes:
        inputs: by name.
        truth: the outputs, by name.
        bounds: what error an output is allowed on these inputs, where outputs are allowed
            different ones; by name.
        unchecked: the outputs that no sample checks, since they have no finite true value.
    """

    inputs: Mapping[str, np.ndarray]
    truth: Mapping[str, np.ndarray]
    bounds: Mapping[str, float] = field(default_factory=dict)
    unchecked: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A placement or a baseline, to be timed end to end.

    Attributes:
        name: by which the user knows it.
        kind: ``collage`` for a placement of the search, else the kind of baseline.
        cover: the candidates that its partitions run.
        reason: why it cannot be built at all; it is listed, not timed.
        barred: why it may not win, such as a pin or a deployment constraint that it breaks: it is
            timed but not exported.
    """

    name: str = COLLAGE
    kind: ContenderKind = COLLAGE
    cover: tuple[Candidate, ...] = ()
    reason: str | None = None
    barred: str | None = None

    @property
    def eligible(self) -> bool:
        """Tell whether it may win."""
        return self.barred is None

    @property
    def key(self) -> ModuleKey:
        """Return the identity of the module: contenders with equal keys are timed once."""
        parts = (
            (candidate.id, candidate.instance.threads, candidate.instance.precision)
            for candidate in self.cover
        )
        return tuple(sorted(parts))

    @property
    def title(self) -> str:
        """Return what it is called on every face: ``TVM only``."""
        return contender_title(self.name, self.kind, title_of)

    @property
    def reduced(self) -> bool:
        """Tell whether a part of it computes in less than float32 values have."""
        return any(is_reduced(candidate.instance) for candidate in self.cover)


def with_eligibility(inputs: SearchInputs, contender: Contender) -> Contender:
    """Return a contender with why it may not win, if a pin or a deployment limit says so."""
    return replace(contender, barred=inputs.why_barred(contender.cover))


def finite(value: float | None) -> float | None:
    """Return a number that JSON can hold: None for none, infinity and NaN."""
    return value if value is not None and math.isfinite(value) else None


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the 20th and the 80th percentile of values, of which there must be one."""
    low, high = np.percentile(values, [20, 80])
    return float(low), float(high)


@dataclass(frozen=True, kw_only=True)
class ContenderResult:
    """What the race found out about one cover.

    Attributes:
        contender: The contender.
        names: Other names by which the same cover takes part.
        reason: Why it has no time: refused by a toolchain, crashed, wrong numbers.
        reached: Whether its turn came.
        rounds_us: Median call of each round, at the speed of the winner's fresh process.
        max_abs_error: Largest absolute error of its outputs on all samples.
        max_rel_error: Largest relative one.
        memory: How much memory its process was seen to take.
        over_memory: Whether the limit on memory, and nothing else, keeps it from winning.
        folder: Where its module lies, with ``built.json``; None: it cannot be exported.
        built: What the builder says of the module.
        partitions_us: Microseconds of every partition by its candidate's id, where it was profiled:
            those that it would have taken had the machine been as fast as it usually was.
        between_us: Microseconds of the conversions and copies between partitions, likewise.
        layers: What its kernels and layers take, in running order; empty where it is not known.
    """

    contender: Contender
    names: tuple[str, ...] = ()
    reason: str | None = None
    reached: bool = True
    rounds_us: tuple[float, ...] = ()
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    memory: MemorySeen | None = None
    over_memory: bool = False
    folder: Path | None = None
    built: BuiltModule | None = None
    partitions_us: Mapping[str, float] = field(default_factory=dict)
    between_us: float = 0.0
    layers: tuple[LayerTime, ...] = ()

    @property
    def profiled_us(self) -> float:
        """Return what its partitions and what is between them take together, in microseconds."""
        return sum(self.partitions_us.values()) + self.between_us

    @property
    def measured_us(self) -> float | None:
        """Return the median of the rounds' medians."""
        return statistics.median(self.rounds_us) if self.rounds_us else None

    @property
    def spread_us(self) -> tuple[float, float] | None:
        """Return the 20th and the 80th percentile of the rounds' medians, in microseconds."""
        return spread(self.rounds_us) if self.rounds_us else None
