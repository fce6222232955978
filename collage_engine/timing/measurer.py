"""Costs for candidates: from the store, or measured in a child that may crash, hang or be killed.

Groups are measured in the caller's order until the budget is spent or the user stops; each cost
is stored the moment it arrives. One child serves all groups. When it ends before its time, the
candidate that was at risk is to blame and costs infinity; the others are timed again without it
(``call_again``).

A candidate's compilation has a limit of its own; a library of kernels that many of them call must
not count against the first one's, and is compiled before.
"""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from collage_engine.candidates.catalog import CandidateCatalog, threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.lowering.reference import TrueValues
from collage_engine.machine.child_process import END_S
from collage_engine.machine.faults import FAULTS, FaultTracker
from collage_engine.machine.processes import private_bytes
from collage_engine.machine.run_control import RunControl
from collage_engine.machine.worker import (
    Worker,
    WorkerError,
    WorkerFault,
    WorkerTimeout,
    call_again,
)
from collage_engine.records.candidate import Candidate, Cost, CostTable, invalid
from collage_engine.records.event import Event, Log, Measured, Progress
from collage_engine.records.graph import OperatorSet, operator_set
from collage_engine.records.placement import CandidateCounts
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.store.store import Measurement, Store
from collage_engine.support.errors import Cancelled, MeasureError, ToolchainError
from collage_engine.support.time_limits import (
    ANSWER_S,
    LEAST_S,
    WORK_S,
    Flag,
    with_weights,
    within_budget,
)
from collage_engine.timing.child import (
    OpenRequest,
    TimingReply,
    TimingRequest,
    measuring_environment,
)
from collage_engine.timing.job import JOB
from collage_engine.toolchains.registry import get

log = logging.getLogger(__name__)

GRACE_S = END_S
"""Seconds that a candidate may run past the deadline, once begun: as long as a child may take to
end."""
GROUPS_AHEAD = 8
"""Groups of candidates that are compiled at once; chosen: a second's work for two processors (those
of a MobileNetV3), beside which starting the processes takes nothing."""
BLOATED_SHARE = 0.5
"""Share of its own limit from which on a child is replaced between groups: what comes next may take
as much again."""
NOT_OPENED = (
    "the measuring process did not open the model within {seconds:.0f} s, which was all the time "
    "that there was for measuring: a larger --budget gives it more"
)


CandidateGroup = tuple[Candidate, ...]
"""Candidates over one operator set, which are timed against each other on the same inputs."""


def group_candidates(candidates: Iterable[Candidate]) -> list[CandidateGroup]:
    """Return the candidates in groups over the same operators, in order of first appearance."""
    groups: dict[tuple[int, ...], CandidateGroup] = {}
    for candidate in candidates:
        groups[candidate.nodes] = (*groups.get(candidate.nodes, ()), candidate)
    return list(groups.values())


@dataclass(eq=False)
class Measurer:
    """Measures candidates of one model. Close it to end the child.

    The child is started by the first group that needs one.

    Attributes:
        opening: Which model the child opens; its hash also tells models apart in the store where a
            result holds for one model only.
        store: Known costs, and where new ones are kept.
        env: The child's variables (see ``measuring_environment``).
        device: The machine in words, kept beside costs for readers.
        versions: Toolchain → library version, kept beside costs for readers.
        candidate_limit_s: Seconds that a candidate may take to be compiled, and to run.
        faults: Which toolchains crashed or hung in this run.
        own_inputs: Whether the true values are those of the user's inputs: what is wrong on them
            alone is not kept.
        job: The worker's target.
        worker: Takes requests once the child has the model open (``has_open``).
    """

    opening: OpenRequest
    store: Store
    env: Mapping[str, str] | None = None
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    candidate_limit_s: float = ANSWER_S
    faults: FaultTracker = field(default_factory=FaultTracker)
    own_inputs: bool = False
    job: str = JOB

    def __post_init__(self) -> None:
        self.model = self.opening.model
        self.candidate_limit_s = with_weights(self.candidate_limit_s, self.model.weights_bytes)
        self.worker = Worker(self.job, env=self.env, name="collage-measure")
        self._opened = 0
        """Generation of the child that has the model open."""

    def close(self) -> None:
        """End the child."""
        self.worker.close()

    def has_open(self, timeout_s: float, cancel: Flag | None) -> bool:
        """Tell whether the child has the model open; it is started and given the model if need be.

        Args:
            timeout_s: Seconds that this may take, whatever the number of attempts.
            cancel: Ends the child when it is set.

        Returns:
            False where the ``timeout_s`` were over first; there is no child then.

        Raises:
            MeasureError: ``FAULTS`` children died, or one took longer than any may.
            Cancelled: The user stopped it.
        """
        if self.worker.alive and self._opened == self.worker.generation:
            return True
        most_s = with_weights(WORK_S, self.model.weights_bytes)
        deadline = time.monotonic() + timeout_s
        further_attempts = iter(range(1, FAULTS))

        def is_tried_again(fault: WorkerFault) -> bool:
            return not isinstance(fault, WorkerTimeout) and next(further_attempts, 0) > 0

        def open_model() -> None:
            left_s = deadline - time.monotonic()
            self.worker.call(self.opening, min(most_s, left_s), cancel)

        try:
            call_again(open_model, is_tried_again)
        except WorkerFault as error:
            if isinstance(error, WorkerTimeout) and time.monotonic() >= deadline:
                return False
            raise MeasureError(
                f"{self.model.path} could not be opened for measuring: {error}"
            ) from error
        self._opened = self.worker.generation
        return True

    def renew_if_bloated(self) -> None:
        """End a child that holds half of the memory it may: libraries give little back."""
        pid = self.worker.pid
        if pid is not None and private_bytes(pid) > self.worker.memory_limit_bytes * BLOATED_SHARE:
            self.worker.close()


