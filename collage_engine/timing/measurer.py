"""Costs for candidates: from the store, or measured in a child that may crash, hang or be killed.

Groups are measured in the caller's order until the budget is spent or the user stops; each cost
is stored the moment it arrives. One child serves all groups. When it ends before its time, the
candidate that was at risk is to blame: it is tried once more, first and in a fresh child (memory it
did not spoil itself), unless it already ran in one; the others are timed again without it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collage_engine.machine.worker import WorkerCrashed, WorkerError, WorkerTimeout
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import Cost, invalid
from collage_engine.records.errors import Cancelled, MeasureError
from collage_engine.records.event import Event, Log, Measured, Progress
from collage_engine.records.flag import Flag
from collage_engine.store.measurement import Measurement
from collage_engine.store.store import Store
from collage_engine.timing.child import MeasuringChild
from collage_engine.timing.job import JOB
from collage_engine.timing.messages import (
    WRONG_NUMBERS,
    OpenRequest,
    Phase,
    TimingReply,
    TimingRequest,
)
from collage_engine.timing.protocol import ProtocolSettings
from collage_engine.timing.speed_probe import Reading
from collage_engine.timing.timing_costs import merged

GRACE_S = 2.0
"""Seconds that a candidate in hand may go beyond the deadline; chosen."""
ATTEMPTS = 2
"""Crashes in which a candidate may be involved before it is invalid; chosen."""
UNANSWERED = "unanswered"
"""Name, in the store, of measurement key → seconds: candidates that gave no answer in all the time
that a run had for them."""
UNANSWERED_S = 3.0
"""Seconds without an answer from which on a candidate at the end of the budget is noted; chosen:
most take less."""
TRY_AGAIN = 2.0
"""How many times as long as before a run must be able to wait for such a candidate to try it again;
chosen."""
NOT_OPENED = (
    "the measuring process did not open the model within {seconds:.0f} s, which was all the time "
    "that there was for measuring: a larger --budget gives it more"
)
CANDIDATE_LIMIT_S = 60.0
"""Seconds that a candidate may take to be compiled, and to be run, besides those for the model's
weights (``machine.time_limits``); chosen."""


@dataclass(frozen=True)
class CandidateGroup:
    """Candidates over one operator set, which are timed against each other on the same inputs."""

    nodes: tuple[int, ...]
    candidates: tuple[Candidate, ...]


def group_candidates(candidates: Iterable[Candidate]) -> list[CandidateGroup]:
    """Return the candidates in groups over the same operators, in order of first appearance."""
    found: dict[tuple[int, ...], list[Candidate]] = {}
    for candidate in candidates:
        found.setdefault(candidate.nodes, []).append(candidate)
    return [CandidateGroup(nodes, tuple(members)) for nodes, members in found.items()]


@dataclass
class MeasuringResult:
    """What a call of ``Measurer.measure`` came to."""

    costs: dict[str, Cost] = field(default_factory=dict)
    """Measurement key → cost; keys that were not reached are missing."""
    measured: int = 0
    """Distinct keys measured now, invalid ones included."""
    from_store: int = 0
    """Distinct keys whose cost the store had, invalid ones included."""
    invalid: int = 0
    """Distinct keys that are invalid, measured now or from the store."""
    skipped: int = 0
    """Distinct keys that are left unknown, because the budget was spent."""
    stopped: bool = False
    """The user stopped it."""


class Measurer:
    """Measures candidates of one model. Close it to end the child."""

    def __init__(
        self,
        model_path: str | Path,
        shapes: Mapping[str, tuple[int, ...]] | None,
        truth_folder: str | Path,
        *,
        store: Store | None = None,
        env: Mapping[str, str] | None = None,
        fingerprint: str = "",
        device: str = "",
        versions: Mapping[str, str] | None = None,
        model_hash: str = "",
        settings: ProtocolSettings | None = None,
        candidate_limit_s: float = CANDIDATE_LIMIT_S,
        weights_bytes: int = 0,
        memory_limit_bytes: int | None = None,
        job: str = JOB,
    ) -> None:
        """Prepare; the child is started by the first group that needs one.

        Args:
            model_path: the ONNX file.
            shapes: of its free inputs.
            truth_folder: the recorded true values (``lowering.reference.TrueValues``).
            store: known costs, and where new ones are kept; None: neither.
            env: the child's variables (see ``measuring_environment``).
            fingerprint: of the machine, kept in every cost.
            device: the machine in words, kept beside costs for readers.
            versions: toolchain → library version, kept beside costs for readers.
            model_hash: tells models apart in the store where a result holds for one model only.
            settings: of the timing.
            candidate_limit_s: bounds a candidate's compilation, and its run, each, for a model
                without large weights.
            weights_bytes: size of the model's weights, which lengthens every limit.
            memory_limit_bytes: of the child; None: a share of what the machine has.
            job: the worker's target.
        """
        self.store = store
        self.device = device
        self.versions = dict(versions or {})
        self.model_hash = model_hash
        self.child = MeasuringChild(
            OpenRequest(
                model_path=str(model_path),
                shapes=dict(shapes or {}),
                truth_folder=str(truth_folder),
                marker_path="",
                fingerprint=fingerprint,
                settings=settings or ProtocolSettings(),
                sha256=model_hash or None,
            ),
            store=store,
            env=env,
            candidate_limit_s=candidate_limit_s,
            weights_bytes=weights_bytes,
            memory_limit_bytes=memory_limit_bytes,
            job=job,
        )

    def __enter__(self) -> Measurer:
        return self

    @property
    def probe_reference(self) -> Reading | None:
        """Return the speed probe's reference.

        None before the first child, where the store has none.
        """
        return self.child.probe_reference

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child."""
        self.child.close()

    def renew(self) -> None:
        """End the child: what is measured next runs in another process, elsewhere in memory."""
        self.child.renew()

    def measure(
        self,
        groups: Sequence[CandidateGroup],
        *,
        deadline: float | None = None,
        cancel: Flag | None = None,
        on_event: Callable[[Event], None] | None = None,
        again: bool = False,
    ) -> MeasuringResult:
        """Return the costs for all candidates of these groups, by measurement key.

        Args:
            groups: in the order in which they are measured.
            deadline: a ``time.monotonic()``; None: no limit.
            cancel: when set, measuring ends within a second and what was measured is kept.
            on_event: takes ``Measured`` and ``Progress``.
            again: measure what is in the store, too, and merge old and new repeats.

        Raises:
            MeasureError: the model cannot be opened in the child, or the store cannot be used.
        """
        return _MeasureCall(self, groups, deadline, cancel, on_event, again).run()


