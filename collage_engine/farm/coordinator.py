"""Keeps the queue of a farm: which machine does what, one task at a time, and what fails.

One thread does everything here; carriers, placements and users put messages into its inbox. It
knows nothing of Dask (``carrier``), nor of what tasks compute (``placing``).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from collage_engine.farm.carrier import Carrier, MachineLost
from collage_engine.farm.messages import (
    Chunk,
    Envelope,
    Have,
    Hello,
    News,
    Nothing,
    encode,
    read,
)
from collage_engine.farm.pools import differences, pool_name, why_refused
from collage_engine.records import errors
from collage_engine.records.errors import Cancelled, CollageError, FarmError
from collage_engine.records.farm import FarmMachine, FarmPlacement, FarmPool, FarmStatus
from collage_engine.records.farm import MachineState as State

_LOG = logging.getLogger(__name__)

CHUNK_BYTES = 8 << 20
"""Bytes of a model or an artifact that travel in one task, 8 MiB; measured: 100 MB take 1.1 to
3.6 s with it, and no process holds more than one chunk."""


JOINING_S = 900.0
"""Seconds in which a machine that has begun to say what it is must have said it; chosen: its
toolchains may have to be compiled first, for which it takes ten minutes at most."""


@dataclass(frozen=True, kw_only=True)
class FarmSettings:
    """It says how a coordinator judges machines."""

    attempts: int = 2
    """Machines that may be lost under a task before it is given up; chosen."""
    silence_s: float = 30.0
    """Seconds without a sign of life from a task that has begun, after which its machine counts as
    lost; chosen: members give one every 5 s, and a frozen machine is to be known within 60 s."""
    drift_limit: float = 0.03
    """Share by which the speed probe may be slower than its reference; from the product's
    requirements."""
    pauses: int = 3
    """Pauses after which a machine is set aside; from the product's requirements."""
    pause_s: float = 5.0
    """Seconds that a machine pauses before its speed probe is read again; chosen."""
    no_machine_s: float = 60.0
    """Seconds without any machine that could do it, after which a task is given up; chosen."""
    publish_s: float = 1.0
    """Seconds between two publications of the status; chosen."""
    tick_s: float = 0.25
    """Seconds between two looks at what has waited too long; chosen."""
    refresh_s: float = 0.05
    """Seconds between two renewals of the status that other threads read; chosen: with 200 machines
    one takes 0.5 ms (``python -m tests.benchmarks.bench_farm simulated``)."""


@dataclass
class Task:
    """Work for one machine.

    Attributes:
        name: Function of ``member``.
        message: Its record, in bytes.
        owner: The placement that it is part of; machines are shared out between owners.
        pool: Pool that must do it; empty: any.
        urgent: Whether it goes before those that are not, as a whole run does.
        machine: Name of the only machine that may do it; empty: any of the pool.
        files: Files that the machine must have first, by SHA-256.
        limit_s: Seconds that it may take once it was sent.
        done: Takes the answer's body and the machine's name, or the error.
        began: Called when a machine was chosen, with its name and address.
        news: Takes what the task says on its way, and the machine's name.
        checked: Whether an answer is dropped that was given beside a drifted speed probe.
        like: Name of the machine whose costs it adds to: only machines that were found to measure
            alike (``alike``) may do it; empty: any may.
        patience_s: Seconds that it may wait for another machine after one has not done it.
    """

    name: str
    message: bytes
    done: Callable[[bytes | CollageError, str], None]
    owner: str = ""
    pool: str = ""
    urgent: bool = False
    machine: str = ""
    files: Mapping[str, Path] = field(default_factory=dict)
    limit_s: float = 3600.0
    began: Callable[[str, str], None] = lambda name, address: None
    news: Callable[[News, str], None] = lambda news, name: None
    checked: bool = False
    like: str = ""
    patience_s: float = math.inf
    doing: str = ""
    holds: bool = False
    """Whether the machine stays its owner's afterwards, until ``release``."""
    lease: str = field(default_factory=lambda: uuid.uuid4().hex)
    lost: int = 0
    avoid: set[str] = field(default_factory=set)
    """Machines that were lost under it; they get it again only if there is no other."""
    waits_since: float = field(default_factory=time.monotonic)
    waits_again_since: float | None = None
    """Since when it waits after a machine has not done it; None: it does not."""


