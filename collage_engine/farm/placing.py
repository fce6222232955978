"""Brings one model through a farm: a run on one machine, groups of it on others.

The whole run, with its trials and its confirmation, is one task of one machine of the pool, which
uses its own toolchains. Groups of candidates that it wants measured go to machines that are idle.
Whatever is measured comes here and is stored at once: nothing that arrived is lost with a machine.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from collage_engine.farm.admission import (
    COMPARE_EVERY_S,
    COMPARED,
    COMPARING_S,
    Comparison,
    admission,
    remember,
)
from collage_engine.farm.coordinator import CHUNK_BYTES, Coordinator, Task
from collage_engine.farm.messages import (
    Chunk,
    Claim,
    Claimed,
    Delivery,
    ExportRequest,
    GroupAnswer,
    GroupRequest,
    ModelFiles,
    News,
    RunAnswer,
    RunRequest,
    SharedGroup,
    Stop,
    Update,
    encode,
    read,
)
from collage_engine.farm.pools import LEAST_COMPARED, why_not_alike
from collage_engine.machine.whole_folder import write_whole
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.cost import Cost
from collage_engine.records.errors import ArtifactError, Cancelled, CollageError, FarmError
from collage_engine.records.event import Log, Measured, Provisional, Stage
from collage_engine.records.farm import FarmPlacement
from collage_engine.records.placement import Run
from collage_engine.records.results import RunUpdate
from collage_engine.records.settings import RunSettings
from collage_engine.search.run_to_run_drift import DEFAULT_DRIFT
from collage_engine.service.run_client import Ticket
from collage_engine.store.drift import drift, recall
from collage_engine.store.measurement import Measurement
from collage_engine.store.normalising import normalised_cost
from collage_engine.store.store import Store
from collage_engine.timing.exchange import usable
from collage_engine.timing.shared_measurer import ENDED_PROCESS

_LOG = logging.getLogger(__name__)

LOOK_S = 0.1
"""Seconds between two looks at whether the run was cancelled; chosen."""
PREFETCHED = 1
"""Groups that wait for the machines that measure for a run, beside those for idle ones; chosen:
with one of them a machine need not wait for the reservation of its next group."""
WAITS_S = 2.0
"""Seconds that a reserved group may wait for a machine before the run may measure it itself;
chosen."""
OVER_S = 3600.0
"""Seconds that a run may take longer than its budget before its machine counts as lost; chosen:
runtimes may have to be compiled first."""


def of_machine(cost: Cost, machine: str) -> Cost:
    """Returns a cost that says which machine of a farm measured it.

    Its speed probe gets the machine's name, too: a reading is only ever compared with the
    reference that the same machine has taken.
    """
    probe = f"{cost.probe} on {machine}" if cost.probe and " on " not in cost.probe else cost.probe
    return msgspec.structs.replace(cost, machine=machine, probe=probe)


def arrived(measurements: Sequence[Measurement], machine: str) -> list[Measurement]:
    """Returns a machine's measurements as they are stored: those that can be, with its name."""
    return [
        m if m.cost.machine else msgspec.structs.replace(m, cost=of_machine(m.cost, machine))
        for m in measurements
        if usable(m)
    ]


def _measured_on(run: Run, machine: str) -> None:
    """Note where a run was done; what it says of "this machine" it says of that one."""
    run.measured_on = machine
    run.warnings = [f"on {machine}: {warning}" for warning in run.warnings]


