"""The measuring stage: what is measured, in which order, and what came of it."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from collage_engine.bounds.heuristic import ASSUMED, PROVEN
from collage_engine.candidates.open_model import Menu, Workspace, threads_of
from collage_engine.control.budget import Budget
from collage_engine.control.progress import StageReport
from collage_engine.control.run_control import RunControl
from collage_engine.lowering.reference import TrueValues
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.cost import Cost
from collage_engine.records.errors import Cancelled
from collage_engine.records.event import Event, Progress
from collage_engine.records.placement import CandidateCounts
from collage_engine.records.settings import RunSettings
from collage_engine.store.keys import KeyContext
from collage_engine.timing.child import measuring_environment
from collage_engine.timing.measurer import (
    CandidateGroup,
    Measurer,
    MeasuringResult,
    group_candidates,
)


def in_order(groups: Sequence[CandidateGroup], operators: int) -> list[CandidateGroup]:
    """The groups in the order in which they are measured.

    Should the budget end early, a cover exists and the likeliest winners have costs: the whole
    model first, then what is never pruned (single operators, FuseOps groups, greedy partitions,
    regions), then the rules' proposals, small before large, since small ones are shared most.

    Args:
        groups: what is to be measured.
        operators: how many the model has.
    """

    def rank(group: CandidateGroup) -> tuple[int, int, int]:
        if len(group.nodes) == operators:
            kind = 0
        elif any(candidate.protected for candidate in group.candidates):
            kind = 1
        else:
            kind = 2
        return kind, len(group.nodes), group.nodes[0]

    return sorted(groups, key=rank)


class Measuring:
    """Measures the candidates of a menu on a run's inputs.

    Close it to end the child and to remove the recorded activations; both are made when first
    needed.
    """

    def __init__(
        self,
        workspace: Workspace,
        menu: Menu,
        settings: RunSettings,
        inputs: Mapping[str, np.ndarray],
        control: RunControl,
    ) -> None:
        self._workspace = workspace
        self._menu = menu
        self._settings = settings
        self._inputs = inputs
        self._control = control
        self._truth: Path | None = None
        self._measurer: Measurer | None = None
        self._done = 0
        """Keys measured in waves; progress within a wave is told as part of the whole."""
        self._left: int | None = None
        self.counts = CandidateCounts()

    @property
    def keys(self) -> KeyContext:
        """What keys of candidates are made with."""
        return self._menu.keys

    def __enter__(self) -> Measuring:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child and remove the recorded activations."""
        if self._measurer is not None:
            self._measurer.close()
            self._measurer = None
        if self._truth is not None:
            shutil.rmtree(self._truth, ignore_errors=True)
            self._truth = None

    def measure(self, budget: Budget, report: StageReport) -> list[CandidateRecord]:
        """All records with the costs that are known afterwards.

        Raises:
            Cancelled: the user stopped it. What was measured is in the store and was emitted.
        """
        records = self._menu.records
        if any(record.cost.state == "unknown" for record in records):
            report.progress(0, len({r.key for r in records}), "recording the model's own values")
        return self.add(records, budget.deadline)

    def add(
        self, records: Sequence[CandidateRecord], deadline: float | None
    ) -> list[CandidateRecord]:
        """Measure further records, count them, and return them with their costs."""
        if any(record.cost.state == "unknown" for record in records):
            groups = in_order(group_candidates(records), self._workspace.model.record.nodes)
            outcome = self.measure_groups(groups, deadline)
        else:
            outcome = MeasuringResult(
                costs={record.key: record.cost for record in records},
                from_store=len({record.key for record in records}),
                invalid=len({r.key for r in records if r.cost.state == "invalid"}),
            )
        before = self.counts
        self.counts = replace(
            before,
            enumerated=before.enumerated + len(records),
            distinct=before.distinct + len({record.key for record in records}),
            measured=before.measured + outcome.measured,
            from_store=before.from_store + outcome.from_store,
            invalid=before.invalid + outcome.invalid,
            skipped=before.skipped + outcome.skipped,
        )
        if outcome.stopped:
            raise Cancelled("cancelled; what was measured is kept")
        return with_costs(records, outcome.costs)

    def begin(self, records: Sequence[CandidateRecord]) -> None:
        """Count these records, of which waves will measure what is needed."""
        known = {record.key: record.cost for record in records if record.cost.state != "unknown"}
        distinct = len({record.key for record in records})
        self.counts = replace(
            self.counts,
            enumerated=self.counts.enumerated + len(records),
            distinct=self.counts.distinct + distinct,
            from_store=self.counts.from_store + len(known),
            invalid=self.counts.invalid + sum(c.state == "invalid" for c in known.values()),
            skipped=self.counts.skipped + distinct - len(known),
        )

    def wave(
        self, groups: Sequence[CandidateGroup], deadline: float, left: int
    ) -> Mapping[str, Cost]:
        """Costs of further groups of the records that :meth:`begin` counted.

        ``left``: how many keys are unmeasured now, at most all of which will be measured.
        """
        self._left = left
        try:
            outcome = self.measure_groups(groups, deadline)
        finally:
            self._left = None
        self._done += outcome.measured
        self.counts = replace(
            self.counts,
            measured=self.counts.measured + outcome.measured,
            from_store=self.counts.from_store + outcome.from_store,
            invalid=self.counts.invalid + outcome.invalid,
            skipped=self.counts.skipped - outcome.measured - outcome.from_store,
        )
        if outcome.stopped:
            raise Cancelled("cancelled; what was measured is kept")
        return outcome.costs

    def rest(self, records: Sequence[CandidateRecord], deadline: float) -> list[CandidateRecord]:
        """Measure what waves left out of the records that :meth:`begin` counted, too."""
        unknown = [record for record in records if record.cost.state == "unknown"]
        if not unknown:
            return list(records)
        groups = in_order(group_candidates(unknown), self._workspace.model.record.nodes)
        found = with_costs(records, self.wave(groups, deadline, len({r.key for r in unknown})))
        reasons = {r.key: r.cost.reason for r in found if r.cost.state == "unknown"}
        left = Counter(reasons.values())
        self.counts = replace(self.counts, proven=left[PROVEN], assumed=left[ASSUMED])
        return found

    def measure_groups(
        self, groups: Sequence[CandidateGroup], deadline: float | None, again: bool = False
    ) -> MeasuringResult:
        """Measure in the child, which is started and given the model's true values if need be."""
        return self.measurer().measure(
            groups,
            deadline=deadline,
            cancel=self._control.cancelled,
            on_event=self._tell,
            again=again,
        )

    def again(
        self, groups: Sequence[CandidateGroup], deadline: float, renew: bool = False
    ) -> Mapping[str, Cost]:
        """Measure known candidates once more; old and new repeats are merged.

        Args:
            groups: the candidates.
            deadline: when to end, on the monotonic clock.
            renew: measure in another process, elsewhere in memory.
        """
        if renew:
            self.measurer().renew()
        outcome = self.measure_groups(groups, deadline, again=True)
        if outcome.stopped:
            raise Cancelled("cancelled; what was measured is kept")
        return outcome.costs

    def measurer(self) -> Measurer:
        """The child, started and given the model's true values if need be."""
        if self._measurer is not None:
            return self._measurer
        workspace = self._workspace
        self._truth = Path(tempfile.mkdtemp(prefix="values-", dir=workspace.folder))
        TrueValues.record(workspace.model, self._inputs, self._truth, self._control.cancelled)
        toolchains = dict.fromkeys(offer.instance.toolchain for offer in self._menu.offers)
        self._measurer = Measurer(
            workspace.path,
            workspace.shapes,
            self._truth,
            store=workspace.store,
            env=measuring_environment(toolchains, threads_of(self._settings)),
            fingerprint=self._menu.keys.fingerprint,
            device=self._menu.device_text,
            versions={state.name: state.version or "" for state in self._menu.states},
            model_hash=workspace.model.record.sha256,
        )
        return self._measurer

    def _tell(self, event: Event) -> None:
        if isinstance(event, Progress) and self._left is not None:
            # At most that many: what turns out not to matter is left out.
            total, done = self._done + self._left, self._done + event.done
            left_s = (total - done) / event.rate if event.rate else None
            event = replace(event, done=done, total=total, left_s=left_s)
        self._control.emit(event)


def with_costs(
    records: Sequence[CandidateRecord], costs: Mapping[str, Cost]
) -> list[CandidateRecord]:
    """Equal work has one cost, wherever in the model it stands."""
    return [
        msgspec.structs.replace(record, cost=costs[record.key].like(record.cost))
        if record.key in costs
        else record
        for record in records
    ]