@dataclass
class _Machine:
    """A machine as the coordinator knows it."""

    address: str
    name: str
    state: State = "joining"
    hello: Hello | None = None
    pool: str = ""
    task: Task | None = None
    lease: str = ""
    """Of the message that is in flight; empty: none is."""
    sent: float = 0.0
    heard: float | None = None
    """When the task in flight gave a sign of life; None: it has not begun."""
    files: set[str] = field(default_factory=set)
    chunks: deque[tuple[str, Path, int, int]] = field(default_factory=deque)
    done: int = 0
    pauses: int = 0
    paused_until: float = 0.0
    drift: float | None = None
    reason: str = ""
    usual: str = ""
    """Its reason while it works: why it is in a pool of its own, and who else uses it."""
    doing: str = ""
    held_by: str = ""
    """Owner whose next task it waits for; empty: it takes any."""

    @property
    def works(self) -> bool:
        """Return whether it may get tasks, now or later."""
        return self.state in ("idle", "measuring", "paused")


class Coordinator:
    """Keeps the queue of a farm; every public method may be called from any thread."""

    def __init__(
        self,
        carrier: Carrier,
        engine: str,
        libraries: Mapping[str, str],
        settings: FarmSettings | None = None,
        publishes: bool = True,
        alike: Mapping[str, Sequence[frozenset[str]]] | None = None,
    ) -> None:
        """Start.

        Args:
            carrier: Carries the tasks; it is closed with this object.
            engine: Hash of this engine's sources; machines with another one are refused.
            libraries: Versions of the libraries that carry the messages; likewise.
            settings: How machines are judged.
            publishes: Whether others may read the status of this coordinator.
            alike: By pool, names of machines that were found to measure alike before.
        """
        self.carrier = carrier
        self.settings = settings or FarmSettings()
        self.id = uuid.uuid4().hex[:12]
        self.on_admission: Callable[[str, str], str] = lambda machine, pool: ""
        """Called in the coordinator's thread with a machine and the pool with others that it fits.

        It returns the owner of the tasks by which the machine is compared with them, who then has
        to ``release`` it; empty: it is not compared."""
        self._engine = engine
        self._libraries = dict(libraries)
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._machines: dict[str, _Machine] = {}
        self._pools: dict[str, FarmPool] = {}
        self._first: dict[str, Hello] = {}
        """Of each pool, what its first machine said."""
        self._remembered = {pool: list(names) for pool, names in (alike or {}).items()}
        self._alike: tuple[frozenset[str], ...] = ()
        """Names of machines that were found to measure alike, by comparing them."""
        self._comparing: set[str] = set()
        """Machines that a placement is comparing with its own."""
        self._waiting: dict[tuple[str, str], deque[Task]] = {}
        """Tasks by pool and owner, in order."""
        self._urgent: deque[Task] = deque()
        self._running: dict[str, int] = {}
        """Tasks in flight by owner."""
        self._placements: dict[str, FarmPlacement] = {}
        self._error = ""
        self._closed: str | None = None
        self._changed = threading.Condition()
        self._status = FarmStatus(address=carrier.address)
        self._publishes = publishes
        self._published = 0.0
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._loop, name="farm-coordinator", daemon=True)
        self._thread.start()
        carrier.start(self)

    # ------------------------------------------------------------------ for everybody

    def submit(self, task: Task) -> None:
        """Queue a task."""
        self._inbox.put(lambda: self._queue(task))

    def withdraw(self, owner: str) -> None:
        """Drop an owner's tasks that wait, and cancel those in flight."""
        self._inbox.put(lambda: self._withdraw(owner))

    def release(self, owner: str) -> None:
        """Free the machines that wait for an owner's next task."""

        def work() -> None:
            for machine in self._machines.values():
                if machine.held_by == owner:
                    machine.held_by = ""

        self._inbox.put(work)

    def unqueue(self, leases: set[str], done: Callable[[set[str]], None]) -> None:
        """Take back those tasks that still wait; ``done`` gets their leases."""

        def work() -> None:
            found: set[str] = set()
            for line in self._waiting.values():
                kept = [task for task in line if task.lease not in leases]
                found |= {task.lease for task in line} & leases
                line.clear()
                line.extend(kept)
            done(found)

        self._inbox.put(work)

    def beside(
        self, machine: str, name: str, message: bytes, done: Callable[[bytes | None], None]
    ) -> None:
        """Run a function beside a machine's task; ``done`` gets None when it gave no answer."""

        def answered(answer: bytes | MachineLost) -> None:
            body: bytes | None = None
            if isinstance(answer, bytes):
                with contextlib.suppress(CollageError):
                    envelope = read(answer, Envelope)
                    body = envelope.body if not envelope.error else None
            self._inbox.put(lambda: done(body))

        def ask() -> None:
            found = next((m for m in self._machines.values() if m.name == machine), None)
            if found is None or self._closed is not None:
                done(None)
            else:
                self.carrier.beside(found.address, name, message, answered)

        self._inbox.put(ask)

    def placement(self, owner: str, record: FarmPlacement) -> None:
        """Say how a placement is getting on."""
        self._inbox.put(lambda: self._placements.__setitem__(owner, record))

    def move(self, machine: str, reason: str) -> None:
        """Give a machine a pool of its own, for a reason."""
        self._inbox.put(lambda: self._move(machine, reason))

    def alike(self, one: str, other: str) -> None:
        """Note that two machines measure alike, and with them those that were known to."""
        self._inbox.put(lambda: self._note_alike(frozenset({one, other})))

    def begin_comparing(self, machine: str) -> bool:
        """Note that a placement compares a machine; False: another placement does."""
        with self._changed:
            if machine in self._comparing:
                return False
            self._comparing.add(machine)
            return True

    def end_comparing(self, machine: str) -> None:
        """Note that a machine is not compared any more."""
        with self._changed:
            self._comparing.discard(machine)

    def are_alike(self, one: str, other: str) -> bool:
        """Return whether two machines are one, or were found to measure alike."""
        return one == other or any(one in names and other in names for names in self._alike)

    @property
    def is_closed(self) -> bool:
        """Return whether the scheduler is gone."""
        return self._closed is not None

    def status(self) -> FarmStatus:
        """Return the machines, pools and placements as they are now."""
        with self._changed:
            return self._status

    def first_of(self, pool: str) -> Hello | None:
        """Return what the first machine of a pool has said; None: there is no such pool."""
        return self._first.get(pool)

    def works(self, pool: str) -> bool:
        """Return whether a pool has a machine that works."""
        return self.status().pool_for(pool) is not None

    def wait_for_pool(
        self, wanted: str, timeout_s: float, stopped: Callable[[], bool] = lambda: False
    ) -> FarmPool:
        """Return the pool that a user names, wholly or in part; empty: that with most machines.

        Waits until there is one, and that no machine is still joining where any pool will do.

        Args:
            wanted: The pool's name or a part of it.
            timeout_s: Seconds to wait while no machine is joining.
            stopped: Whether the user does not want it any more.

        Raises:
            Cancelled: The user does not.
            FarmError: There is none within the time; the sentence says which there are.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if stopped():
                    raise Cancelled("cancelled before it began")
                status = self._status
                found = status.pool_for(wanted)
                joining = any(machine.state == "joining" for machine in status.machines)
                if found is not None and (wanted or not joining):
                    return found
                if joining and found is None:
                    # It may have to compile its toolchains first, and ``JOINING_S`` ends that.
                    deadline = max(deadline, time.monotonic() + self.settings.tick_s)
                left = deadline - time.monotonic()
                if self._closed is not None or left <= 0:
                    if found is not None:
                        return found
                    raise FarmError(self._closed or _no_pool(status, wanted))
                self._changed.wait(min(left, self.settings.tick_s))

    def close(self) -> None:
        """Leave the farm; tasks in flight are cancelled."""
        self._inbox.put(None)
        self._thread.join(timeout=5)
        self.carrier.close()

    # ------------------------------------------------------------------ for the carrier

    def joined(self, address: str, name: str) -> None:
        """Take notice of a machine."""
        self._inbox.put(lambda: self._joined(address, name))

    def left(self, address: str) -> None:
        """Take notice that a machine is gone."""
        self._inbox.put(lambda: self._left(address, "it has left the farm"))

    def news(self, message: bytes) -> None:
        """Take what a task says on its way."""
        self._inbox.put(lambda: self._news(message))

    def closed(self, reason: str) -> None:
        """Take notice that the scheduler is gone."""
        self._inbox.put(lambda: self._scheduler_lost(reason))

    # ------------------------------------------------------------------ the thread

    def _loop(self) -> None:
        ticked = refreshed = 0.0
        stale = True
        while True:
            with contextlib.suppress(queue.Empty):
                wait_s = self.settings.refresh_s if stale else self.settings.tick_s
                message = self._inbox.get(timeout=wait_s)
                stale = True
                if message is None:
                    break
                self._safely(message)
                # Take what is there before machines are looked through.
                for _ in range(self._inbox.qsize()):
                    more = self._inbox.get()
                    if more is None:
                        self._end()
                        return
                    self._safely(more)
            now = time.monotonic()
            if now - ticked >= self.settings.tick_s:
                ticked, stale = now, True
                self._safely(self._tick)
            self._safely(self._dispatch)
            if stale and now - refreshed >= self.settings.refresh_s:
                refreshed, stale = now, False
                self._refresh(now)
        self._end()

    def _safely(self, work: Callable[[], None]) -> None:
        """Do one thing; a defect in it must not end the coordinator."""
        try:
            work()
        except CollageError as error:
            _LOG.warning("%s", error)
            self._error = str(error)
        except Exception as error:
            _LOG.exception("the coordinator of the farm met a defect")
            self._error = f"a defect of the coordinator: {error!r}"

    def _end(self) -> None:
        for machine in self._machines.values():
            if machine.lease:
                self.carrier.cancel(machine.lease)
        self._fail_all(FarmError("the farm was left"))

    def _refresh(self, now: float) -> None:
        """Renew the status that other threads read, and publish it now and then."""
        machines = tuple(
            FarmMachine(
                name=m.name,
                state=m.state,
                pool=m.pool,
                processor=m.hello.processor if m.hello else "",
                cores=m.hello.cores if m.hello else 0,
                doing=m.doing,
                done=m.done,
                reason=m.reason,
                drift=m.drift,
            )
            for m in self._machines.values()
        )
        by_pool: dict[str, list[str]] = {}
        for machine in machines:
            if machine.pool:
                by_pool.setdefault(machine.pool, []).append(machine.name)
        fresh = FarmStatus(
            address=self.carrier.address,
            machines=machines,
            pools=tuple(
                _with_machines(pool, by_pool.get(name, [])) for name, pool in self._pools.items()
            ),
            placements=tuple(self._placements.values()),
            queued=len(self._urgent) + sum(map(len, self._waiting.values())),
            last_error=self._error,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        with self._changed:
            self._status = fresh
            self._changed.notify_all()
        due = now - self._published >= self.settings.publish_s
        if self._publishes and self._closed is None and due:
            self._published = now
            self.carrier.publish(self.id, encode(fresh))

    # ------------------------------------------------------------------ machines

    def _joined(self, address: str, name: str) -> None:
        taken = {m.name for m in self._machines.values() if m.state != "lost"}
        before = next((a for a, m in self._machines.items() if m.name == name), None)
        if before is not None and name not in taken:
            del self._machines[before]  # it has come back
            self._part(name)
        unique = name
        while unique in taken:
            unique = f"{name}-{next(self._numbers) + 2}"
        machine = _Machine(address, unique)
        self._machines[address] = machine
        _LOG.info("machine %s joined the farm", unique)

        def greeted(body: bytes | CollageError, _: str) -> None:
            if machine.state == "lost":
                return
            if isinstance(body, CollageError):
                machine.state, machine.reason = "refused", f"it could not say what it is: {body}"
                self._error = f"{unique}: {machine.reason}"
                return
            try:
                said = read(body, Hello)
            except FarmError as error:
                machine.state, machine.reason = "refused", f"it does not say what it is: {error}"
                self._error = f"{unique}: {machine.reason}"
                return
            self._admit(machine, said)

        hello = Task(
            name="hello",
            message=encode(Nothing()),
            done=greeted,
            doing="saying what it is",
            limit_s=JOINING_S,
        )
        self._send(machine, hello)

    def _admit(self, machine: _Machine, hello: Hello) -> None:
        """Put a machine into its pool, or refuse it, for a reason."""
        machine.hello = hello
        refused = why_refused(_named(hello, machine.name), self._engine, self._libraries)
        if refused:
            machine.state, machine.reason = "refused", refused
            self._error = refused
            _LOG.warning("%s", refused)
            return
        name = pool_name(hello)
        new = name not in self._pools
        if new:
            alike = [
                (other, first)
                for other, first in self._first.items()
                if first.processor == hello.processor
            ]
            reason = differences(alike[0][1], hello) if alike else ""
            machine.reason = f"a pool of its own: {reason}" if reason else ""
            self._pools[name] = FarmPool(
                name=name,
                description=f"{hello.processor}",
                toolchains=hello.toolchains,
                reason=f"apart from {alike[0][0]}: {reason}" if reason else "",
            )
            self._first[name] = hello
        machine.pool, machine.state = name, "idle"
        if self._error.startswith(f"{machine.name} was lost"):
            self._error = ""  # it is back
        machine.usual = machine.reason = "; ".join(filter(None, (machine.reason, hello.busy)))
        self._recall_alike(machine.name, name)
        if not new:
            machine.held_by = self.on_admission(machine.name, name)

    def _note_alike(self, machines: frozenset[str]) -> None:
        joined = machines.union(*(names for names in self._alike if names & machines))
        self._alike = (joined, *(names for names in self._alike if not names & joined))

    def _recall_alike(self, name: str, pool: str) -> None:
        """Note which machines of its pool a machine was like before this coordinator began."""
        there = {machine.name for machine in self._machines.values() if machine.pool == pool}
        for names in self._remembered.get(pool, ()):
            if name in names and names <= there:
                self._note_alike(names)

    def _part(self, name: str) -> None:
        """Forget which machines were like this one: it is another one now."""
        self._alike = tuple(names - {name} for names in self._alike)
        for pool, pairs in self._remembered.items():
            self._remembered[pool] = [names for names in pairs if name not in names]

    def _move(self, name: str, reason: str) -> None:
        machine = next((m for m in self._machines.values() if m.name == name), None)
        if machine is None or machine.hello is None or not machine.pool:
            return
        self._part(name)
        own = f"{machine.pool}-{name}"
        self._pools[own] = FarmPool(
            name=own,
            description=machine.hello.processor,
            toolchains=machine.hello.toolchains,
            reason=f"apart from {machine.pool}: {reason}",
        )
        self._first[own] = machine.hello
        machine.usual = machine.reason = f"a pool of its own: {reason}"
        machine.pool = own

    def _left(self, address: str, reason: str) -> None:
        machine = self._machines.get(address)
        if machine is None or machine.state == "lost":
            return
        was_working = machine.works
        machine.held_by = ""
        machine.state, machine.reason, machine.doing = "lost", reason, ""
        if was_working:
            self._error = f"{machine.name} was lost: {reason}"
        self._task_lost(machine, reason)

    def _task_lost(self, machine: _Machine, reason: str) -> None:
        """Queue the task that a machine had again, or give it up."""
        task, machine.task = machine.task, None
        if machine.lease:
            self.carrier.cancel(machine.lease)
            machine.lease = ""
        machine.chunks.clear()
        if task is None:
            return
        self._count(task, -1)
        task.lost += 1
        task.avoid.add(machine.name)
        if task.name in _OWN or task.machine or task.lost >= self.settings.attempts:
            where = f" under {task.lost} machines" if task.lost > 1 else ""
            task.done(FarmError(f"{machine.name} was lost{where}: {reason}"), machine.name)
        else:
            self._queue_again(task)

    def _queue_again(self, task: Task) -> None:
        """Queue a task before all others that a machine has not done."""
        task.lease = uuid.uuid4().hex
        task.waits_again_since = time.monotonic()
        self._queue(task, first=True)

    def _scheduler_lost(self, reason: str) -> None:
        if self._closed is not None:
            return
        self._closed = self._error = reason
        for machine in self._machines.values():
            machine.state, machine.reason, machine.lease = "lost", reason, ""
            task, machine.task = machine.task, None
            if task is not None:
                task.done(FarmError(reason), machine.name)
        self._fail_all(FarmError(reason))

    def _fail_all(self, error: CollageError) -> None:
        waiting = [*self._urgent, *itertools.chain.from_iterable(self._waiting.values())]
        self._urgent.clear()
        self._waiting.clear()
        for task in waiting:
            task.done(error, "")
        for machine in self._machines.values():
            task_in_flight, machine.task = machine.task, None
            if task_in_flight is not None:
                task_in_flight.done(error, machine.name)

    # ------------------------------------------------------------------ tasks

    def _queue(self, task: Task, first: bool = False) -> None:
        if self._closed is not None:
            task.done(FarmError(self._closed), "")
            return
        task.waits_since = time.monotonic()
        line = (
            self._urgent
            if task.urgent
            else self._waiting.setdefault((task.pool, task.owner), deque())
        )
        line.appendleft(task) if first else line.append(task)

    def _withdraw(self, owner: str) -> None:
        for line in [self._urgent, *self._waiting.values()]:
            kept = [task for task in line if task.owner != owner]
            line.clear()
            line.extend(kept)
        for machine in self._machines.values():
            if machine.task is not None and machine.task.owner == owner:
                self.carrier.cancel(machine.lease)
                machine.lease = ""
                machine.chunks.clear()
                machine.task = None
                machine.state, machine.doing = "idle", ""
        self._running.pop(owner, None)

    def _count(self, task: Task, by: int) -> None:
        left = self._running.get(task.owner, 0) + by
        if left > 0:
            self._running[task.owner] = left
        else:
            self._running.pop(task.owner, None)

    def _dispatch(self) -> None:
        """Give every idle machine the next task that it may do."""
        if not self._urgent and not any(self._waiting.values()):
            return
        for machine in self._machines.values():
            if machine.state == "idle" and machine.task is None:
                task = self._next(machine)
                if task is not None:
                    self._send(machine, task)

    def _next(self, machine: _Machine) -> Task | None:
        for task in self._urgent:
            if self._fits(task, machine):
                self._urgent.remove(task)
                return task
        if machine.held_by:
            return None
        lines = [
            line for (pool, _), line in self._waiting.items() if line and pool in ("", machine.pool)
        ]
        # The owner with the fewest tasks in flight first, so that all of them get on.
        lines.sort(key=lambda line: self._running.get(line[0].owner, 0))
        for line in lines:
            for task in line:
                if self._fits(task, machine):
                    line.remove(task)
                    return task
        return None

    def _fits(self, task: Task, machine: _Machine) -> bool:
        if task.pool not in ("", machine.pool) or task.machine not in ("", machine.name):
            return False
        if machine.held_by not in ("", task.owner):
            return False
        if task.like and not self.are_alike(machine.name, task.like):
            return False
        if machine.name not in task.avoid:
            return True
        others = (m for m in self._machines.values() if m.works and m.pool == machine.pool)
        return all(other.name in task.avoid for other in others)

    def _send(self, machine: _Machine, task: Task) -> None:
        """Give a machine a task: first the files that it lacks, then the task itself."""
        task.waits_again_since = None
        machine.task, machine.doing = task, task.doing or task.name
        if machine.state == "idle":
            machine.state = "measuring"
        self._count(task, 1)
        unknown = [sha256 for sha256 in task.files if sha256 not in machine.files]
        if unknown:
            self._message(machine, "have", encode(Have(tuple(unknown))))
        else:
            self._begin(machine)

    def _begin(self, machine: _Machine) -> None:
        assert machine.task is not None
        machine.doing = machine.task.doing or machine.task.name
        machine.task.began(machine.name, machine.address)
        self._message(machine, machine.task.name, machine.task.message, lease=machine.task.lease)

    def _message(
        self, machine: _Machine, name: str, message: bytes, chunk: bytes = b"", lease: str = ""
    ) -> None:
        machine.lease = lease or uuid.uuid4().hex
        machine.sent, machine.heard = time.monotonic(), None
        sent = machine.lease

        def arrived(answer: bytes | MachineLost) -> None:
            self._inbox.put(lambda: self._answered(machine, name, sent, answer))

        self.carrier.submit(machine.address, name, sent, message, chunk, arrived)

    def _answered(
        self, machine: _Machine, name: str, lease: str, answer: bytes | MachineLost
    ) -> None:
        """Take the answer of the message in flight; an answer of an older one is dropped."""
        if machine.lease != lease:
            return
        machine.lease = ""
        if isinstance(answer, MachineLost):
            # Whether the machine itself is gone, the carrier reports; the task goes elsewhere.
            if machine.works or machine.state == "joining":
                self._left(machine.address, str(answer))
            else:
                self._task_lost(machine, str(answer))
            return
        task = machine.task
        try:
            envelope = read(answer, Envelope)
        except CollageError as error:
            envelope = Envelope(error=str(error), kind="FarmError")
        try:
            if name == "have" and task is not None and not envelope.error:
                self._take_missing(machine, task, read(envelope.body, Have).hashes)
                self._next_chunk(machine)
                return
            if name == "put" and task is not None and not envelope.error:
                self._next_chunk(machine)
                return
        except FarmError as error:
            envelope = Envelope(error=str(error), kind="FarmError")
        except OSError as error:
            what = f"{error.filename or 'a file of the model'} cannot be read: {error.strerror}"
            envelope = Envelope(error=what, kind="ModelError")
        self._finish(machine, envelope)

    def _take_missing(self, machine: _Machine, task: Task, missing: Sequence[str]) -> None:
        """Note which of a task's files a machine has, and what of the others is to be sent."""
        machine.files |= task.files.keys() - set(missing)
        for sha256 in task.files.keys() & set(missing):
            path = task.files[sha256]
            size = path.stat().st_size
            offsets = range(0, max(size, 1), CHUNK_BYTES)
            machine.chunks.extend((sha256, path, at, size) for at in offsets)

    def _next_chunk(self, machine: _Machine) -> None:
        """Send the next part of a file that the machine lacks, or the task when it has all."""
        assert machine.task is not None
        if not machine.chunks:
            machine.files |= machine.task.files.keys()
            self._begin(machine)
            return
        sha256, path, offset, size = machine.chunks.popleft()
        with path.open("rb") as stream:
            stream.seek(offset)
            data = stream.read(CHUNK_BYTES)
        machine.doing = f"receiving {path.name}, {100 * offset / max(size, 1):.0f} %"
        self._message(machine, "put", encode(Chunk(sha256=sha256, offset=offset, size=size)), data)

    def _finish(self, machine: _Machine, envelope: Envelope) -> None:
        task, machine.task = machine.task, None
        machine.doing = ""
        machine.chunks.clear()
        if machine.state == "measuring":
            machine.state = "idle"
        if task is None:
            return
        self._count(task, -1)
        if envelope.kind == "Cancelled":
            # Whatever is cancelled here is not waited for: the machine has given up by itself.
            said = f"{machine.name} has ended its task: {envelope.error}"
            envelope = Envelope(error=said, kind="FarmError", again=True, drift=envelope.drift)
        drifted = self._judge(machine, envelope)
        if envelope.again:
            task.lost += 1
            self._error = f"{machine.name}: {envelope.error}"
        again = envelope.again and task.lost < self.settings.attempts
        if again and task.name in _OWN:
            # No other machine can say it.
            task.lease = uuid.uuid4().hex
            self._send(machine, task)
            return
        if again or (drifted and task.checked):
            task.avoid.add(machine.name)
            self._queue_again(task)
            return
        machine.done += task.name not in _OWN
        if task.holds and not envelope.error:
            machine.held_by = task.owner
        if envelope.error:
            task.done(error_of(envelope), machine.name)
        else:
            task.done(envelope.body, machine.name)

    # ------------------------------------------------------------------ the speed probe

    def _judge(self, machine: _Machine, envelope: Envelope) -> bool:
        """Take notice of the speed probe beside an answer; return whether it has drifted."""
        if envelope.drift is None:
            return False
        machine.drift = envelope.drift
        limit = (machine.hello.drift_limit if machine.hello else 0) or self.settings.drift_limit
        if envelope.drift <= limit:
            if machine.state == "paused":
                machine.state, machine.reason = "idle", machine.usual
            return False
        if not machine.works:
            return True
        machine.pauses += 1
        slower = f"its speed probe is {100 * envelope.drift:.1f} % slower than its reference"
        if machine.pauses >= self.settings.pauses:
            machine.state = "set aside"
            machine.reason = f"{slower}; that was so {machine.pauses} times"
            self._error = f"{machine.name} was set aside: {machine.reason}"
            _LOG.warning("%s", self._error)
        else:
            machine.state, machine.reason = "paused", slower
            machine.paused_until = time.monotonic() + self.settings.pause_s
        return True

    # ------------------------------------------------------------------ what waits too long

    def _tick(self) -> None:
        now = time.monotonic()
        for machine in list(self._machines.values()):
            if machine.state == "paused" and not machine.task and now >= machine.paused_until:
                machine.paused_until = now + self.settings.pause_s
                probe = Task(
                    name="probe",
                    message=encode(Nothing()),
                    done=lambda body, name: None,
                    doing="reading its speed probe",
                )
                self._send(machine, probe)
            if not machine.lease or machine.task is None:
                continue
            if machine.heard is not None and now - machine.heard > self.settings.silence_s:
                self._left(
                    machine.address, f"it gave no sign of life for {self.settings.silence_s:.0f} s"
                )
            elif machine.heard is None and machine.task.name == "hello":
                continue  # it works for another coordinator, after whose task it will answer
            elif now - machine.sent > machine.task.limit_s:
                limit = machine.task.limit_s
                self._left(machine.address, f"it gave no answer within {limit:.0f} s")
        self._give_up(now)

    def _give_up(self, now: float) -> None:
        """Give up tasks that no machine could do for a while."""
        for line in self._waiting.values():
            for task in list(line):
                since = task.waits_again_since
                if since is not None and now - since > task.patience_s:
                    line.remove(task)
                    task.done(FarmError("no other machine had time for it"), "")
        joining = (m for m in self._machines.values() if m.state == "joining")
        if any(now - machine.sent < JOINING_S for machine in joining):
            return
        pools = {m.pool for m in self._machines.values() if m.works}
        for done in [place for place, line in self._waiting.items() if not line]:
            del self._waiting[done]
        for line in [self._urgent, *self._waiting.values()]:
            for task in list(line):
                possible = pools if not task.pool else pools & {task.pool}
                if possible:
                    task.waits_since = now
                elif now - task.waits_since > self.settings.no_machine_s:
                    line.remove(task)
                    task.done(
                        FarmError(
                            f"no machine of the pool {task.pool} is left"
                            if task.pool
                            else "the farm has no machine that works"
                        ),
                        "",
                    )

    def _news(self, message: bytes) -> None:
        news = read(message, News)
        for machine in self._machines.values():
            if machine.lease == news.lease:
                machine.heard = time.monotonic()
                if machine.task is not None:
                    machine.task.news(news, machine.name)
                return


_OWN = frozenset({"hello", "probe"})
"""Functions by which the coordinator gets to know a machine; they are part of no placement."""


def error_of(envelope: Envelope) -> CollageError:
    """Return the error that a function ended with: the engine's own class, or a ``FarmError``."""
    kind: Any = getattr(errors, envelope.kind, None)
    if isinstance(kind, type) and issubclass(kind, CollageError):
        error = kind(envelope.error)
        if envelope.details:
            error.details = envelope.details  # type: ignore[attr-defined]
        return error
    return FarmError(envelope.error)


def _named(hello: Hello, name: str) -> Hello:
    import msgspec

    return msgspec.structs.replace(hello, name=name)


def _with_machines(pool: FarmPool, machines: list[str]) -> FarmPool:
    import msgspec

    return msgspec.structs.replace(pool, machines=tuple(machines))


def _no_pool(status: FarmStatus, wanted: str) -> str:
    names = ", ".join(pool.name for pool in status.pools) or "none"
    refused = "; ".join(m.reason for m in status.machines if m.state == "refused")
    why = f"; refused: {refused}" if refused else ""
    if wanted:
        return f"the farm {status.address} has no one pool {wanted!r} with a machine: {names}{why}"
    return f"the farm {status.address} has no machine that works{why}"
