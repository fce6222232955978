"""Looking into covers that run: what every partition takes among the others."""

from __future__ import annotations

import statistics
from pathlib import Path

from collage_engine.machine.worker import Worker
from collage_engine.model.importer import ImportedModel
from collage_engine.pipeline import cancel
from collage_engine.placement.build import CoverPart
from collage_engine.placement.built import MODULE_FILE, attribute_kernels
from collage_engine.placement.field import ConfirmSettings, Field
from collage_engine.placement.rival import Outcome, Rival, Sample

PASSES = 5
"""Profiles of a cover, in turn with the reference's."""
RUNS = 5
"""Of the model, a pass."""

PartKey = tuple[str, tuple[int, ...]]
"""Instance id and operators."""


class RunCovers:
    """Builds covers and profiles them, each in a child process of its own.

    The first one is the reference: it stays loaded and is profiled in turn with every other one,
    whose times are told as they were had the machine been as fast as it was for the first.
    """

    def __init__(
        self, model: ImportedModel, sample: Sample, tolerance: float, folder: Path
    ) -> None:
        self._field = Field(
            model, sample.inputs, sample.truth, tolerance, folder, ConfirmSettings(),
            cancel.EVENT, lambda done, total, now: None,
        )  # fmt: skip
        self._record = model.record
        self._builder = Worker("collage_engine.placement.build_job:BuildJob", name="collage-build")
        self._count = 0
        self._reference: Outcome | None = None
        self._reference_us = 0.0

    def __enter__(self) -> RunCovers:
        return self

    def __exit__(self, *error: object) -> None:
        self._builder.close()
        self._field.close()

    def look(self, cover: tuple[CoverPart, ...]) -> dict[PartKey, float] | str:
        """µs of every partition within the cover; the reason when it cannot be built or run."""
        self._count += 1
        outcome = Outcome(rival=Rival(name=f"cover {self._count}", kind="collage", cover=cover))
        field = self._field
        field.build_one(
            self._builder, self._count, outcome, self._record.path, dict(self._record.shapes)
        )
        if outcome.reason is None:
            field.open(outcome)
        if outcome.reason is not None or outcome.built is None:
            return outcome.reason or "it was not built"
        try:
            passes = self._passes(outcome)
        finally:
            if outcome is not self._reference:
                self._leave(outcome)
        parts = outcome.built.parts
        taken = zip(*passes, strict=True)
        return {
            (part.instance.id, part.operators): statistics.median(times)
            for part, times in zip(parts, taken, strict=False)
        }

    def _passes(self, outcome: Outcome) -> list[list[float]]:
        """µs of every partition, pass by pass, at the reference's first speed."""
        if self._reference is None:
            passes = [self._profile(outcome) for _ in range(PASSES)]
            self._reference = outcome
            self._reference_us = statistics.median(map(sum, passes))
            return passes
        passes = []
        for _ in range(PASSES):
            speed = sum(self._profile(self._reference)) / self._reference_us
            passes.append([us / speed for us in self._profile(outcome)])
        return passes

    def _profile(self, outcome: Outcome) -> list[float]:
        assert outcome.built is not None
        seen = [(kernel.kernel, kernel.us) for kernel in self._field.profile(outcome, RUNS)]
        return attribute_kernels(outcome.built.kernels, seen)[0]

    def _leave(self, outcome: Outcome) -> None:
        worker = self._field.workers.pop(id(outcome), None)
        if worker is not None:
            worker.close()
        if outcome.folder is not None:
            (outcome.folder / MODULE_FILE).unlink(missing_ok=True)
