"""Costs for candidates: from the store, or measured in a child that may crash, hang or be killed.

Groups are measured in the caller's order until the budget is spent or the user stops; each cost
is stored the moment it arrives. One child serves all groups. When it ends before its time, the
rival that was at risk is to blame: it is tried once more, first and in a fresh child (memory it
did not spoil itself), unless it already ran in one; the others are timed again without it.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from collage_engine.machine.processes import private_bytes
from collage_engine.machine.worker import Worker, WorkerCrashed, WorkerError, WorkerTimeout
from collage_engine.measure.guard import NAME as GUARD
from collage_engine.measure.guard import Reading
from collage_engine.measure.job import (
    JOB,
    WRONG_NUMBERS,
    Answer,
    GroupRequest,
    Marker,
    OpenRequest,
    blame,
)
from collage_engine.measure.measurement import Measurement
from collage_engine.measure.protocol import ProtocolSettings, merged
from collage_engine.measure.store import Store
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.cost import Cost, invalid
from collage_engine.records.errors import Cancelled, MeasureError
from collage_engine.records.event import Event, Measured, Progress

OPEN_LIMIT_S = 600.0
GRACE_S = 2.0
"""How far beyond the deadline a candidate in hand may go."""
ATTEMPTS = 2
"""Crashes in which a rival may be involved before it is invalid."""


@dataclass(frozen=True)
class Group:
    """Candidates over one operator set: rivals, timed on the same inputs."""

    nodes: tuple[int, ...]
    candidates: tuple[CandidateRecord, ...]


def group_candidates(candidates: Iterable[CandidateRecord]) -> list[Group]:
    """Candidates by operator set, in order of first appearance."""
    found: dict[tuple[int, ...], list[CandidateRecord]] = {}
    for candidate in candidates:
        found.setdefault(candidate.nodes, []).append(candidate)
    return [Group(nodes, tuple(rivals)) for nodes, rivals in found.items()]


def measuring_environment(
    toolchains: Iterable[str], threads: int, spin: bool = False
) -> dict[str, str]:
    """Environment in which toolchains share a process fairly: same threads, no spinning.

    Libraries read these when they load (cpu-toolchains.md section 6): pools of several runtimes
    that spin steal each other's cores.
    """
    from collage_engine.toolchains.registry import get

    env = {
        "TVM_NUM_THREADS": str(threads),
        "TVM_BIND_THREADS": "0",
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
    }
    if not spin:
        env |= {
            "OMP_WAIT_POLICY": "passive",
            "GOMP_SPINCOUNT": "0",
            "TVM_THREAD_POOL_SPIN_COUNT": "0",
        }
    for name in toolchains:
        env |= get(name).environment(threads, spin)
    return env


@dataclass
class Outcome:
    """What a call of ``measure`` came to."""

    costs: dict[str, Cost] = field(default_factory=dict)
    """Measurement key → cost; keys that were not reached are missing."""
    measured: int = 0
    """Distinct keys measured now, invalid ones included."""
    from_store: int = 0
    invalid: int = 0
    skipped: int = 0
    """Distinct keys left unknown: the budget was spent."""
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
        candidate_limit_s: float = 60.0,
        memory_limit_bytes: int | None = None,
        job: str = JOB,
    ) -> None:
        """``versions``: toolchain → library version, kept beside costs for readers.

        ``candidate_limit_s`` bounds a candidate's compilation, and its run, each; ``env`` is
        the child's (see ``measuring_environment``). ``model_hash`` tells models apart in the
        store where a result holds for one model only.
        """
        self.store = store
        self.device = device
        self.versions = dict(versions or {})
        self.model_hash = model_hash
        self.candidate_limit_s = candidate_limit_s
        if memory_limit_bytes is None:
            memory_limit_bytes = int(psutil.virtual_memory().total * 0.7)
        self._limit = memory_limit_bytes
        self._folder = tempfile.TemporaryDirectory(prefix="collage-measure-")
        marker_path = Path(self._folder.name) / "marker"
        self._marker = Marker(marker_path, create=True)
        self._open = OpenRequest(
            model_path=str(model_path),
            shapes=dict(shapes or {}),
            truth_folder=str(truth_folder),
            marker_path=str(marker_path),
            fingerprint=fingerprint,
            settings=settings or ProtocolSettings(),
            guard=_guard_of(store),
        )
        self._worker = Worker(
            job, env=env, memory_limit_bytes=memory_limit_bytes, name="collage-measure"
        )
        self._opened = 0
        """Generation of the child that has the model open."""
        self._fresh = True
        """Whether no candidate was compiled in this child yet."""

    def __enter__(self) -> Measurer:
        return self

    @property
    def guard(self) -> Reading | None:
        """The guard's reference; None until a child was started, where the store has none."""
        return self._open.guard

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._worker.close()
        self._marker.close()
        self._folder.cleanup()

    def measure(
        self,
        groups: Sequence[Group],
        *,
        deadline: float | None = None,
        cancel: threading.Event | None = None,
        on_event: Callable[[Event], None] | None = None,
        again: bool = False,
    ) -> Outcome:
        """Costs for all candidates of these groups, by measurement key.

        ``deadline`` is a ``time.monotonic()``. ``again`` measures what is in the store too, and
        merges old and new repeats. A cancel ends within a second and keeps what was measured
        (``stopped``). ``MeasureError`` when the model cannot be opened in the child, or the
        store cannot be used.
        """
        return _Session(self, groups, deadline, cancel, on_event, again).run()

    # ------------------------------------------------------------------ the child

    def ask(
        self,
        request: GroupRequest,
        timeout_s: float | None,
        cancel: threading.Event | None,
        on_answer: Callable[[Answer], None],
    ) -> None:
        """Have one group run in the child, which is started and given the model if need be."""
        if not self._worker.alive or self._opened != self._worker.generation:
            self._marker.set(-1, 0)
            try:
                guard = self._worker.call(self._open, timeout_s=OPEN_LIMIT_S, cancel=cancel)
            except (WorkerCrashed, WorkerTimeout) as error:
                raise MeasureError(
                    f"{self._open.model_path} could not be opened for measuring: {error}"
                ) from error
            self._opened = self._worker.generation
            self._fresh = True
            if self._open.guard is None and guard is not None:
                self._open = replace(self._open, guard=guard)
                if self.store is not None:
                    self.store.put_constant(GUARD, guard)
        self._worker.call(
            request,
            timeout_s=timeout_s,
            cancel=cancel,
            on_message=on_answer,
            silence_s=self.candidate_limit_s,
        )

    def renew(self) -> None:
        """End the child: what is measured next is measured in another process, a sitting of its
        own, with other places in memory."""
        self._worker.close()

    def renew_if_bloated(self) -> None:
        """End a child that holds half the memory it may: libraries give little back."""
        pid = self._worker.pid
        if pid is not None and private_bytes(pid) > self._limit / 2:
            self._worker.close()