@dataclass(eq=False)
class MeasureCall:
    """Measures groups of candidates, in their order, by a call of :meth:`run`.

    Attributes:
        measurer: Has the child and the store.
        groups: What is measured.
        deadline: When to end, on the monotonic clock.
        cancel: When set, measuring ends within a second and what was measured is kept.
        tell: Takes ``Measured`` and ``Progress``.
        again: Whether to measure also what the store has, and to replace it.
        counts: The run's, of whose measuring this call is a part.
        costs: What is known by now, by measurement key; keys that were not reached are missing.
        stopped: Whether the user stopped it.
    """

    measurer: Measurer
    groups: Sequence[CandidateGroup]
    deadline: float = math.inf
    cancel: Flag | None = None
    tell: Callable[[Event], None] = lambda event: None
    again: bool = False
    counts: CandidateCounts = field(default_factory=CandidateCounts)
    costs: dict[str, Cost] = field(default_factory=dict)
    stopped: bool = False

    def __post_init__(self) -> None:
        self.measured_before = self.counts.measured
        self.by_key = defaultdict[str, list[Candidate]](list)
        for candidate in (candidate for group in self.groups for candidate in group):
            self.by_key[candidate.key].append(candidate)
        self.began = time.monotonic()
        self.ahead: list[Candidate] = []
        """Candidates whose kernels are to be compiled with the next request."""
        self.was_unexplained = False
        """Whether a child ended while no candidate was at risk, as when it compiled for several."""

    def run(self) -> None:
        """Take the costs that the store has, and measure the others until the time is over.

        Raises:
            MeasureError: The model cannot be opened in the child, or the store cannot be used.
        """
        if not self.again:
            stored = self.measurer.store.get_many(self.by_key, self.measurer.model.sha256)
            for key, cost in stored.items():
                self.note(key, cost, from_store=1)
        compiled_groups = 0  # or their kernels are with the next request
        try:
            for number, group in enumerate(self.groups):
                wanted = self.unmeasured(group)
                if not wanted:
                    continue
                if time.monotonic() >= self.deadline:
                    break
                if number >= compiled_groups:
                    compiled_groups = number + GROUPS_AHEAD
                    next_groups = self.groups[number:compiled_groups]
                    self.ahead = [c for each in next_groups for c in self.unmeasured(each)]
                self.progress(wanted[0].label, wanted[0].nodes)
                self.group(wanted)
                self.measurer.renew_if_bloated()
        except Cancelled:
            self.stopped = True
        self.progress("")

    def unmeasured(self, group: CandidateGroup) -> list[Candidate]:
        """Return the candidates of a group without a cost, one for each measurement key."""
        return list({c.key: c for c in group if c.key not in self.costs}.values())

    def group(self, candidates: list[Candidate]) -> None:
        """Measure one group, and again without the culprit each time the child ends early.

        Args:
            candidates: Its candidates that have no cost yet.

        Raises:
            Cancelled: The user stopped it.
            MeasureError: The child failed in a way that no candidate is to blame for.
        """
        waiting = {candidate.key: candidate for candidate in candidates}
        try:
            call_again(lambda: self.ask(waiting), lambda fault: self.take_out(fault, waiting))
        except WorkerError as error:
            raise MeasureError(f"measuring failed: {error}") from error

    def ask(self, waiting: dict[str, Candidate]) -> None:
        """Have the child measure one group, if there is time.

        Args:
            waiting: The candidates without an answer, by measurement key; they go as answers come.
        """
        for key, candidate in list(waiting.items()):
            reason = self.measurer.faults.reason_against([candidate.instance.toolchain])
            if reason is not None:
                del waiting[key]
                self.note(key, invalid(reason))  # in this run only
        if not waiting or time.monotonic() >= self.deadline:
            return
        left_s = self.seconds_left()
        most_s = self.measurer.candidate_limit_s
        request = TimingRequest(
            tuple(waiting.values()),
            limit_s=within_budget(most_s, left_s, min(LEAST_S, most_s)),
            ahead=tuple(self.ahead),
        )
        self.ahead.clear()
        if not self.measurer.has_open(left_s, self.cancel):
            self.tell(Log(text=NOT_OPENED.format(seconds=left_s)))
            return

        def answered(reply: TimingReply) -> None:
            key, cost = reply
            self.keep(waiting.pop(key), cost)

        self.measurer.worker.call(request, self.seconds_left(), self.cancel, answered)
        if waiting:
            raise MeasureError("the measuring process left candidates without an answer")

    def seconds_left(self) -> float:
        """Return the seconds that the group in hand may take; infinite: no limit."""
        return max(0.0, self.deadline - time.monotonic()) + GRACE_S

    def take_out(self, fault: WorkerFault, waiting: dict[str, Candidate]) -> bool:
        """Take out of a group who is to blame for the end of its child.

        Args:
            fault: How the child ended.
            waiting: The candidates without an answer, by measurement key.

        Returns:
            That the others are tried again.
        """
        at_risk, late = fault.at_risk, isinstance(fault, WorkerTimeout)
        if at_risk is None and late:
            return True  # the time of the group is over: nobody knows who would have answered
        if at_risk is None or at_risk.who not in waiting:
            for key in list(waiting) if self.was_unexplained or fault.from_outside else ():
                del waiting[key]
                self.note(key, invalid(fault.how))
            self.was_unexplained = True
            return True
        candidate = waiting.pop(at_risk.who)
        if fault.from_outside or (late and at_risk.limit_s < self.measurer.candidate_limit_s):
            self.note(candidate.key, invalid(fault.how))  # another run may see it end
        else:
            self.keep(candidate, invalid(fault.how))
        if not fault.from_outside:
            toolchain = candidate.instance.toolchain
            self.measurer.faults.blame([toolchain], f"{candidate.label}: {fault.how}")
        return True

    def keep(self, candidate: Candidate, cost: Cost) -> None:
        """Store a cost that was measured."""
        # What could not be compared may be wrong on the numbers of another run, and the reverse.
        of_this_run = cost.usable and cost.max_rel_error is None
        of_this_run |= cost.wrong_numbers and self.measurer.own_inputs
        if not of_this_run:
            name = candidate.instance.toolchain
            versions = self.measurer.versions
            self.measurer.store.put(
                Measurement(
                    key=candidate.key,
                    cost=cost,
                    label=candidate.label,
                    instance=candidate.instance,
                    device=self.measurer.device,
                    versions={name: versions[name]} if name in versions else {},
                    model=self.measurer.model.sha256,
                    one_model=cost.wrong_numbers,
                )
            )
        self.note(candidate.key, cost, measured=1)
        self.progress(candidate.label, candidate.nodes)

    def note(self, key: str, cost: Cost, measured: int = 0, from_store: int = 0) -> None:
        """Note the cost of a measurement key, and send an event for every candidate that has it."""
        self.costs[key] = cost
        self.counts = replace(
            self.counts,
            measured=self.counts.measured + measured,
            from_store=self.counts.from_store + from_store,
            invalid=self.counts.invalid + (cost.state == "invalid"),
            skipped=self.counts.skipped - measured - from_store,
        )
        for candidate in self.by_key[key]:
            self.tell(Measured(candidate=candidate.id, cost=cost))

    def progress(self, now: str, nodes: tuple[int, ...] = ()) -> None:
        """Send an event with the number of keys measured, and the seconds that are left.

        Args:
            now: What is measured, in words.
            nodes: The operator numbers that are measured.
        """
        # At most that many: what the best cover turns out not to need is left out.
        total = self.counts.measured + self.counts.skipped
        measured = self.counts.measured - self.measured_before
        elapsed_s, rate, left_s = time.monotonic() - self.began, None, None
        if measured and elapsed_s > 0:
            rate = measured / elapsed_s
            left_s = min(self.counts.skipped / rate, self.seconds_left() - GRACE_S)
        self.tell(
            Progress(
                stage="measure",
                done=self.counts.measured,
                total=total,
                left_s=left_s,
                rate=rate,
                now=now,
                nodes=nodes,
            )
        )


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
    _measurer: Measurer | None = None

    def __post_init__(self) -> None:
        self._opened = ExitStack()

    def __enter__(self) -> Measuring:
        return self

    def __exit__(self, *_: object) -> None:
        """End the child and remove the recorded activations."""
        self._opened.close()

    def begin(self, candidates: Sequence[Candidate], costs: CostTable) -> None:
        """Count candidates of which ``measure_batch`` will measure those that are needed.

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
        self, groups: Sequence[CandidateGroup], deadline: float, again: bool = False
    ) -> Mapping[str, Cost]:
        """Measure further groups of the candidates that :meth:`begin` counted.

        Args:
            groups: What is measured now, in this order.
            deadline: When to end, on the monotonic clock.
            again: Whether to measure also what the store has, and to replace it.

        Returns:
            Isolated costs by measurement key.

        Raises:
            Cancelled: The user stopped it. What was measured is in the store and was emitted.
        """
        control = self.control
        candidates = (candidate for group in groups for candidate in group)

        def now(text: str) -> None:
            control.emit(Progress(stage="measure", done=0, total=len(groups), now=text))

        self.make_ready(candidates, now)
        self._measurer = self._measurer or self._open(deadline)
        if self._measurer is None:
            return {}
        call = MeasureCall(
            self._measurer, groups, deadline, control.cancelled, control.emit, again, self.counts
        )
        call.run()
        self.counts = call.counts
        if call.stopped:
            raise Cancelled("cancelled; what was measured is kept")
        return call.costs

    def make_ready(self, candidates: Iterable[Candidate], now: Callable[[str], None]) -> None:
        """Have the toolchains compile what candidates share that are about to be measured.

        What cannot be compiled is reported as a warning; its candidates are refused when their turn
        comes.

        Args:
            candidates: The candidates.
            now: Takes a few words on what is compiled.

        Raises:
            Cancelled: The user stopped it.
        """
        graph, control = self.open_model.model.graph, self.control
        wanted: dict[ToolchainInstance, list[OperatorSet]] = defaultdict(list)
        for candidate in candidates:
            wanted[candidate.instance].append(operator_set(candidate.nodes))
        for source in self.catalog.sources:
            toolchain = get(source.instance.toolchain)
            sets = wanted.get(source.instance, [])
            try:
                toolchain.precompile(graph, source.instance, sets, now, control.cancelled.is_set)
            except ToolchainError as error:
                control.warn(f"{source.instance.id}: {error}")
            control.check()

    def _open(self, deadline: float) -> Measurer | None:
        """Record the model's true values; return what measures on them.

        Args:
            deadline: When to end recording the values, on the monotonic clock.

        Returns:
            The measurer; None: the deadline passed before the values were known.

        Raises:
            Cancelled: The user stopped it.
        """
        opened = self.open_model
        truth = self._opened.enter_context(
            tempfile.TemporaryDirectory(
                prefix="values-", dir=opened.folder, ignore_cleanup_errors=True
            )
        )
        in_time = self.control.within(deadline - time.monotonic()).cancelled
        try:
            TrueValues.record(opened.model, self.inputs, Path(truth), in_time)
        except Cancelled:
            self.control.check()
            return None
        toolchains = dict.fromkeys(source.instance.toolchain for source in self.catalog.sources)
        measurer = Measurer(
            OpenRequest(opened.model.record, truth),
            store=opened.store,
            env=measuring_environment(toolchains, threads_of(self.settings)),
            device=self.catalog.device_text,
            versions={state.name: state.version or "" for state in self.catalog.states},
            faults=self.control.faults,
            own_inputs=self.settings.inputs_npz is not None,
        )
        self._opened.callback(measurer.close)
        return measurer
