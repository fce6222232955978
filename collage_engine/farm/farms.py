"""Holds the farms that an engine is connected to, for ``--farm`` and ``farm.status``."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from collage_engine.farm.admission import admission, remembered
from collage_engine.farm.carrier import Address, DaskCarrier, connect, workers_of
from collage_engine.farm.coordinator import Coordinator, FarmSettings
from collage_engine.farm.identity import engine_hash, library_versions, this_machine
from collage_engine.farm.messages import RunRequest, read
from collage_engine.farm.model_files import model_files
from collage_engine.farm.placing import Placing
from collage_engine.farm.pools import why_cannot_build
from collage_engine.records.errors import ArtifactError, Cancelled, CollageError, FarmError
from collage_engine.records.event import Log
from collage_engine.records.farm import FarmMachine, FarmStatus
from collage_engine.records.jobs import Answer, ExportJob, Job, RunJob
from collage_engine.records.placement import Run
from collage_engine.records.results import RunUpdate
from collage_engine.records.settings import RunSettings
from collage_engine.service.run_client import PipelineClient, Ticket
from collage_engine.store.store import Store

_LOG = logging.getLogger(__name__)

JOIN_S = 120.0
"""Seconds to wait for a machine of the pool while none is joining; chosen: one that was lost may
come back."""
SAYS_S = 10.0
"""Seconds after which a run says that it waits for a machine; chosen."""
WAITS = "waiting until a machine of the farm is ready: they join, or work for others"
RECONNECT_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 60.0)
"""Seconds before each further attempt to reach a scheduler that is gone; chosen."""
FRESH_S = 15.0
"""Seconds after which the published status of a coordinator counts as that of a dead one; chosen:
as long as connecting may take, and some fifteen times what it publishes after
(``FarmSettings.publish_s``)."""
ASKED_S = 10.0
"""Seconds for which machines are waited for that say what they are, where nobody uses the farm;
chosen: those that have said it before answer at once, and the others are shown as joining."""


class Connection:
    """One farm, with the placements that this engine has on it."""

    def __init__(self, address: str, client: Any = None, settings: FarmSettings | None = None):
        """Connect; FarmError says why that is not possible."""
        self.address = address
        topic = f"collage-{uuid.uuid4().hex[:12]}"
        self.carrier = DaskCarrier(client or connect(Address(address)), topic)
        self.store = Store()
        self.coordinator = Coordinator(
            self.carrier,
            engine_hash(),
            library_versions(),
            settings,
            alike=remembered(self.store),
        )
        self.coordinator.on_admission = self._compare
        self._placings: list[Placing] = []
        self._lock = threading.Lock()

    @property
    def lost(self) -> bool:
        """Return whether the scheduler is gone."""
        return self.coordinator.is_closed

    def status(self) -> FarmStatus:
        """Return what this coordinator and the others say of the farm."""
        own = self.coordinator.status()
        try:
            others = _published(self.carrier, without=self.coordinator.id)
        except (OSError, ValueError, TypeError, LookupError):
            return own  # it has lost its scheduler, or is about to
        return combined(self.carrier.address, [*others, own], [])

    def place(self, placing: Placing, out: str | None) -> RunUpdate:
        """Do a run; new machines of its pool are compared with it."""
        with self._lock:
            self._placings.append(placing)
        try:
            return placing.run(out)
        finally:
            with self._lock:
                self._placings.remove(placing)

    def _compare(self, machine: str, pool: str) -> str:
        with self._lock:
            found = next((p for p in self._placings if p.pool == pool and p.machine), None)
        if found is None or self.coordinator.are_alike(machine, found.machine):
            return ""
        found.compare(machine)
        return admission(machine)

    def close(self) -> None:
        """Leave the farm."""
        self.coordinator.close()
        self.store.close()


class FarmJobs:
    """Runs jobs on one pool of a farm; see ``service.farms.RunsJobs``."""

    def __init__(self, connection: Callable[[], Connection], settings: RunSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._tickets: list[Ticket] = []

    def job(
        self,
        job: Job[Answer],
        *,
        ticket: Ticket | None = None,
        on_event: Callable[[object], None] | None = None,
    ) -> Answer:
        """Do a run on the farm; other jobs are done by the engine's own children.

        Raises:
            Cancelled: It was cancelled; what was measured is kept.
            FarmError: The farm cannot be reached, or has lost its machines.
            CollageError: The run's own error.
        """
        if not isinstance(job, RunJob):
            raise FarmError(f"the job {job.name!r} is not done on a farm")
        ticket = ticket or Ticket()
        self._tickets.append(ticket)
        try:
            answer: Any = self._run(ticket, on_event or (lambda event: None), job)
            return cast(Answer, answer)
        finally:
            self._tickets.remove(ticket)

    def _run(
        self,
        ticket: Ticket,
        on_event: Callable[[object], None],
        job: RunJob,
    ) -> RunUpdate:
        model, contents = model_files(job.path, job.shapes)
        request = RunRequest(
            model=model,
            settings=job.settings,
            export=job.out is not None,
            pins=job.pins,
            run_id=job.run_id,
            previous=job.previous,
            spent_s=job.spent_s,
        )
        attempts = iter(RECONNECT_S)
        best: Placing | None = None
        while True:
            placing: Placing | None = None
            connection: Connection | None = None
            try:
                connection = self._connection()
                pool = connection.coordinator.wait_for_pool(
                    job.settings.pool, JOIN_S, _stopped(ticket, on_event)
                ).name
                placing = Placing(
                    connection.coordinator,
                    pool,
                    connection.store,
                    model,
                    contents,
                    request,
                    ticket,
                    on_event,
                )
                return connection.place(placing, job.out)
            except FarmError as error:
                if placing is not None and placing.answer is not None:
                    best = placing
                # The connection that was used says it: a new one may be there already.
                gone = connection is None or connection.lost
                pause_s = next(attempts, None) if gone else None
                if pause_s is None:
                    if best is None:
                        raise
                    return _ended_early(best, error, job.path, job.shapes, job.out)
                text = f"{error}; trying again in {pause_s:.0f} s, with all costs that have arrived"
                on_event(Log(level="warning", text=text))
                if ticket.cancelled.wait(pause_s):
                    raise Cancelled("cancelled; what was measured is kept") from None

    def cancel(self, ticket: Ticket | None = None) -> bool:
        """Stop a run, or all of them; False if there was none to stop."""
        chosen = [one for one in self._tickets if ticket in (None, one)]
        for one in chosen:
            one.cancelled.set()
        return bool(chosen)

    def keep(self, ticket: Ticket | None = None) -> bool:
        """Have a run end soon with the best that it has; a second call cancels it."""
        chosen = [one for one in self._tickets if ticket in (None, one)]
        for one in chosen:
            (one.cancelled if one.kept.is_set() else one.kept).set()
        return bool(chosen)


def _stopped(ticket: Ticket, on_event: Callable[[object], None]) -> Callable[[], bool]:
    """Returns a function that tells whether a run that waits for a machine was stopped.

    After a while that function also says that the run waits.
    """
    says_at = [time.monotonic() + SAYS_S]

    def stopped() -> bool:
        if says_at and time.monotonic() > says_at[0]:
            says_at.clear()
            on_event(Log(text=WAITS))
        return ticket.cancelled.is_set() or ticket.kept.is_set()

    return stopped


def _ended_early(
    placing: Placing,
    error: FarmError,
    path: str,
    shapes: dict[str, tuple[int, ...]],
    out: str | None,
) -> RunUpdate:
    """End a run whose machine was lost like one whose budget was spent.

    Its artifact is built by another machine of the pool, or by this one where it is of the same
    kind; where neither is possible the answer has none, and says why.

    Raises:
        Cancelled: It was cancelled while the artifact was built.
        ArtifactError: The artifact cannot be written.
    """
    run = placing.answer
    assert run is not None
    run.measured_on, run.artifact = placing.machine, None
    warning = f"{error}; this is the best placement until then"
    if run.provisional:
        run.provisional, run.ended = False, "budget"
    if out is not None:
        try:
            built, how = _exported(placing, run, path, shapes, out)
        except ArtifactError:
            placing.on_event(RunUpdate(candidates=placing.candidates, run=run))
            raise
        warning += f"; {how}"
        run.artifact = out if built else None
    placing.on_event(Log(level="warning", text=warning))
    run.warnings = [*run.warnings, warning]
    return RunUpdate(candidates=placing.candidates, run=run)


def _exported(
    placing: Placing, run: Run, path: str, shapes: dict[str, tuple[int, ...]], out: str
) -> tuple[bool, str]:
    """Write the artifact of a run whose machine was lost, if that is possible; and who did it."""
    why = ""
    try:
        if not placing.coordinator.is_closed and placing.coordinator.works(placing.pool):
            placing.export_again(run, Path(out))
            return True, f"{placing.machine} has built its artifact"
    except (Cancelled, ArtifactError):
        raise
    except CollageError as error:
        _LOG.warning("no machine of the pool built the artifact: %s", error)
        why = f"; {error}"
    try:
        reason = _built_here(placing, run, path, shapes, out)
    except (Cancelled, ArtifactError):
        raise
    except CollageError as error:
        reason = str(error)
    if not reason:
        return True, "this machine, which is of the pool's kind, has built its artifact"
    return False, (
        "there is no artifact of it, since only a machine of that pool can build one "
        f"({reason}{why}). Running the command again, once one has joined, goes on from the stored "
        "costs"
    )


def _built_here(
    placing: Placing, run: Run, path: str, shapes: dict[str, tuple[int, ...]], out: str
) -> str:
    """Have a child of this process build a run's artifact; why that is not possible, or nothing."""
    assert run.placement is not None
    if placing.kind is None:
        return "what kind of machine it needs is not known"
    used = {part.toolchain for part in run.placement.partitions}
    reason = why_cannot_build(placing.kind, this_machine({}), used)
    if reason:
        return reason
    client = PipelineClient("export")
    try:
        job = ExportJob(path=path, shapes=shapes, run=run, out=out)
        client.job(job, ticket=placing.ticket)
    finally:
        client.close()
    return ""


