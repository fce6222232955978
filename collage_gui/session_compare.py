"""What the shown placement is compared with."""

from __future__ import annotations

from collage_engine.records.comparison import Comparison
from collage_engine.records.cost import UNKNOWN, Cost
from collage_engine.records.placement import Baseline, Placement
from collage_engine.service import protocol
from collage_gui.session_state import DocumentState, Reference


class Comparing(DocumentState):
    """The reference of all numbers, and the differences with it."""

    def set_reference(self, reference: Reference) -> None:
        self.reference = reference
        self.comparison = None
        self.reference_changed.emit()
        self._compare_with_reference()

    def _compare_with_reference(self) -> None:
        self.comparison = None
        run = self.shown.run if self.shown else None
        if self.reference.kind != "run" or run is None or run == self.reference.name:
            self.comparison_changed.emit()
            return

        def arrived(answer: Comparison) -> None:
            self.comparison = answer
            self.comparison_changed.emit()

        params = protocol.RunsCompare(document=self.handle, a=self.reference.name, b=run)
        self._request("runs.compare", params, arrived, ticket="compare")

    def reference_time(self) -> tuple[str, float | None]:
        """Name and µs of what is compared with; None when it is not known."""
        if self.reference.kind == "run":
            run = self.run_of(self.reference.name)
            placement = run.placement if run else None
            time = (placement.measured_us or placement.estimated_us) if placement else None
            return (self.run_title(run) if run else self.reference.name), time
        run = self.run_of(self.shown.run) if self.shown else None
        run = run or (self.visible_runs[-1] if self.visible_runs else None)
        if run is None:
            return "best baseline", None
        timed = [b for b in run.baselines if b.measured_us is not None]
        if self.reference.kind == "baseline":
            timed = [b for b in timed if b.name == self.reference.name]
        if not timed:
            return self.reference.name or "best baseline", None
        best = min(timed, key=lambda b: b.measured_us or 0.0)
        return best.name, best.measured_us

    def reference_baseline(self) -> Baseline | None:
        """The baseline that numbers are compared with, if it is one."""
        name, _ = self.reference_time()
        run = self.run_of(self.shown.run) if self.shown else None
        run = run or (self.visible_runs[-1] if self.visible_runs else None)
        if run is None or self.reference.kind == "run":
            return None
        return next((b for b in run.baselines if b.name == name), None)

    def reference_partitions(self) -> dict[str, float]:
        """Partition id → time of exactly these operators in the reference, where comparable.

        For a run: sums over the smallest sets of operators whose border is a border in both
        placements. For a toolchain alone: its candidate on the same operators, if measured.
        """
        if self.shown is None:
            return {}
        if self.reference.kind == "run":
            run = self.run_of(self.reference.name)
            if run is None or run.placement is None:
                return {}
            return _comparable(self.shown.placement, run.placement)
        name, _ = self.reference_time()
        by_work: dict[tuple[str, tuple[int, ...]], str] = {
            (c.instance.toolchain, c.nodes): c.id
            for c in self.candidates.values()
            if not c.takes and not c.gives  # a toolchain alone has plain borders
        }
        found: dict[str, float] = {}
        for partition in self.shown.placement.partitions:
            candidate = by_work.get((name, partition.nodes))
            cost = self.cost(candidate) if candidate else UNKNOWN
            if cost.usable and cost.median_us is not None:
                found[partition.id] = cost.median_us
        return found

    def ties(self) -> dict[str, str]:
        """Partition id → the toolchain that is as good on exactly the same operators.

        As good: it loses less than the spreads of both, as the engine judges ties; or the engine
        names it. Of several, the one that loses least.
        """
        if self.shown is None:
            return {}
        named = set(self.explanation.ties) if self.explanation is not None else set()
        wanted = {p.nodes: p for p in self.shown.placement.partitions}
        found: dict[str, tuple[float, str]] = {}
        for rival in self.candidates.values():
            ours = wanted.get(rival.nodes)
            toolchain = rival.instance.toolchain
            if ours is None or toolchain == ours.toolchain:
                continue
            theirs, own = self.cost(rival.id), self.cost(ours.candidate)
            if rival.id in self.regrets and self.regrets[rival.id] is None:
                continue  # in no cover, e.g. because of a pin
            loss = _loss(own, theirs, self.regrets.get(rival.id))
            if loss is not None and (rival.id in named or loss <= _reach(own, theirs)):
                found[ours.id] = min(found.get(ours.id, (loss, toolchain)), (loss, toolchain))
        return {partition: toolchain for partition, (_, toolchain) in found.items()}


def _loss(ours: Cost, theirs: Cost, regret: float | None) -> float | None:
    """What choosing ``theirs`` would lose: its regret, else the difference of the costs alone."""
    if ours.median_us is None or theirs.median_us is None:
        return None
    if not (ours.usable and theirs.usable):
        return None
    return regret if regret is not None else abs(theirs.median_us - ours.median_us)


def _reach(ours: Cost, theirs: Cost) -> float:
    """How far the spreads of two costs reach towards each other, in µs."""
    a, b = (ours, theirs) if ours.at() <= theirs.at() else (theirs, ours)
    return (a.high_us or a.at()) - a.at() + b.at() - (b.low_us or b.at())


def _comparable(now: Placement, before: Placement) -> dict[str, float]:
    """Partition id of ``now`` → its share of the time of the smallest common sets in ``before``."""
    parent: dict[tuple[str, str], tuple[str, str]] = {}

    def root(item: tuple[str, str]) -> tuple[str, str]:
        while parent.setdefault(item, item) != item:
            item = parent[item]
        return item

    owner = {n: p for p in before.partitions for n in p.nodes}
    for partition in now.partitions:
        for node in partition.nodes:
            other = owner.get(node)
            if other is not None:
                parent[root(("b", other.id))] = root(("a", partition.id))
    sums: dict[tuple[str, str], list[float | None]] = {}
    for side, placement in (("a", now), ("b", before)):
        for partition in placement.partitions:
            total = sums.setdefault(root((side, partition.id)), [0.0, 0.0])
            at = 0 if side == "a" else 1
            if total[at] is not None:
                us = partition.estimated_us
                total[at] = None if us is None else total[at] + us  # type: ignore[operator]
    found: dict[str, float] = {}
    for partition in now.partitions:
        mine, theirs = sums[root(("a", partition.id))]
        if mine and theirs is not None and partition.estimated_us is not None:
            found[partition.id] = theirs * partition.estimated_us / mine
    return found
