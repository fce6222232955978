"""The measuring stage: what is measured, in which order, and what came of it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from collage_engine.candidates.menu import Menu, threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.run_control import RunControl
from collage_engine.lowering.reference import TrueValues
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import Cost
from collage_engine.records.cost_table import CostTable
from collage_engine.records.errors import Cancelled
from collage_engine.records.event import Event, Progress
from collage_engine.records.flag import Flag, FlagWhen
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
    """Return the groups in the order in which they are measured.

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
        open_model: OpenModel,
        menu: Menu,
        settings: RunSettings,
        inputs: Mapping[str, np.ndarray],
        control: RunControl,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            open_model: The model.
            menu: Its candidates.
            settings: Of the run.
            inputs: The run's inputs, by name.
            control: Takes events, and cancels.
        """
        self._open_model = open_model
        self._menu = menu
        self._settings = settings
        self._inputs = inputs
        self._control = control
        self._truth: Path | None = None
        self._measurer: Measurer | None = None
        self._done = 0
        """Keys measured in waves; progress within a wave is reported as part of the whole."""
        self._left: int | None = None
        self.counts = CandidateCounts()

    @property
    def keys(self) -> KeyContext:
        """Return what keys of candidates are made with."""
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

    def add(
        self, candidates: Sequence[Candidate], costs: CostTable, deadline: float | None
    ) -> CostTable:
        """Measure further candidates and count them.

        Args:
            candidates: Candidates that were not counted before.
            costs: What is known of their costs.
            deadline: When to end, on the monotonic clock; None: when all are measured.

        Returns:
            The table with the costs that are known afterwards.

        Raises:
            Cancelled: The user stopped it. What was measured is in the store and was emitted.
        """
        keys = {candidate.key for candidate in candidates}
        from_trials = 0
        if all(costs.known(candidate.id) for candidate in candidates):
            known = {c.key: costs.isolated_cost(c.id) for c in candidates}
            stored = sum(cost.from_store for cost in known.values())
            from_trials = len(known) - stored
            outcome = MeasuringResult(
                costs=known,
                from_store=stored,
                invalid=sum(cost.state == "invalid" for cost in known.values()),
            )
        else:
            groups = in_order(group_candidates(candidates), self._open_model.model.record.nodes)
            outcome = self.measure_groups(groups, deadline)
        before = self.counts
        self.counts = replace(
            before,
            enumerated=before.enumerated + len(candidates),
            distinct=before.distinct + len(keys),
            measured=before.measured + outcome.measured,
            from_trials=before.from_trials + from_trials,
            from_store=before.from_store + outcome.from_store,
            invalid=before.invalid + outcome.invalid,
            skipped=before.skipped + outcome.skipped,
        )
        if outcome.stopped:
            raise Cancelled("cancelled; what was measured is kept")
        return costs.with_measured(candidates, outcome.costs)

    def begin(self, candidates: Sequence[Candidate], costs: CostTable) -> None:
        """Count candidates of which ``wave`` will measure those that are needed.

        Args:
            candidates: Candidates that were not counted before.
            costs: What is known of their costs.
        """
        known = {c.key: costs.isolated_cost(c.id) for c in candidates if costs.known(c.id)}
        stored = sum(cost.from_store for cost in known.values())
        distinct = len({candidate.key for candidate in candidates})
        self.counts = replace(
            self.counts,
            enumerated=self.counts.enumerated + len(candidates),
            distinct=self.counts.distinct + distinct,
            from_trials=self.counts.from_trials + len(known) - stored,
            from_store=self.counts.from_store + stored,
            invalid=self.counts.invalid + sum(c.state == "invalid" for c in known.values()),
            skipped=self.counts.skipped + distinct - len(known),
        )

    def wave(
        self, groups: Sequence[CandidateGroup], deadline: float, left: int
    ) -> Mapping[str, Cost]:
        """Measure further groups of the candidates that :meth:`begin` counted.

        Args:
            groups: What is measured now.
            deadline: When to end, on the monotonic clock.
            left: How many keys are unmeasured now, at most all of which will be measured.

        Returns:
            Isolated costs by measurement key.

        Raises:
            Cancelled: The user stopped it. What was measured is in the store and was emitted.
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

    def rest(self, candidates: Sequence[Candidate], costs: CostTable, deadline: float) -> CostTable:
        """Measure those of the candidates that :meth:`begin` counted which no wave has measured.

        Args:
            candidates: The candidates.
            costs: What is known of their costs.
            deadline: When to end, on the monotonic clock.

        Returns:
            The table with the costs that are known afterwards.

        Raises:
            Cancelled: The user stopped it. What was measured is in the store and was emitted.
        """
        unknown = [candidate for candidate in candidates if not costs.known(candidate.id)]
        if not unknown:
            return costs
        groups = in_order(group_candidates(unknown), self._open_model.model.record.nodes)
        measured = self.wave(groups, deadline, len({c.key for c in unknown}))
        return costs.with_measured(candidates, measured)

    def measure_groups(
        self, groups: Sequence[CandidateGroup], deadline: float | None, again: bool = False
    ) -> MeasuringResult:
        """Measure groups in the child.

        It is started and given the model's true values if need be.

        Args:
            groups: What is measured, in this order.
            deadline: When to end, on the monotonic clock; None: when all are measured.
            again: Whether to measure also what the store has, and to merge old and new repeats.

        Returns:
            The costs that are known afterwards, and how many came from where.
        """
        try:
            measurer = self.measurer(deadline)
        except Cancelled:
            keys = {candidate.key for group in groups for candidate in group.candidates}
            stopped = self._control.cancelled.is_set()
            return MeasuringResult(skipped=len(keys), stopped=stopped)
        return measurer.measure(
            groups,
            deadline=deadline,
            cancel=self._control.cancelled,
            on_event=self._tell,
            again=again,
        )

    def again(
        self, groups: Sequence[CandidateGroup], deadline: float, renew: bool = False
    ) -> Mapping[str, Cost]:
        """Measure known candidates once more, and merge old and new repeats.

        Args:
            groups: The candidates.
            deadline: When to end, on the monotonic clock.
            renew: Whether to measure in another process, elsewhere in memory.

        Returns:
            Isolated costs by measurement key.

        Raises:
            Cancelled: The user stopped it. What was measured is in the store and was emitted.
        """
        if renew:
            self.measurer(deadline).renew()
        outcome = self.measure_groups(groups, deadline, again=True)
        if outcome.stopped:
            raise Cancelled("cancelled; what was measured is kept")
        return outcome.costs

    def measurer(self, deadline: float | None = None) -> Measurer:
        """Return the measurer; the model's true values are recorded for it if need be.

        Args:
            deadline: When to end recording the values, on the monotonic clock; None: at no time.

        Raises:
            Cancelled: The user stopped it, or the deadline passed before the values were known.
        """
        if self._measurer is not None:
            return self._measurer
        opened = self._open_model
        self._truth = Path(tempfile.mkdtemp(prefix="values-", dir=opened.folder))
        TrueValues.record(opened.model, self._inputs, self._truth, self._until(deadline))
        toolchains = dict.fromkeys(source.instance.toolchain for source in self._menu.sources)
        self._measurer = Measurer(
            opened.path,
            opened.shapes,
            self._truth,
            store=opened.store,
            env=measuring_environment(toolchains, threads_of(self._settings)),
            fingerprint=self._menu.keys.fingerprint,
            device=self._menu.device_text,
            versions={state.name: state.version or "" for state in self._menu.states},
            model_hash=opened.model.record.sha256,
            weights_bytes=opened.model.record.weights_bytes,
            faults=self._control.faults,
        )
        return self._measurer

    def _until(self, deadline: float | None) -> Flag:
        """Return what stops the work: the user, or the deadline."""
        cancelled = self._control.cancelled
        if deadline is None:
            return cancelled
        return FlagWhen(lambda: cancelled.is_set() or time.monotonic() >= deadline)

    def _tell(self, event: Event) -> None:
        """Pass an event on; the progress of a wave as that of all waves together."""
        if isinstance(event, Progress) and self._left is not None:
            # At most that many: what turns out not to matter is left out.
            total, done = self._done + self._left, self._done + event.done
            left_s = (total - done) / event.rate if event.rate else None
            event = replace(event, done=done, total=total, left_s=left_s)
        self._control.emit(event)