class Placing:
    """One run on a farm. ``run`` does it, in the caller's thread."""

    def __init__(
        self,
        coordinator: Coordinator,
        pool: str,
        store: Store,
        model: ModelFiles,
        contents: Mapping[str, Path],
        request: RunRequest,
        ticket: Ticket,
        on_event: Callable[[object], None],
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            coordinator: Of the farm.
            pool: Name of the pool.
            store: Where all costs are kept.
            model: The model by content.
            contents: Where its contents lie here.
            request: The run.
            ticket: Cancels it.
            on_event: Takes events and updates, in the caller's thread.
        """
        self.coordinator = coordinator
        self.pool = pool
        self.store = store
        self.model = model
        self.contents = contents
        self.request = request
        self.ticket = ticket
        self.on_event = on_event
        self.owner = uuid.uuid4().hex[:12]
        self.machine = ""
        """Where the run is; empty: it waits."""
        self.lease = ""
        self.kind = coordinator.first_of(pool)
        """What the pool's first machine said of itself."""
        self.answer: Run | None = None
        """The best answer until now: a provisional one, or the run's own where its artifact did
        not arrive."""
        self.candidates: list[CandidateRecord] | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._end: RunAnswer | CollageError | None = None
        self._open: dict[str, SharedGroup] = {}
        """Groups that nobody has reserved, as far as is known."""
        self._shared: News | None = None
        self._last_shared: News | None = None
        self._deadline = 0.0
        self._reserved: dict[str, tuple[str, SharedGroup, float]] = {}
        """Reserved groups that wait for a machine, by lease: name, group, since when."""
        self._out: dict[str, str] = {}
        """Groups that other machines measure, by lease."""
        self._seen: dict[str, SharedGroup] = {}
        """All groups that were ever shared, by which new machines are compared with the pool."""
        self._new: set[str] = set()
        """Machines that joined during the run, and wait until they were compared."""
        self._comparing: dict[str, Comparison] = {}
        """Machines that this run is comparing with its own."""
        self._incomparable: set[str] = set()
        """Machines that could not measure what they were to be compared by."""
        self._compare_at = 0.0
        """When it next looks at whether a machine can be compared."""
        self._asking = False
        self._keeps = False
        self._measured = 0
        self._stage = ""

    # ------------------------------------------------------------------ the run

    def run(self, out: str | None) -> RunUpdate:
        """Do the run; the artifact is written to ``out`` here.

        Raises:
            Cancelled: The ticket was cancelled; what was measured is kept.
            FarmError: The machines of the pool were lost, or the scheduler.
            CollageError: The run's own error.
        """
        self.say("waiting", "")
        self.coordinator.submit(
            Task(
                name="run",
                message=encode(self.request),
                done=self._ended,
                owner=self.owner,
                pool=self.pool,
                urgent=True,
                files=self.contents,
                limit_s=_limit_s(self.request.settings),
                began=self._began,
                news=self._heard,
                doing=f"placing {self.model.name}",
                holds=self.request.export,
            )
        )
        state, reason = "failed", ""
        try:
            answer = self._wait()
            self._keep(answer.measurements)
            update = self._updated(answer.update)
            self.answer = update.run
            self.candidates = update.candidates or self.candidates
            if update.run is not None:
                update.run.artifact = None
            if answer.artifact and out is not None:
                try:
                    self._fetch(answer, Path(out))
                except ArtifactError:
                    self.on_event(update)  # the run is kept, whatever becomes of its artifact
                    raise
                if update.run is not None:
                    update.run.artifact = out
            state = "finished"
            return update
        except CollageError as error:
            reason = str(error)
            raise
        finally:
            self.coordinator.withdraw(self.owner)
            self.coordinator.release(self.owner)
            for machine in self._comparing.keys() | self._new:
                # Nobody is left to judge it.
                self._stop_comparing(machine)
            self.say("finished" if state == "finished" else "failed", reason)

    def _wait(self) -> RunAnswer:
        """Take what arrives until the run has ended."""
        while self._end is None:
            if self.ticket.cancelled.is_set():
                raise Cancelled("cancelled; what was measured is kept")
            if self.ticket.kept.is_set() and not self._keeps:
                self._keeps = True
                if not self.machine:
                    raise Cancelled("cancelled before it began")
                stop = encode(Stop(lease=self.lease))
                self.coordinator.beside(self.machine, "stop", stop, lambda body: None)
            with contextlib.suppress(queue.Empty):
                self._inbox.get(timeout=LOOK_S)()
            self._help()
        if isinstance(self._end, CollageError):
            raise self._end
        return self._end

    def _began(self, machine: str, address: str) -> None:
        """Note where the run is; called in the coordinator's thread."""

        def work() -> None:
            if self.machine:
                lost = f"{self.machine} was lost; the run begins again on {machine}"
                self.on_event(
                    Log(level="warning", text=f"{lost}, with all costs that have arrived")
                )
            for compared in list(self._comparing):
                self._stop_comparing(compared)  # it was with another machine
            self.machine = machine
            self.lease = ""
            self._open, self._reserved, self._out = {}, {}, {}
            self._shared, self._asking = None, False
            self.say("running", "")

        self._inbox.put(work)

    def _heard(self, news: News, machine: str) -> None:
        """Take news of the run; called in the coordinator's thread."""
        self._inbox.put(lambda: self._take(news, machine))

    def _ended(self, body: bytes | CollageError, machine: str) -> None:
        """Take the end of the run; called in the coordinator's thread."""

        def work() -> None:
            try:
                self._end = body if isinstance(body, CollageError) else read(body, RunAnswer)
            except CollageError as error:
                self._end = error

        self._inbox.put(work)

    def _take(self, news: News, machine: str) -> None:
        self.lease = news.lease
        if news.measurements:
            self._keep(news.measurements)
        if news.keys:
            self._send_known(news.keys)
        if news.shares:
            self._shared = news if news.groups else None
            self._last_shared = self._shared or self._last_shared
            self._open = {group.id: group for group in news.groups}
            self._seen |= self._open
            self._deadline = time.monotonic() + news.limit_s
        if news.update is not None:
            update = self._updated(news.update)
            self.candidates = update.candidates or self.candidates
            self.on_event(update)
        event = news.event
        if event is None:
            return
        if isinstance(event, Measured) and not event.cost.from_store and not event.cost.machine:
            cost = of_machine(event.cost, machine)
            event = msgspec.structs.replace(event, cost=cost)
        if isinstance(event, Stage):
            if event.stage == "export":
                # It names a folder of the machine, which is fetched from there.
                event = msgspec.structs.replace(event, detail=f"on {machine}")
            if not event.done:
                self._stage = event.stage
                self.say("running", "")
        if isinstance(event, Log):
            # What it says of "this machine" it says of that one.
            event = msgspec.structs.replace(event, text=f"on {machine}: {event.text}")
        if isinstance(event, Provisional):
            _measured_on(event.run, machine)
            self.answer = event.run
        self.on_event(event)

    def _updated(self, update: Update) -> RunUpdate:
        """Returns an update with the machine's name in each cost that was measured for this run."""
        machine = self.machine

        def named(cost: Cost) -> Cost:
            fresh = cost.state != "unknown" and not cost.from_store and not cost.machine
            return of_machine(cost, machine) if fresh else cost

        candidates = update.candidates
        if candidates is not None:
            candidates = [msgspec.structs.replace(one, cost=named(one.cost)) for one in candidates]
        if update.run is not None:
            update.run.costs = {name: named(cost) for name, cost in update.run.costs.items()}
            _measured_on(update.run, machine)
        return RunUpdate(
            candidates=candidates,
            without_candidates=update.without_candidates,
            constants=update.constants,
            run=update.run,
            toolchains=update.toolchains,
        )

    def _keep(self, measurements: Sequence[Measurement]) -> None:
        """Store what a machine has measured; twice does no harm, since the key is the same."""
        self.store.put_many(arrived(measurements, self.machine))

    def _send_known(self, keys: Sequence[str]) -> None:
        """Send the run what is stored under its keys."""
        sha256 = self.model.files[self.model.name]
        costs = self.store.get_many(keys, sha256)
        known = tuple(Measurement(key=key, cost=cost, model=sha256) for key, cost in costs.items())
        delivery = encode(Delivery(lease=self.lease, measurements=known))
        self.coordinator.beside(self.machine, "deliver", delivery, lambda body: None)

    def say(self, state: Any, reason: str) -> None:
        """Publish how this placement is getting on."""
        self.coordinator.placement(
            self.owner,
            FarmPlacement(
                model=self.model.name,
                state=state,
                machine=self.machine,
                pool=self.pool,
                stage=self._stage,
                queued=len(self._open) + len(self._reserved),
                measured=self._measured,
                reason=reason,
            ),
        )

    # ------------------------------------------------------------------ help of other machines

    def _help(self) -> None:
        """Reserve groups for machines that are idle, and give back what waits for too long."""
        now = time.monotonic()
        waiting = {
            lease for lease, (_, _, since) in self._reserved.items() if now - since > WAITS_S
        }
        if waiting:
            self.coordinator.unqueue(waiting, self._taken_back)
        shared = self._shared
        if shared is None or self._asking or not self._open or now >= self._deadline:
            return
        idle = [
            machine.name
            for machine in self.coordinator.status().machines
            if machine.pool == self.pool and machine.state == "idle"
        ]
        alike = [name for name in idle if self.coordinator.are_alike(name, self.machine)]
        if len(alike) < len(idle) and now >= self._compare_at:
            self._compare_at = now + COMPARE_EVERY_S
            self._compare_idle(set(idle) - set(alike))
        room = len(alike) + (PREFETCHED if self._out else 0) - len(self._reserved)
        if room <= 0:
            return
        wished = list(self._open)[:room]
        self._asking = True
        claim = encode(Claim(lease=self.lease, groups=tuple(wished)))

        def answered(body: bytes | None) -> None:
            self._inbox.put(lambda: self._claimed(wished, shared, body))

        self.coordinator.beside(self.machine, "claim", claim, answered)

    def _claimed(self, wished: Sequence[str], shared: News, body: bytes | None) -> None:
        self._asking = False
        if shared is not self._shared:
            return  # they were taken back meanwhile
        taken: tuple[str, ...] = ()
        if body is not None:
            with contextlib.suppress(CollageError):
                taken = read(body, Claimed).groups
        for name in wished:
            group = self._open.pop(name, None)
            if group is not None and name in taken:
                self._send(group, shared)
        self.say("running", "")

    def _send(self, group: SharedGroup, shared: News) -> None:
        """Queue a reserved group for another machine of the pool."""
        left_s = max(1.0, self._deadline - time.monotonic())
        request = self._group_request(group, shared, left_s)
        lead = self.machine
        task = Task(
            name="group",
            message=encode(request),
            done=lambda body, machine: self._inbox.put(
                lambda: self._measured_elsewhere(task.lease, group, lead, body, machine)
            ),
            owner=self.owner,
            pool=self.pool,
            files=self.contents,
            limit_s=left_s + GROUP_OVER_S,
            began=lambda machine, address: self._inbox.put(
                lambda: self._group_began(first, group, machine)
            ),
            checked=True,
            like=lead,
            patience_s=WAITS_S,
            doing=f"measuring {group.candidates[0].label} of {self.model.name}",
        )
        first = task.lease
        self._reserved[first] = (group.id, group, time.monotonic())
        self.coordinator.submit(task)

    def _group_request(self, group: SharedGroup, shared: News, limit_s: float) -> GroupRequest:
        return GroupRequest(
            model=self.model,
            settings=self.request.settings,
            fingerprint=shared.fingerprint,
            candidates=group.candidates,
            versions=shared.versions,
            toolchains=shared.toolchains,
            limit_s=limit_s,
        )

    def _group_began(self, lease: str, group: SharedGroup, machine: str) -> None:
        if self._reserved.pop(lease, None) is not None:
            self._out[lease] = group.id

    def _taken_back(self, leases: set[str]) -> None:
        """Let the run measure groups that no machine had time for; in the coordinator's thread."""

        def work() -> None:
            names = tuple(self._reserved.pop(one)[0] for one in leases if one in self._reserved)
            if names:
                back = encode(Claim(lease=self.lease, give_back=names))
                self.coordinator.beside(self.machine, "claim", back, lambda body: None)

        if leases:
            self._inbox.put(work)

    def _measured_elsewhere(
        self, lease: str, group: SharedGroup, lead: str, body: bytes | CollageError, machine: str
    ) -> None:
        """Store what another machine measured, and hand it to the run."""
        for known in [one for one, name in self._out.items() if name == group.id]:
            del self._out[known]
        measurements: list[Measurement] = []
        if isinstance(body, CollageError):
            _LOG.warning("a group was not measured by %s: %s", machine, body)
        else:
            with contextlib.suppress(CollageError):
                wanted = {candidate.key for candidate in group.candidates}
                found = arrived(read(body, GroupAnswer).measurements, machine)
                # What ended its process there is tried again by the machine of the run.
                measurements = [
                    m
                    for m in found
                    if m.key in wanted and not (m.cost.reason or "").startswith(ENDED_PROCESS)
                ]
        self.store.put_many(measurements)
        self._measured += bool(measurements)
        if lead != self.machine:
            return  # the run has begun again elsewhere, and gets them from the store
        delivery = encode(
            Delivery(lease=self.lease, group=group.id, measurements=tuple(measurements))
        )
        self.coordinator.beside(self.machine, "deliver", delivery, lambda body: None)

    # ------------------------------------------------------------------ new machines

    def compare(self, machine: str) -> None:
        """Compare a new machine, which waits for that; called from any thread."""
        self._new.add(machine)
        self._inbox.put(lambda: self._compare_new(machine))

    def _compare_new(self, machine: str) -> None:
        """Compare a new machine at once, or let it go where not enough is known."""
        self._stop_comparing(machine, release=False)  # it may have left and come back
        known = self._known()
        if sum(len(costs) for _, costs in known) < COMPARED:
            self._stop_comparing(machine)
        else:
            self._compare(machine, known)

    def _compare_idle(self, names: set[str]) -> None:
        """Compare machines that were there before with that of the run, as far as is known."""
        names = names - self._incomparable
        known = self._known() if names else []
        for name in sorted(names) if known else ():
            self._compare(name, known)

    def _compare(self, machine: str, known: list[tuple[SharedGroup, Mapping[str, Cost]]]) -> None:
        """Have a machine measure what is known and it has not been asked yet."""
        shared, comparison = self._shared or self._last_shared, self._comparing.get(machine)
        if shared is None or (comparison is None and not self.coordinator.begin_comparing(machine)):
            self._stop_comparing(machine)
            return
        if comparison is None:
            comparison = self._comparing[machine] = Comparison(self.machine)
        for group, costs in comparison.wanted(known):
            self._ask_to_compare(machine, comparison, group, shared, costs)

    def _judge(self, machine: str, comparison: Comparison) -> None:
        """Say whether a machine adds to the costs of this run's machine."""
        drift_here = drift(recall(self.store, self.request.settings.threads), DEFAULT_DRIFT)
        ours, theirs = [a for a, _ in comparison.pairs], [b for _, b in comparison.pairs]
        reason = why_not_alike(ours, theirs, drift_here)
        if reason:
            self.coordinator.move(machine, reason)
        elif len(comparison.pairs) >= LEAST_COMPARED:
            self.coordinator.alike(machine, comparison.lead)
            remember(self.store, self.pool, comparison.lead, machine)
        else:
            self._incomparable.add(machine)
        self._stop_comparing(machine)

    def _stop_comparing(self, machine: str, release: bool = True) -> None:
        if self._comparing.pop(machine, None) is not None:
            self.coordinator.end_comparing(machine)
            self.coordinator.withdraw(admission(machine))
        if release:
            self._new.discard(machine)
            self.coordinator.release(admission(machine))

    def _known(self) -> list[tuple[SharedGroup, Mapping[str, Cost]]]:
        """Returns the first groups that are known, a dozen candidates at most, with their costs."""
        found: list[tuple[SharedGroup, Mapping[str, Cost]]] = []
        sha256 = self.model.files[self.model.name]
        for group in self._seen.values():
            costs = self.store.get_many([one.key for one in group.candidates], sha256)
            usable_costs = {key: cost for key, cost in costs.items() if cost.usable}
            if usable_costs and len(costs) == len(group.candidates):
                members = tuple(one for one in group.candidates if one.key in usable_costs)
                found.append((SharedGroup(id=group.id, candidates=members), usable_costs))
            if sum(len(costs) for _, costs in found) >= COMPARED:
                break
        return found

    def _ask_to_compare(
        self,
        machine: str,
        comparison: Comparison,
        group: SharedGroup,
        shared: News,
        costs: Mapping[str, Cost],
    ) -> None:
        """Have a machine measure one known group, and judge it after the last one."""

        def take(body: bytes | CollageError) -> None:
            if self._comparing.get(machine) is not comparison:
                return
            comparison.waiting.discard(group.id)
            if not isinstance(body, CollageError):
                with contextlib.suppress(CollageError):
                    for m in read(body, GroupAnswer).measurements:
                        fresh = normalised_cost(m.cost, lambda name: None)
                        known = costs.get(m.key)
                        if known is not None and known.median_us and fresh.median_us:
                            comparison.pairs.append((known.median_us, fresh.median_us))
            if comparison.is_over:
                self._judge(machine, comparison)

        self.coordinator.submit(
            Task(
                name="group",
                message=encode(self._group_request(group, shared, COMPARING_S)),
                done=lambda body, _: self._inbox.put(lambda: take(body)),
                owner=admission(machine),
                pool=self.pool,
                machine=machine,
                urgent=True,
                files=self.contents,
                limit_s=COMPARING_S + GROUP_OVER_S,
                doing="being compared with its pool",
            )
        )

    # ------------------------------------------------------------------ the artifact

    def export_again(self, run: Run, out: Path) -> None:
        """Have a machine of the pool build a run's artifact, after the run's own was lost.

        Raises:
            FarmError: No machine of the pool could.
            CollageError: Why it cannot be built, or not be written.
        """
        ended: queue.SimpleQueue[tuple[bytes | CollageError, str]] = queue.SimpleQueue()
        self.coordinator.submit(
            Task(
                name="export",
                message=encode(ExportRequest(model=self.model, run=run)),
                done=lambda body, machine: ended.put((body, machine)),
                owner=self.owner,
                pool=self.pool,
                urgent=True,
                files=self.contents,
                limit_s=EXPORT_S,
                doing=f"building the artifact of {self.model.name}",
                holds=True,
            )
        )
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    body, self.machine = ended.get(timeout=LOOK_S)
                    break
                if self.ticket.cancelled.is_set():
                    raise Cancelled("cancelled; what was measured is kept")
            if isinstance(body, CollageError):
                raise body
            self._fetch(read(body, RunAnswer), out)
        finally:
            self.coordinator.withdraw(self.owner)
            self.coordinator.release(self.owner)

    def _fetched(self, wanted: Chunk) -> bytes | CollageError:
        """Returns one part of an artifact from the machine of the run, which is held for that."""
        parts: queue.SimpleQueue[bytes | CollageError] = queue.SimpleQueue()
        self.coordinator.submit(
            Task(
                name="fetch",
                message=encode(wanted),
                done=lambda body, _: parts.put(body),
                owner=self.owner,
                pool=self.pool,
                machine=self.machine,
                urgent=True,
                limit_s=FETCH_S,
                doing=f"sending the artifact of {self.model.name}",
            )
        )
        return parts.get()

    def _fetch(self, answer: RunAnswer, out: Path) -> None:
        """Bring the artifact here from the machine that made it.

        Raises:
            FarmError: The machine was lost, or the archive arrived damaged.
            ArtifactError: It cannot be written here.
        """
        import hashlib

        with tempfile.TemporaryFile() as archive:
            digest = hashlib.sha256()
            for offset in range(0, answer.artifact_bytes, CHUNK_BYTES):
                wanted = Chunk(sha256=answer.artifact, offset=offset, size=CHUNK_BYTES)
                part = self._fetched(wanted)
                if isinstance(part, CollageError):
                    raise FarmError(f"the artifact was not sent whole: {part}") from part
                if len(part) != min(CHUNK_BYTES, answer.artifact_bytes - offset):
                    raise FarmError("the artifact was not sent whole: a part has another size")
                digest.update(part)
                try:
                    archive.write(part)
                except OSError as error:
                    raise ArtifactError(f"the artifact cannot be kept here: {error}") from error
            if digest.hexdigest() != answer.artifact:
                raise FarmError("the artifact arrived with other content than was sent")
            archive.seek(0)

            def fill(folder: Path) -> None:
                with tarfile.open(fileobj=archive) as members:
                    members.extractall(folder, filter="data")

            try:
                write_whole(out, fill)
            except tarfile.TarError as error:
                raise FarmError(f"the artifact arrived damaged: {error}") from error
            except OSError as error:
                raise ArtifactError(f"the artifact cannot be written to {out}: {error}") from error


EXPORT_S = 3600.0
"""Seconds for building an artifact again; chosen: as for an export of an earlier run."""
FETCH_S = 300.0
"""Seconds for one part of an artifact; chosen."""
GROUP_OVER_S = 300.0
"""Seconds that a group may take beyond its limit, for opening the model first; chosen."""


def _limit_s(settings: RunSettings) -> float:
    return settings.budget_s + settings.tune_budget_s + OVER_S