class _MeasureCall:
    """One call of ``Measurer.measure``."""

    def __init__(
        self,
        measurer: Measurer,
        groups: Sequence[CandidateGroup],
        deadline: float | None,
        cancel: Flag | None,
        on_event: Callable[[Event], None] | None,
        again: bool,
    ) -> None:
        self.measurer = measurer
        self.groups = groups
        self.deadline = deadline
        self.cancel = cancel
        self.tell = on_event or (lambda _: None)
        self.again = again
        self.outcome = MeasuringResult()
        self.by_key: dict[str, list[Candidate]] = {}
        for group in groups:
            for candidate in group.candidates:
                if not candidate.key:
                    raise MeasureError(f"candidate {candidate.id} has no measurement key")
                self.by_key.setdefault(candidate.key, []).append(candidate)
        self.old: dict[str, Cost] = {}
        self.total = 0
        self.began = time.monotonic()
        self.heard_s = self.began
        """When the child gave its last sign of life."""

    def run(self) -> MeasuringResult:
        """Take the costs that the store has, and measure the others until the time is over.

        Returns:
            The costs, and how many came from where.

        Raises:
            MeasureError: The model cannot be opened in the child, or the store cannot be used.
        """
        store = self.measurer.store
        known = store.get_many(self.by_key, self.measurer.model_hash) if store else {}
        if self.again:
            self.old = known
        else:
            for key, cost in known.items():
                self.outcome.costs[key] = cost
                self.outcome.from_store += 1
                self.outcome.invalid += cost.state == "invalid"
                self.announce(key, cost)
            self.leave_out_unanswered()
        self.total = len(self.by_key) - len(self.outcome.costs)
        try:
            for group in self.groups:
                wanted = {c.key: c for c in group.candidates if c.key not in self.outcome.costs}
                if not wanted:
                    continue
                if self.out_of_time():
                    break
                self.progress(next(iter(wanted.values())).label, group.nodes)
                self.group(group.nodes, list(wanted.values()))
                self.measurer.child.renew_if_bloated()
        except Cancelled:
            self.outcome.stopped = True
        self.outcome.skipped = len(self.by_key) - len(self.outcome.costs)
        self.progress("")
        return self.outcome

    def out_of_time(self) -> bool:
        """Tell whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def group(self, nodes: tuple[int, ...], candidates: list[Candidate]) -> None:
        """Measure one group, and again without the culprit each time the child ends early.

        Args:
            nodes: The operator numbers of the group.
            candidates: Its candidates that have no cost yet.

        Raises:
            Cancelled: The user stopped it.
            MeasureError: The child failed in a way that no candidate is to blame for.
        """
        involved = dict.fromkeys(range(len(candidates)), 0)
        waiting = list(involved)
        child = self.measurer.child

        def answered(reply: TimingReply) -> None:
            child.fresh = False
            self.heard_s = time.monotonic()
            if reply.cost is not None:
                self.keep(candidates[reply.place], reply.cost)
                waiting.remove(reply.place)

        while waiting and not self.out_of_time():
            request = TimingRequest(
                nodes,
                {p: candidates[p].instance for p in waiting},
                {p: (candidates[p].takes, candidates[p].gives) for p in waiting},
            )
            try:
                opening_s = self.seconds_left()
                if not child.has_open(opening_s, self.cancel):
                    self.tell(Log(text=NOT_OPENED.format(seconds=opening_s)))
                    return
                # The child may be older than this group: none of its crashes is proof then.
                alone = waiting[0] if child.fresh else None
                self.heard_s = time.monotonic()
                child.ask(request, self.seconds_left(), self.cancel, answered)
                if waiting:
                    raise MeasureError("the measuring process left candidates without an answer")
            except (WorkerCrashed, WorkerTimeout) as error:
                if isinstance(error, WorkerTimeout) and self.out_of_time():
                    self.note_unanswered(candidates, waiting)
                    return
                self.find_culprit(error, candidates, waiting, involved, alone)
            except Cancelled:
                raise
            except WorkerError as error:
                raise MeasureError(f"measuring failed: {error}") from error

    def seconds_left(self) -> float | None:
        """Return the seconds that the group in hand may take; None: no limit."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - time.monotonic()) + GRACE_S

    def find_culprit(
        self,
        error: WorkerCrashed | WorkerTimeout,
        candidates: list[Candidate],
        waiting: list[int],
        involved: dict[int, int],
        alone: int | None,
    ) -> None:
        """Find out whose fault it is that the child ended early.

        A culprit that is certain, or was involved ``ATTEMPTS`` times, is made invalid; other
        suspects are tried first the next time.

        Args:
            error: How the child ended.
            candidates: The candidates of the group.
            waiting: Places without an answer; those of suspects go to its front.
            involved: How often each place was a suspect so far.
            alone: The place that ran in this child before any other candidate; None: none did.
        """
        culprit, phase = self.measurer.child.blame(waiting)
        suspects = [culprit] if culprit is not None else list(waiting)
        from_outside = isinstance(error, WorkerCrashed) and error.from_outside
        for place in suspects:
            involved[place] += 1
            certain = culprit is not None and (isinstance(error, WorkerTimeout) or place == alone)
            waiting.remove(place)
            if from_outside and involved[place] >= ATTEMPTS:
                self.leave_out(candidates[place], _crash_reason(error, phase))
            elif not from_outside and (certain or involved[place] >= ATTEMPTS):
                self.keep(candidates[place], invalid(_crash_reason(error, phase)))
            else:
                # Next time it goes first, in a child that nobody else has touched.
                waiting.insert(0, place)

    def note_unanswered(self, candidates: list[Candidate], waiting: list[int]) -> None:
        """Note that the budget ended while a candidate ran.

        The next run does not spend as much on it again. It is not known whether it would have
        answered. A run that can wait ``TRY_AGAIN`` times as long tries it again.

        Args:
            candidates: The candidates of the group.
            waiting: Places without an answer.
        """
        culprit, phase = self.measurer.child.blame(waiting)
        seconds = time.monotonic() - self.heard_s
        if culprit is None or seconds < UNANSWERED_S:
            return
        candidate = candidates[culprit]
        store = self.measurer.store
        if store is not None:
            noted = {**(store.constant(UNANSWERED) or {}), candidate.key: seconds}
            store.put_constant(UNANSWERED, noted)
        self.leave_out(candidate, _no_answer(seconds, phase))

    def leave_out_unanswered(self) -> None:
        """Leave out candidates that an earlier run waited for in vain, unless more time is left."""
        store = self.measurer.store
        noted: dict[str, float] = (store.constant(UNANSWERED) or {}) if store else {}
        for key, seconds in noted.items():
            left = self.seconds_left()
            wanted = key in self.by_key and key not in self.outcome.costs
            if wanted and left is not None and left < TRY_AGAIN * seconds:
                self.leave_out(self.by_key[key][0], _no_answer(seconds))

    def leave_out(self, candidate: Candidate, reason: str) -> None:
        """Count a candidate as invalid in this run only."""
        cost = invalid(reason)
        self.outcome.costs[candidate.key] = cost
        self.outcome.invalid += 1
        self.announce(candidate.key, cost)
        where = f"{candidate.instance.id} on {candidate.label}"
        self.tell(Log(level="warning", text=f"{where} {cost.reason}"))

    def keep(self, candidate: Candidate, cost: Cost) -> None:
        """Store a cost that was measured, merged with the known one where it was measured again."""
        key = candidate.key
        if key in self.old:
            cost = merged(self.old[key], cost)
        self.outcome.costs[key] = cost
        self.outcome.measured += 1
        self.outcome.invalid += cost.state == "invalid"
        store = self.measurer.store
        if store is not None and (cost.max_rel_error is not None or not cost.usable):
            # What could not be compared may be wrong on the numbers of another run.
            name = candidate.instance.toolchain
            versions = self.measurer.versions
            store.put(
                Measurement(
                    key=key,
                    cost=cost,
                    label=candidate.label,
                    instance=candidate.instance,
                    device=self.measurer.device,
                    versions={name: versions[name]} if name in versions else {},
                    model=self.measurer.model_hash,
                    one_model=(cost.reason or "").startswith(WRONG_NUMBERS),
                )
            )
        self.announce(key, cost)
        self.progress(candidate.label, candidate.nodes)

    def announce(self, key: str, cost: Cost) -> None:
        """Send an event for every candidate with this measurement key."""
        for candidate in self.by_key[key]:
            self.tell(Measured(candidate=candidate.id, cost=cost))

    def progress(self, now: str, nodes: tuple[int, ...] = ()) -> None:
        """Send an event with the number of keys measured, and the seconds that are left.

        Args:
            now: What is measured, in words.
            nodes: The operator numbers that are measured.
        """
        most_s = math.inf if self.deadline is None else self.deadline - time.monotonic()
        done, elapsed_s = self.outcome.measured, time.monotonic() - self.began
        self.tell(measuring_progress(done, self.total, elapsed_s, most_s, now, nodes))


