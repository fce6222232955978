"""Compares the shown placement with the reference that the user chose."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal

from collage_engine.records import protocol
from collage_engine.records.answers import Comparison
from collage_engine.records.placement import Baseline, Placement
from collage_engine.wording.figures import Difference, best_baseline, difference, latency_us
from collage_gui.document.runs import Runs
from collage_gui.document.shown import ShownPlacement
from collage_gui.engine_client import EngineRequests


@dataclass(frozen=True)
class Reference:
    """A run, or a baseline of the run that is shown, with which numbers are compared."""

    kind: str = "best"
    """``best`` baseline, ``baseline`` by name, or ``run`` by id."""
    name: str = ""


class ReferenceComparison(QObject):
    """The reference of all numbers, and the differences of the shown run from it."""

    reference_changed = Signal()
    changed = Signal()
    """A signal that ``result`` has changed."""

    def __init__(
        self,
        requests: EngineRequests,
        runs: Runs,
        placement: ShownPlacement,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._requests, self._runs = requests, runs
        self._placement = placement
        self.reference = Reference()
        self.result: Comparison | None = None
        """The nodes that differ between the reference run and the shown run."""
        placement.changed.connect(self._compare)

    def set_reference(self, reference: Reference) -> None:
        """Compare everything with another run or baseline."""
        self.reference = reference
        self.result = None
        self.reference_changed.emit()
        self._compare()

    def _compare(self) -> None:
        had, self.result = self.result is not None, None
        shown = self._placement.shown
        run = shown.run if shown is not None else None
        if self.reference.kind != "run" or run is None or run == self.reference.name:
            if had:
                self.changed.emit()
            return

        def arrived(answer: Comparison) -> None:
            self.result = answer
            self.changed.emit()

        params = protocol.RunsCompare(document=self._requests.handle, a=self.reference.name, b=run)
        self._requests.send(params, arrived, topic="compare")

    def reference_time(self) -> tuple[str, float | None]:
        """Return the name of the reference and its latency in µs; None where it is not known."""
        if self.reference.kind == "run":
            run = self._runs.find(self.reference.name)
            if run is None:
                return self.reference.name, None
            return self._runs.title_of(run), latency_us(run.placement)
        baseline = self.reference_baseline()
        if baseline is None:
            return self.reference.name or "best baseline", None
        return baseline.name, baseline.measured_us

    def is_itself(self) -> bool:
        """Tell whether the reference is the shown placement, so that there is no difference."""
        shown, baseline = self._placement.shown, self.reference_baseline()
        if shown is None:
            return False
        if self.reference.kind == "run":
            run = self._runs.find(self.reference.name)
            return run is not None and run.placement is shown.placement
        return baseline is not None and baseline.is_of(shown.placement)

    def reference_baseline(self) -> Baseline | None:
        """Return the baseline that numbers are compared with; None when they are not."""
        run, shown = self._runs.shown_or_last(), self._placement.shown
        if run is None or self.reference.kind == "run":
            return None
        if self.reference.kind == "best":
            return best_baseline(run, shown.placement if shown is not None else None)
        name = self.reference.name
        return next((b for b in run.baselines if b.name == name and b.measured_us), None)

    def difference(self, placement: Placement | Baseline | None = None) -> Difference | None:
        """Compare a placement of the shown run with the reference.

        Args:
            placement: The placement; None: the shown one.

        Returns:
            How their latencies differ; None where one of them is not known.
        """
        shown, run = self._placement.shown, self._runs.shown_or_last()
        if placement is None:
            placement = shown.placement if shown is not None else None
        if self.reference.kind != "run":
            return difference(placement, run, self.reference_baseline())
        other = self._runs.find(self.reference.name)
        return difference(placement, run, other.placement if other is not None else None, other)

    def is_decided(self) -> bool:
        """Tell whether measurements tell the shown placement from the reference, if it has any."""
        delta = self.difference()
        return delta is None or delta.is_decided
