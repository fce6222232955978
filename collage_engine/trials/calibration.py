"""Looking into covers that run: what every partition takes among the others."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from collage_engine.build.built import attribute_kernels
from collage_engine.control.run_control import RunControl
from collage_engine.machine.worker import Worker
from collage_engine.records.candidate import CoverPart
from collage_engine.records.errors import Cancelled, CollageError
from collage_engine.trials.contender import Contender, ContenderResult, Sample
from collage_engine.trials.runner import ConfirmSettings, Field

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel

PASSES = 5
"""Profiles of a cover, in turn with the reference's."""
RUNS = 5
"""Of the model, a pass."""

PartKey = tuple[str, tuple[int, ...]]
"""Instance id and operators."""
ROUNDED = 1.0
"""Of a cover in reduced precision only the times are wanted, unless its numbers are nonsense:
whether it keeps the run's tolerance is found out later, on more samples."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What a cover took; times in µs."""

    parts: dict[PartKey, float]
    between_us: float
    """Conversions and copies between its partitions."""


class RunCovers:
    """Builds covers and profiles them, each in a child process of its own.

    The first one is the reference: it stays loaded and is profiled in turn with every other one,
    whose times are told as they were had the machine been as fast as it was for the first. Should
    it fail, the next cover takes its place.
    """

    def __init__(
        self,
        model: ImportedModel,
        sample: Sample,
        tolerance: float,
        folder: Path,
        control: RunControl,
    ) -> None:
        self._field = Field(
            model,
            sample.inputs,
            sample.truth,
            tolerance,
            folder,
            ConfirmSettings(),
            control.cancelled,
            lambda done, total, now: None,
        )
        self._tolerance = tolerance
        self._builder = Worker("collage_engine.build.build_job:BuildJob", name="collage-build")
        self._count = 0
        self._reference: ContenderResult | None = None
        self._reference_us = 0.0

    def __enter__(self) -> RunCovers:
        return self

    def __exit__(self, *error: object) -> None:
        self._builder.close()
        self._field.close()

    def look(self, cover: tuple[CoverPart, ...]) -> Looked | str:
        """What the cover took; the reason when it cannot be built or run."""
        self._count += 1
        outcome = ContenderResult(
            contender=Contender(name=f"cover {self._count}", kind="collage", cover=cover)
        )
        field = self._field
        field.tolerance = max(ROUNDED, self._tolerance) if outcome.reduced else self._tolerance
        field.build_one(self._builder, self._count, outcome)
        if outcome.reason is None:
            field.open(outcome)
        if outcome.reason is not None or outcome.built is None:
            return outcome.reason or "it was not built"
        try:
            passes = self._passes(outcome)
        except Cancelled:
            raise
        except CollageError as error:
            return str(error)
        finally:
            if outcome is not self._reference:
                self._field.leave(outcome)
        *parts, between = (statistics.median(times) for times in zip(*passes, strict=True))
        return Looked(
            parts={
                (part.instance.id, part.operators): us
                for part, us in zip(outcome.built.parts, parts, strict=True)
            },
            between_us=between,
        )

    def _passes(self, outcome: ContenderResult) -> list[list[float]]:
        """What ``_profile`` says, pass by pass, at the reference's first speed."""
        passes: list[list[float]] = []
        while self._reference is not None and len(passes) < PASSES:
            speed = self._speed(self._reference)
            if speed is not None:
                passes.append([us / speed for us in self._profile(outcome)])
        if self._reference is None:
            passes = [self._profile(outcome) for _ in range(PASSES)]
            self._reference = outcome
            self._reference_us = statistics.median(map(sum, passes))
        return passes

    def _speed(self, reference: ContenderResult) -> float | None:
        """What the reference takes now over what it took first; None: it failed, and is gone."""
        try:
            us = sum(self._profile(reference))
        except Cancelled:
            raise
        except CollageError:
            self._field.leave(reference)
            self._reference = None
            return None
        return us / self._reference_us if us > 0 and self._reference_us > 0 else 1.0

    def _profile(self, outcome: ContenderResult) -> list[float]:
        """µs of every partition, and last of what is between them."""
        built = outcome.built
        assert built is not None
        seen = [(kernel.kernel, kernel.us) for kernel in self._field.profile(outcome, RUNS)]
        taken, outside = attribute_kernels(built.kernels, seen)
        taken += [0.0] * (len(built.parts) - len(taken))  # the last ones may be views only
        return [*taken, sum(us for _, us in outside)]