def measuring_progress(
    done: int,
    total: int,
    elapsed_s: float,
    most_s: float,
    now: str,
    nodes: tuple[int, ...] = (),
) -> Progress:
    """Return the event that says how far measuring is.

    Args:
        done: Measurement keys that are measured.
        total: Keys that are to be measured.
        elapsed_s: Seconds since measuring began, from which the rate follows.
        most_s: Seconds until the deadline, which the time left never exceeds.
        now: What is measured, in words.
        nodes: The operator numbers that are measured.
    """
    rate = done / elapsed_s if done and elapsed_s > 0 else None
    left_s = min((total - done) / rate, max(0.0, most_s)) if rate else None
    return Progress(
        stage="measure", done=done, total=total, left_s=left_s, rate=rate, now=now, nodes=nodes
    )


def _no_answer(seconds: float, phase: Phase | None = None) -> str:
    """Return the reason of a candidate that gave no answer before the budget ended."""
    doing = f" while {phase.text}" if phase is not None and phase.text else ""
    return (
        f"gave no answer within {seconds:.0f} s{doing}, which was all the time that there was: a "
        "larger budget tries it again"
    )


def _crash_reason(error: WorkerCrashed | WorkerTimeout, phase: Phase) -> str:
    """Return the reason of a candidate that ended the child, after "it"."""
    while_doing = f" while {phase.text}" if phase.text else ""
    if isinstance(error, WorkerTimeout):
        return f"gave {error.reason}{while_doing}"
    return f"crashed{while_doing}: {error.reason}"