class DaskFarms:
    """The farms of one engine; see ``service.farms.Farms``."""

    def __init__(self) -> None:
        self._connections: dict[str, Connection] = {}
        self._lock = threading.Lock()
        self._closed = False

    def jobs(self, settings: RunSettings) -> FarmJobs:
        """Return what runs jobs on the farm and the pool that the settings name."""
        self._connection(settings.farm)
        return FarmJobs(lambda: self._connection(settings.farm), settings)

    def use(self, client: Any) -> str:
        """Use the cluster of a Dask client; return the address for ``RunSettings.farm``.

        The client is closed with this object.
        """
        address = str(client.scheduler.address)
        with self._lock:
            if address not in self._connections:
                self._connections[address] = Connection(address, client)
        return address

    def _connection(self, address: str) -> Connection:
        """Return the connection to a farm, made anew if its scheduler was lost."""
        with self._lock:
            found = self._connections.get(address)
            if found is not None and not found.lost:
                return found
            self._connections.pop(address, None)
        if found is not None:
            found.close()
        made = Connection(address)  # beside the lock: a farm that is gone is waited for
        with self._lock:
            found = None if self._closed else self._connections.setdefault(address, made)
        if found is not made:
            made.close()
        if found is None:
            raise FarmError("the farm was left")
        return found

    def status(self, address: str) -> FarmStatus:
        """Return the machines, pools and placements of a farm, as its coordinators see them.

        The connection is kept: who asks once asks again.
        """
        return self._connection(address).status()

    def close(self) -> None:
        """Leave all farms."""
        with self._lock:
            self._closed = True
            connections = list(self._connections.values())
            self._connections.clear()
        for connection in connections:
            connection.close()


