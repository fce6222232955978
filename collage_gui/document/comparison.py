"""Compares the shown placement with the reference that the user chose."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QObject, Signal

from collage_engine.drawing.figures import best_baseline, latency_us
from collage_engine.records.comparison import Comparison
from collage_engine.records.placement import Baseline, Placement
from collage_engine.service import protocol
from collage_gui.document.cost_table import CostTable
from collage_gui.document.reference import Reference
from collage_gui.document.requests import EngineRequests
from collage_gui.document.runs import Runs
from collage_gui.document.shown_placement import ShownPlacement


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
        costs: CostTable,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._requests, self._runs = requests, runs
        self._placement, self._costs = placement, costs
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
        self._requests.send("runs.compare", params, arrived, topic="compare")

    def reference_time(self) -> tuple[str, float | None]:
        """Returns the name of the reference and its latency in µs; None where it is not known."""
        if self.reference.kind == "run":
            run = self._runs.find(self.reference.name)
            placement = run.placement if run is not None else None
            name = self._runs.title_of(run) if run is not None else self.reference.name
            return name, latency_us(placement)
        run, shown = self._runs.shown_or_last(), self._placement.shown
        if run is None:
            return "best baseline", None
        if self.reference.kind == "baseline":
            name = self.reference.name
            best = next((b for b in run.baselines if b.name == name and b.measured_us), None)
        else:
            best = best_baseline(run, shown.placement if shown is not None else None)
        if best is None:
            return self.reference.name or "best baseline", None
        return best.name, best.measured_us

    def is_itself(self) -> bool:
        """Tell whether the reference is the shown placement, so that there is no difference."""
        shown = self._placement.shown
        if shown is None:
            return False
        if self.reference.kind == "run":
            run = self._runs.find(self.reference.name)
            return run is not None and run.placement is shown.placement
        baseline = self.reference_baseline()
        return baseline is not None and baseline.is_of(shown.placement)

    def reference_baseline(self) -> Baseline | None:
        """Returns the baseline that numbers are compared with; None when they are not."""
        run = self._runs.shown_or_last()
        if run is None or self.reference.kind == "run":
            return None
        name, _ = self.reference_time()
        return next((b for b in run.baselines if b.name == name), None)

    def is_tied(self) -> bool:
        """Tell whether the shown placement is that of a run and the reference is tied with it.

        Such a pair has no percentage: its measurements do not decide.
        """
        run, baseline = self._runs.shown_or_last(), self.reference_baseline()
        shown = self._placement.shown
        if run is None or baseline is None or shown is None or shown.run != run.id:
            return False
        return baseline.name in run.tied

    def _toolchain_of_reference(self) -> str:
        """Returns the toolchain of the reference, or of the best baseline of a single toolchain."""
        name, _ = self.reference_time()
        run = self._runs.shown_or_last()
        if self.reference.kind == "baseline" or run is None:
            return name
        alone = [b for b in run.baselines if b.kind == "whole-model" and b.measured_us is not None]
        best = min(alone, key=lambda b: b.measured_us or 0.0, default=None)
        return best.name.split("[")[0] if best is not None else name

    def reference_partitions(self) -> dict[str, float]:
        """Returns the time that the reference takes for the operators of each shown partition.

        With a run as the reference, times are summed over the smallest sets of operators whose
        border is a border in both placements. With the baseline of one toolchain, the time is
        that of its candidate on the same operators, or the sum over candidates that together
        hold exactly these, where they are measured.

        Returns:
            Partition id → µs, for the partitions that can be compared.
        """
        shown = self._placement.shown
        if shown is None:
            return {}
        if self.reference.kind == "run":
            run = self._runs.find(self.reference.name)
            if run is None or run.placement is None:
                return {}
            return comparable_times(shown.placement, run.placement)
        toolchain = self._toolchain_of_reference()
        measured: list[tuple[frozenset[int], float]] = []
        for candidate in self._costs.candidates.values():
            us = self._costs.of(candidate.id).median_us
            plain = not candidate.takes and not candidate.gives  # as one toolchain by itself has
            if candidate.instance.toolchain == toolchain and plain and us is not None:
                measured.append((frozenset(candidate.nodes), us))
        times = {p.id: covered_time(p.nodes, measured) for p in shown.placement.partitions}
        return {partition: us for partition, us in times.items() if us is not None}


def covered_time(
    nodes: Iterable[int], measured: Iterable[tuple[frozenset[int], float]]
) -> float | None:
    """Returns the time that one toolchain takes for operators, by its measured candidates.

    The largest candidates inside the set are taken first, then those that fit beside them.

    Args:
        nodes: Operator numbers.
        measured: The operators of each candidate, and its time in µs.

    Returns:
        The time in µs; None where the candidates leave an operator out.
    """
    left, total = set(nodes), 0.0
    inside = [(held, us) for held, us in measured if left.issuperset(held)]
    for held, us in sorted(inside, key=lambda each: (-len(each[0]), each[1])):
        if held and left.issuperset(held):
            left -= held
            total += us
    return None if left else total


def comparable_times(now: Placement, before: Placement) -> dict[str, float]:
    """Divide the times of one placement among the partitions of another.

    Partitions that share an operator are joined until both placements have a border around the
    set; the earlier placement's time of each set is divided among the later one's partitions in
    proportion to their estimates.

    Args:
        now: The placement whose partitions get a time.
        before: The placement whose times are divided.

    Returns:
        Partition id of ``now`` → µs in ``before``; sets with an unknown estimate are left out.
    """
    import networkx as nx  # here, since the window starts without it

    owner = {n: p.id for p in before.partitions for n in p.nodes}
    overlaps = nx.Graph()
    overlaps.add_nodes_from(("now", p.id) for p in now.partitions)
    overlaps.add_edges_from(
        (("now", p.id), ("before", owner[n])) for p in now.partitions for n in p.nodes if n in owner
    )
    estimates = {("now", p.id): p.estimated_us for p in now.partitions}
    estimates |= {("before", p.id): p.estimated_us for p in before.partitions}
    times: dict[str, float] = {}
    for joined in nx.connected_components(overlaps):
        known = {part: us for part in joined if (us := estimates[part]) is not None}
        total = sum(us for (side, _), us in known.items() if side == "now")
        if len(known) < len(joined) or not total:
            continue
        factor = sum(us for (side, _), us in known.items() if side == "before") / total
        times |= {name: us * factor for (side, name), us in known.items() if side == "now"}
    return times
