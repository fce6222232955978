"""The measuring stage: what is measured, in which order, and what came of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from collage_engine.lowering.reference import TrueValues
from collage_engine.measure.measurer import (
    Group,
    Measurer,
    Outcome,
    group_candidates,
    measuring_environment,
)
from collage_engine.pipeline import cancel
from collage_engine.pipeline.budget import Budget
from collage_engine.pipeline.stages import StageReport
from collage_engine.pipeline.workspace import Menu, Workspace, device_text, threads_of
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.cost import Cost
from collage_engine.records.errors import Cancelled
from collage_engine.records.event import Event
from collage_engine.records.placement import CandidateCounts
from collage_engine.records.settings import RunSettings


def in_order(groups: Sequence[Group], operators: int) -> list[Group]:
    """Should the budget end early, a cover exists and the likeliest winners have costs: the whole
    model first, then what is never pruned (single operators, FuseOps groups, greedy partitions,
    regions), then the rules' proposals, small before large, since small ones are shared most."""

    def rank(group: Group) -> tuple[int, int, int]:
        if len(group.nodes) == operators:
            kind = 0
        elif any(candidate.protected for candidate in group.candidates):
            kind = 1
        else:
            kind = 2
        return kind, len(group.nodes), group.nodes[0]

    return sorted(groups, key=rank)


class Measuring:
    """Measures the candidates of a menu on a run's inputs."""

    def __init__(
        self,
        workspace: Workspace,
        menu: Menu,
        settings: RunSettings,
        inputs: Mapping[str, np.ndarray],
        emit: Callable[[object], None],
    ) -> None:
        self._workspace = workspace
        self._menu = menu
        self._settings = settings
        self._inputs = inputs
        self._emit = emit
        self.counts = CandidateCounts()

    def measure(self, budget: Budget, report: StageReport) -> list[CandidateRecord]:
        """All records with the costs that are known afterwards. Raises Cancelled when the user
        stopped it; what was measured is in the store, and was emitted."""
        records = self._menu.records
        groups = in_order(group_candidates(records), self._workspace.model.record.nodes)
        missing = any(record.cost.state == "unknown" for record in records)
        if missing:
            report.progress(0, len({r.key for r in records}), "recording the model's own values")
            outcome = self.measure_groups(groups, budget.deadline)
        else:
            outcome = Outcome(
                costs={record.key: record.cost for record in records},
                from_store=len({record.key for record in records}),
                invalid=len({r.key for r in records if r.cost.state == "invalid"}),
            )
        self.counts = CandidateCounts(
            enumerated=len(records),
            distinct=len({record.key for record in records}),
            measured=outcome.measured,
            from_store=outcome.from_store,
            invalid=outcome.invalid,
            skipped=outcome.skipped,
        )
        if outcome.stopped:
            raise Cancelled("cancelled; what was measured is kept")
        return with_costs(records, outcome.costs)

    def measure_groups(
        self, groups: Sequence[Group], deadline: float | None, again: bool = False
    ) -> Outcome:
        """Record the activations these inputs give, then measure in a child."""
        workspace = self._workspace
        truth = Path(tempfile.mkdtemp(prefix="values-", dir=workspace.folder))
        versions = {state.name: state.version or "" for state in self._menu.states}
        toolchains = dict.fromkeys(offer.instance.toolchain for offer in self._menu.offers)
        try:
            TrueValues.record(workspace.model, self._inputs, truth, cancel.EVENT)
            with Measurer(
                workspace.path,
                workspace.shapes,
                truth,
                store=workspace.store,
                env=measuring_environment(toolchains, threads_of(self._settings)),
                fingerprint=self._menu.keys.fingerprint,
                device=device_text(),
                versions=versions,
                model_hash=workspace.model.record.sha256,
            ) as measurer:
                return measurer.measure(
                    groups, deadline=deadline, cancel=cancel.EVENT, on_event=self._tell,
                    again=again,
                )  # fmt: skip
        finally:
            shutil.rmtree(truth, ignore_errors=True)

    def _tell(self, event: Event) -> None:
        self._emit(event)


def with_costs(
    records: Sequence[CandidateRecord], costs: Mapping[str, Cost]
) -> list[CandidateRecord]:
    """Equal work has one cost, wherever in the model it stands."""
    return [
        msgspec.structs.replace(record, cost=costs[record.key]) if record.key in costs else record
        for record in records
    ]