def look_at(address: str) -> FarmStatus:
    """Return what the scheduler, all coordinators and, where there is none, the machines say.

    Raises:
        FarmError: The farm cannot be reached.
    """
    client = connect(Address(address))
    carrier = DaskCarrier(client, f"collage-{uuid.uuid4().hex[:12]}")
    try:
        statuses = _published(carrier)
        names = list(workers_of(client).values())
        if names and not statuses:
            statuses = [_asked(carrier, len(names))]
        return combined(carrier.address, statuses, names)
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise FarmError(f"the scheduler {address} gives no answer that can be read") from error
    finally:
        carrier.close()


def _published(carrier: DaskCarrier, without: str = "") -> list[FarmStatus]:
    """Return what the coordinators that are alive say, but for one of them."""
    oldest = datetime.now(UTC) - timedelta(seconds=FRESH_S)
    statuses = []
    for name, content in carrier.published().items():
        with contextlib.suppress(CollageError, ValueError):
            status = read(content, FarmStatus)
            if name != without and datetime.fromisoformat(status.at) >= oldest:
                statuses.append(status)
    return statuses


def _asked(carrier: DaskCarrier, count: int) -> FarmStatus:
    """Ask the machines themselves what they are, since no coordinator knows them."""
    coordinator = Coordinator(carrier, engine_hash(), library_versions(), publishes=False)
    try:
        ends = time.monotonic() + ASKED_S
        while True:
            status = coordinator.status()
            joining = any(machine.state == "joining" for machine in status.machines)
            if (len(status.machines) >= count and not joining) or time.monotonic() > ends:
                return status
            time.sleep(coordinator.settings.refresh_s)
    finally:
        coordinator.close()


def combined(address: str, statuses: list[FarmStatus], workers: list[str]) -> FarmStatus:
    """Merge what several coordinators say, with the workers that no coordinator knows.

    Of two that say something of a machine or a pool, the last one is believed.
    """
    machines = {machine.name: machine for status in statuses for machine in status.machines}
    # A machine that works for one coordinator waits in the eyes of the others.
    for status in statuses:
        machines |= {m.name: m for m in status.machines if m.state == "measuring"}
    for name in workers:
        machines.setdefault(name, FarmMachine(name=name))
    pools = {pool.name: pool for status in statuses for pool in status.pools}
    return FarmStatus(
        address=address,
        machines=tuple(machines.values()),
        pools=tuple(pools.values()),
        placements=tuple(one for status in statuses for one in status.placements),
        queued=sum(status.queued for status in statuses),
        last_error=next((s.last_error for s in reversed(statuses) if s.last_error), ""),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