class _Session:
    """One call of ``Measurer.measure``."""

    def __init__(
        self,
        measurer: Measurer,
        groups: Sequence[Group],
        deadline: float | None,
        cancel: threading.Event | None,
        on_event: Callable[[Event], None] | None,
        again: bool,
    ) -> None:
        self.measurer = measurer
        self.groups = groups
        self.deadline = deadline
        self.cancel = cancel
        self.tell = on_event or (lambda _: None)
        self.again = again
        self.outcome = Outcome()
        self.by_key: dict[str, list[CandidateRecord]] = {}
        for group in groups:
            for candidate in group.candidates:
                if not candidate.key:
                    raise MeasureError(f"candidate {candidate.id} has no measurement key")
                self.by_key.setdefault(candidate.key, []).append(candidate)
        self.old: dict[str, Cost] = {}
        self.total = 0
        self.began = time.monotonic()

    def run(self) -> Outcome:
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
        self.total = len(self.by_key) - len(self.outcome.costs)
        try:
            for group in self.groups:
                wanted = {c.key: c for c in group.candidates if c.key not in self.outcome.costs}
                if not wanted:
                    continue
                if self.out_of_time():
                    break
                self.progress(next(iter(wanted.values())).label)
                self.group(group.nodes, list(wanted.values()))
                self.measurer.renew_if_bloated()
        except Cancelled:
            self.outcome.stopped = True
        self.outcome.skipped = len(self.by_key) - len(self.outcome.costs)
        self.progress("")
        return self.outcome

    def out_of_time(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def group(self, nodes: tuple[int, ...], rivals: list[CandidateRecord]) -> None:
        """Measure rivals, again without the culprit each time the child ends early."""
        involved = dict.fromkeys(range(len(rivals)), 0)
        waiting = list(involved)

        def answered(answer: Answer) -> None:
            self.measurer._fresh = False
            if answer.cost is not None:
                self.keep(rivals[answer.place], answer.cost)
                waiting.remove(answer.place)

        while waiting and not self.out_of_time():
            # The child may be older than this group: then none of its crashes is proof alone.
            request = GroupRequest(
                nodes,
                {p: rivals[p].instance for p in waiting},
                {p: (rivals[p].takes, rivals[p].gives) for p in waiting},
            )
            limit = None
            if self.deadline is not None:
                limit = max(0.0, self.deadline - time.monotonic()) + GRACE_S
            fresh = self.measurer._fresh or not self.measurer._worker.alive
            first = waiting[0]
            try:
                self.measurer.ask(request, limit, self.cancel, answered)
                if waiting:
                    raise MeasureError("the measuring process left candidates without an answer")
            except (WorkerCrashed, WorkerTimeout) as error:
                if isinstance(error, WorkerTimeout) and self.out_of_time():
                    return
                culprit, doing = blame(self.measurer._marker, waiting)
                self.measurer._marker.set(-1, 0)
                suspects = [culprit] if culprit is not None else list(waiting)
                for place in suspects:
                    involved[place] += 1
                    certain = culprit is not None and (
                        isinstance(error, WorkerTimeout) or (fresh and place == first)
                    )
                    if certain or involved[place] >= ATTEMPTS:
                        waiting.remove(place)
                        self.keep(rivals[place], invalid(_how(error, doing)))
                    else:
                        # Next time it goes first, in a child that nobody else has touched.
                        waiting.remove(place)
                        waiting.insert(0, place)
            except Cancelled:
                raise
            except WorkerError as error:
                raise MeasureError(f"measuring failed: {error}") from error

    def keep(self, candidate: CandidateRecord, cost: Cost) -> None:
        key = candidate.key
        if key in self.old:
            cost = merged(self.old[key], cost)
        self.outcome.costs[key] = cost
        self.outcome.measured += 1
        self.outcome.invalid += cost.state == "invalid"
        store = self.measurer.store
        if store is not None:
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
        self.progress(candidate.label)

    def announce(self, key: str, cost: Cost) -> None:
        for candidate in self.by_key[key]:
            self.tell(Measured(candidate=candidate.id, cost=cost))

    def progress(self, now: str) -> None:
        done = self.outcome.measured
        elapsed = time.monotonic() - self.began
        rate = done / elapsed if done and elapsed > 0 else None
        left = (self.total - done) / rate if rate else None
        if left is not None and self.deadline is not None:
            left = min(left, max(0.0, self.deadline - time.monotonic()))
        self.tell(
            Progress(stage="measure", done=done, total=self.total, left_s=left, rate=rate, now=now)
        )


def _guard_of(store: Store | None) -> Reading | None:
    known = store.constant(GUARD) if store is not None else None
    return (known[0], known[1]) if known else None


def _how(error: WorkerCrashed | WorkerTimeout, doing: str) -> str:
    while_doing = f" while {doing}" if doing else ""
    if isinstance(error, WorkerTimeout):
        return f"gave {error.reason}{while_doing}"
    return f"crashed{while_doing}: {error.reason}"
