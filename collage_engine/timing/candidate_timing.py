"""The measuring stage: what is measured, in which order, and what came of it.

A candidate's compilation has a limit of its own; a library of kernels that many of them call must
not count against the first one's.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from collage_engine.candidates.catalog import CandidateCatalog, threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.lowering.reference import TrueValues
from collage_engine.machine.run_control import RunControl
from collage_engine.records.candidate import Candidate, Cost, CostTable
from collage_engine.records.event import Progress
from collage_engine.records.graph import OperatorSet, operator_set
from collage_engine.records.placement import CandidateCounts
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import Cancelled, ToolchainError
from collage_engine.support.time_limits import Flag, FlagWhen
from collage_engine.timing.child import measuring_environment
from collage_engine.timing.measurer import (
    CandidateGroup,
    Measurer,
    MeasuringResult,
)
from collage_engine.toolchains.capabilities import PrecompilesShared
from collage_engine.toolchains.registry import get


def make_ready(
    open_model: OpenModel,
    catalog: CandidateCatalog,
    candidates: Iterable[Candidate],
    now: Callable[[str], None],
    control: RunControl,
) -> None:
    """Have the toolchains compile what candidates share that are about to be measured.

    What cannot be compiled is reported as a warning; its candidates are refused when their turn
    comes.

    Args:
        open_model: The model.
        catalog: The toolchain instances.
        candidates: The candidates.
        now: Takes a few words on what is compiled.
        control: The run's cancel flag, and what takes warnings.

    Raises:
        Cancelled: The user stopped it.
    """
    graph = open_model.model.graph
    wanted: dict[ToolchainInstance, list[OperatorSet]] = defaultdict(list)
    for candidate in candidates:
        wanted[candidate.instance].append(operator_set(candidate.nodes))
    for source in catalog.sources:
        toolchain = get(source.instance.toolchain)
        if not isinstance(toolchain, PrecompilesShared):
            continue
        sets = wanted.get(source.instance, [])
        try:
            toolchain.precompile(graph, source.instance, sets, now, control.cancelled.is_set)
        except ToolchainError as error:
            control.warn(f"{source.instance.id}: {error}")
        control.check()


@dataclass(eq=False)
class Measuring:
    """Measures the candidates of a catalog on a run's inputs.

    Close it to end the child and to remove the recorded activations; both are made when first
    needed.
    """

    open_model: OpenModel
    catalog: CandidateCatalog
    """Its candidates."""
    settings: RunSettings
    inputs: Mapping[str, np.ndarray]
    """The run's inputs, by name."""
    control: RunControl
    """Takes events, and cancels."""
    counts: CandidateCounts = field(default_factory=CandidateCounts)
    _truth: Path | None = None
    _measurer: Measurer | None = None

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

    def begin(self, candidates: Sequence[Candidate], costs: CostTable) -> None:
        """Count candidates of which ``wave`` will measure those that are needed.

        Args:
            candidates: Candidates that were not counted before.
            costs: What is known of their costs.
        """
        costs_by_key = {c.key: costs.cost(c.id) for c in candidates if costs.known(c.id)}
        stored = sum(cost.from_store for cost in costs_by_key.values())
        distinct = len({candidate.key for candidate in candidates})
        self.counts = replace(
            self.counts,
            enumerated=self.counts.enumerated + len(candidates),
            distinct=self.counts.distinct + distinct,
            from_trials=self.counts.from_trials + len(costs_by_key) - stored,
            from_store=self.counts.from_store + stored,
            invalid=self.counts.invalid + sum(c.state == "invalid" for c in costs_by_key.values()),
            skipped=self.counts.skipped + distinct - len(costs_by_key),
        )

    def measure_batch(
        self, groups: Sequence[CandidateGroup], deadline: float
    ) -> Mapping[str, Cost]:
        """Measure further groups of the candidates that :meth:`begin` counted.

        Args:
            groups: What is measured now, in this order.
            deadline: When to end, on the monotonic clock.

        Returns:
            Isolated costs by measurement key.

        Raises:
            Cancelled: The user stopped it. What was measured is in the store and was emitted.
        """
        candidates = (candidate for group in groups for candidate in group)

        def now(text: str) -> None:
            self.control.emit(Progress(stage="measure", done=0, total=len(groups), now=text))

        make_ready(self.open_model, self.catalog, candidates, now, self.control)
        outcome = self.measure_groups(groups, deadline, counts=self.counts)
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

    def measure_groups(
        self,
        groups: Sequence[CandidateGroup],
        deadline: float | None,
        again: bool = False,
        counts: CandidateCounts | None = None,
    ) -> MeasuringResult:
        """Measure groups in the child.

        It is started and given the model's true values if need be.

        Args:
            groups: What is measured, in this order.
            deadline: When to end, on the monotonic clock; None: when all are measured.
            again: Whether to measure also what the store has, and to replace it.
            counts: Of what was measured before, where these groups are a part of it.

        Returns:
            The costs that are known afterwards, and how many came from where.
        """
        try:
            measurer = self._opened(deadline)
        except Cancelled:
            keys = {candidate.key for group in groups for candidate in group}
            stopped = self.control.cancelled.is_set()
            return MeasuringResult(skipped=len(keys), stopped=stopped)
        return measurer.measure(
            groups,
            deadline=deadline,
            cancel=self.control.cancelled,
            on_event=self.control.emit,
            again=again,
            counts=counts,
        )

    def _opened(self, deadline: float | None) -> Measurer:
        """Return the measurer; the model's true values are recorded for it if need be.

        Args:
            deadline: When to end recording the values, on the monotonic clock; None: at no time.

        Raises:
            Cancelled: The user stopped it, or the deadline passed before the values were known.
        """
        if self._measurer is not None:
            return self._measurer
        opened = self.open_model
        self._truth = Path(tempfile.mkdtemp(prefix="values-", dir=opened.folder))
        TrueValues.record(opened.model, self.inputs, self._truth, self._until(deadline))
        toolchains = dict.fromkeys(source.instance.toolchain for source in self.catalog.sources)
        self._measurer = Measurer(
            opened.path,
            opened.shapes,
            self._truth,
            store=opened.store,
            env=measuring_environment(toolchains, threads_of(self.settings)),
            device=self.catalog.device_text,
            versions={state.name: state.version or "" for state in self.catalog.states},
            model_hash=opened.model.record.sha256,
            weights_bytes=opened.model.record.weights_bytes,
            faults=self.control.faults,
            own_inputs=self.settings.inputs_npz is not None,
        )
        return self._measurer

    def _until(self, deadline: float | None) -> Flag:
        """Return what stops the work: the user, or the deadline."""
        cancelled = self.control.cancelled
        if deadline is None:
            return cancelled
        return FlagWhen(lambda: cancelled.is_set() or time.monotonic() >= deadline)
