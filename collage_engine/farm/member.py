"""Does what a machine of a farm does: the functions that tasks name, and what is kept between.

All work that can crash runs in children of this process: whole runs in the child of a run, groups
of candidates in ``group_child``. This process only passes messages on.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import re
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from collage_engine.farm.identity import this_machine
from collage_engine.farm.messages import (
    Chunk,
    Claim,
    Claimed,
    Delivery,
    Envelope,
    ExportRequest,
    GroupAnswer,
    GroupRequest,
    Have,
    Hello,
    ModelFiles,
    News,
    Nothing,
    RunAnswer,
    RunRequest,
    SharedGroup,
    Stop,
    Update,
    encode,
    read,
)
from collage_engine.machine.cgroups import memory_bytes
from collage_engine.machine.device import allowed_processors, busy
from collage_engine.machine.folders import cache_folder
from collage_engine.machine.recurring import recurring
from collage_engine.machine.worker import JOB_MEMORY_SHARE, RemoteError, Worker, WorkerCrashed
from collage_engine.records.errors import CollageError, FarmError
from collage_engine.records.flag import FlagWhen
from collage_engine.records.jobs import EnumerateJob, ExportJob, SharedRunJob
from collage_engine.records.locks import HeldLock
from collage_engine.records.results import RunUpdate
from collage_engine.service.run_client import PipelineClient, Ticket
from collage_engine.timing.exchange import Exchange, GroupsShared, Stored
from collage_engine.timing.speed_probe import Reading, SpeedProbe, reference

_LOG = logging.getLogger(__name__)

Say = Callable[[bytes], None]
"""A function that sends news to the coordinator."""
Wanted = Callable[[], bool]
"""Whether the coordinator still waits for the task."""

LOOK_S = 0.05
"""Seconds between two looks at whether a task is wanted; chosen, a look takes microseconds."""
SIGN_OF_LIFE_S = 5.0
"""Seconds between two signs of life of a task; chosen, far below the coordinator's patience."""
KNOWN_COSTS_S = 30.0
"""Seconds that a run waits for the costs that the coordinator has stored; chosen: without them it
measures again."""
FILES_KEPT_DAYS = 30
"""Days for which a model's files are kept from their arrival on; chosen."""
LOCKS_S = 15.0
"""Seconds to wait for another member's processors; chosen: one that has just lost its supervisor
takes some seconds to end."""
QUICK_READINGS = 16
"""Readings of the speed probe beside a group of candidates, some 2 ms; chosen."""
CALM_SHARE = 0.1
"""Which of these readings counts, as a share of them in order: disturbances only lengthen them."""
FARM_NAME = "COLLAGE_FARM_NAME"
"""Environment variable with the name under which a machine has joined."""
FARM_DRIFT = "COLLAGE_FARM_DRIFT"
"""Environment variable with the share of drift from which on a machine wants to pause."""


@dataclass(frozen=True)
class Context:
    """What a function is given beside its message."""

    lease: str
    say: Say
    wanted: Wanted


class ProcessorLocks:
    """Locks on this process's processors: two members that share one would disturb each other."""

    def __init__(self) -> None:
        self._held: list[HeldLock] = []

    def take(self) -> None:
        """Take the locks, once; they are held to the process's end.

        Raises:
            FarmError: Another member measures on one of the processors.
        """
        if self._held:
            return
        folder = Path(tempfile.gettempdir())
        ends = time.monotonic() + LOCKS_S
        for number in allowed_processors():
            while True:
                try:
                    lock = HeldLock(folder / f"collage-farm-processor{number}.lock", wait=False)
                    break
                except OSError as error:
                    if time.monotonic() > ends:
                        self.release()
                        raise FarmError(
                            f"another member of a farm measures on processor {number} of this "
                            "machine: stop it, or give each its own with `collage farm join "
                            "--processors`"
                        ) from error
                    time.sleep(LOOK_S)
            self._held.append(lock)

    def release(self) -> None:
        """Let go of the locks."""
        for lock in self._held:
            lock.release()
        self._held.clear()


class Member:
    """One machine's part in a farm; there is one in a process."""

    def __init__(self) -> None:
        name = os.environ.get(FARM_NAME, platform.node())
        self.folder = cache_folder() / f"farm-member-{re.sub('[^A-Za-z0-9.-]+', '-', name)}"
        self.blobs = self.folder / "blobs"
        self.blobs.mkdir(parents=True, exist_ok=True)
        self._processors = ProcessorLocks()
        self.leases = self.folder / "leases"
        shutil.rmtree(self.leases, ignore_errors=True)
        self._forget_old_files()
        # Costs that a member holds are those of one task; only a coordinator keeps them.
        os.environ.setdefault("COLLAGE_BUILD_DIR", str(cache_folder() / "native"))
        self._environment = {"COLLAGE_CACHE_DIR": str(self.folder)}
        self._probe: SpeedProbe | None = None
        self._reference: Reading | None = None
        self._said: Hello | None = None
        """What this machine says of itself, once that is known."""
        self._groups: Worker | None = None
        self._groups_of = ""
        """The model that the child for groups has open."""
        self._runs: dict[str, tuple[PipelineClient, Ticket, Exchange]] = {}
        self._lock = threading.Lock()
        self._functions: dict[str, Callable[[Context, bytes, bytes], object]] = {
            "hello": self._hello,
            "probe": lambda context, message, chunk: Nothing(),
            "have": self._have,
            "put": self._put,
            "fetch": self._fetch,
            "group": self._group,
            "run": self._run,
            "export": self._export,
            "sleep": self._sleep,
        }
        self._beside: dict[str, Callable[[bytes], object]] = {
            "claim": self._claim,
            "deliver": self._deliver,
            "stop": self._stop,
        }

    def _forget_old_files(self) -> None:
        """Remove models that nobody has sent for a while; they are sent again when needed."""
        oldest = time.time() - FILES_KEPT_DAYS * 86400
        for kept in [*self.blobs.iterdir(), *(self.folder / "models").glob("*")]:
            with contextlib.suppress(OSError):
                if kept.stat().st_mtime < oldest:
                    shutil.rmtree(kept) if kept.is_dir() else kept.unlink()

    # ------------------------------------------------------------------ calls

    def call(
        self, name: str, lease: str, message: bytes, chunk: bytes, say: Say, wanted: Wanted
    ) -> bytes:
        """Run a function; the answer is an ``Envelope``, and no exception leaves this process."""
        context = Context(lease, say, wanted)
        checks = name in ("group", "probe")
        try:
            function = self._functions.get(name)
            if function is None:
                raise FarmError(f"members know no function {name!r}")
            with _signs_of_life(context):
                before = self._drift(patient=name == "probe") if checks else None
                body = function(context, message, chunk)
                after = self._drift(patient=False) if checks else None
        except BaseException as error:
            return encode(_failure(error))
        drifts = [drift for drift in (before, after) if drift is not None]
        answer = body if isinstance(body, bytes) else encode(body)
        return encode(Envelope(body=answer, drift=max(drifts, default=None)))

    def beside(self, name: str, message: bytes) -> bytes:
        """Run a function beside the task; likewise."""
        try:
            function = self._beside.get(name)
            if function is None:
                raise FarmError(f"members know no function {name!r}")
            return encode(Envelope(body=encode(function(message))))
        except BaseException as error:
            return encode(_failure(error))

    # ------------------------------------------------------------------ who this is

    def _hello(self, context: Context, message: bytes, chunk: bytes) -> Hello:
        """Say what this machine is; toolchains are probed in children, once in a process's life."""
        with self._lock:
            if self._said is None:
                self._processors.take()
                said = this_machine(self._environment, os.environ.get(FARM_NAME, ""))
                self._drift(patient=True)
                self._said = said
            said = self._said
        return msgspec.structs.replace(
            said, busy=busy() or "", drift_limit=float(os.environ.get(FARM_DRIFT, "0"))
        )

    def _drift(self, *, patient: bool) -> float:
        """Returns the share by which the speed probe is slower than its reference.

        A patient look waits for calm moments. A quick one that seems slow is followed by a patient
        one, since a single disturbance is no drift.
        """
        if self._probe is None:
            self._probe = SpeedProbe()
        if self._reference is None:
            self._reference = reference(self._probe.read)
            return 0.0
        if patient:
            now = reference(self._probe.read)
        else:
            readings = [self._probe.read() for _ in range(QUICK_READINGS)]
            place = int(QUICK_READINGS * CALM_SHARE)
            first, second = (sorted(column)[place] for column in zip(*readings, strict=True))
            now = (first, second)
        drift = ((now[0] / self._reference[0]) * (now[1] / self._reference[1])) ** 0.5 - 1
        if not patient and drift > LOOK_AGAIN:
            return self._drift(patient=True)
        if patient:
            # A calmer moment than any before: that is what the machine can do.
            self._reference = (min(now[0], self._reference[0]), min(now[1], self._reference[1]))
        return float(max(drift, 0.0))

    # ------------------------------------------------------------------ files

    def _have(self, context: Context, message: bytes, chunk: bytes) -> Have:
        return Have(
            tuple(one for one in read(message, Have).hashes if not self._blob(one).is_file())
        )

    def _blob(self, sha256: str) -> Path:
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            raise FarmError(f"{sha256[:80]!r} is no SHA-256")
        return self.blobs / sha256

    def _put(self, context: Context, message: bytes, chunk: bytes) -> Nothing:
        """Append to a file; at its end its hash is checked and it gets its name."""
        part = read(message, Chunk)
        place = self._blob(part.sha256)
        growing = place.with_suffix(".part")
        with growing.open("r+b" if part.offset else "wb") as stream:
            stream.seek(part.offset)
            stream.write(chunk)
        if part.offset + len(chunk) >= part.size:
            with growing.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != part.sha256:
                growing.unlink()
                raise FarmError("a file arrived with other content than was sent")
            growing.replace(place)
        return Nothing()

    def _fetch(self, context: Context, message: bytes, chunk: bytes) -> bytes:
        wanted = read(message, Chunk)
        with self._blob(wanted.sha256).open("rb") as stream:
            stream.seek(wanted.offset)
            return stream.read(wanted.size)

    def _model(self, model: ModelFiles) -> Path:
        """Returns the model's file in a folder with all that belongs to it."""
        digest = hashlib.sha256(encode(model.files)).hexdigest()[:32]
        folder = self.folder / "models" / digest
        for name, sha256 in model.files.items():
            relative = Path(name)
            if relative.is_absolute() or ".." in relative.parts:
                raise FarmError(f"a model's file cannot be called {name!r}")
            place = folder / relative
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    os.link(self._blob(sha256), place)
        return folder / model.name

    # ------------------------------------------------------------------ groups

    def _group(self, context: Context, message: bytes, chunk: bytes) -> GroupAnswer:
        request = read(message, GroupRequest)
        path = self._model(request.model)
        of = f"{path} {sorted(request.model.shapes.items())} {context_of(request)}"
        if self._groups is None or self._groups_of != of:
            self._close_groups()
            self._groups = Worker(
                "collage_engine.farm.group_child:GroupChild",
                env=self._environment,
                memory_limit_bytes=int(memory_bytes() * JOB_MEMORY_SHARE),
                name="collage-farm-group",
            )
            self._groups_of = of
        measurements: tuple[Any, ...] = self._groups.call(
            (str(path), request),
            timeout_s=request.limit_s + GROUP_GRACE_S,
            cancel=FlagWhen(lambda: not context.wanted()),
        )
        return GroupAnswer(measurements=measurements)

    def _close_groups(self) -> None:
        if self._groups is not None:
            self._groups.close()
            self._groups = None

    # ------------------------------------------------------------------ whole runs

    def _run(self, context: Context, message: bytes, chunk: bytes) -> RunAnswer:
        """Place a model here, as a local run does; other machines may measure groups of it."""
        request = read(message, RunRequest)
        self._close_groups()
        path = self._model(request.model)
        folder = self.leases / context.lease
        folder.mkdir(parents=True)
        exchange = Exchange(folder / "exchange", create=True)
        client, ticket = PipelineClient("farm", self._environment), Ticket()
        with self._lock:
            self._runs[context.lease] = (client, ticket, exchange)
        try:
            with _watched(context, lambda: client.cancel(ticket)):
                return self._do_run(context, request, path, folder, client, ticket, exchange)
        finally:
            with self._lock:
                self._runs.pop(context.lease, None)
            client.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _do_run(
        self,
        context: Context,
        request: RunRequest,
        path: Path,
        folder: Path,
        client: PipelineClient,
        ticket: Ticket,
        exchange: Exchange,
    ) -> RunAnswer:
        model: dict[str, Any] = {"path": str(path), "shapes": request.model.shapes}
        began = time.monotonic()
        found = client.job(EnumerateJob(settings=request.settings, **model), ticket=ticket)
        keys = tuple({c.key for c in found.candidates or () if c.key})
        context.say(encode(News(lease=context.lease, update=_update(found), keys=keys)))
        known = exchange.wait_for_known(KNOWN_COSTS_S, lambda: not context.wanted())
        stored: dict[str, Any] = {}

        def on_event(event: object) -> None:
            if isinstance(event, Stored):
                stored.update({_row(m): m for m in event.measurements})
                news = News(lease=context.lease, measurements=event.measurements)
            elif isinstance(event, GroupsShared):
                news = News(
                    lease=context.lease,
                    groups=tuple(
                        SharedGroup(id=name, candidates=members)
                        for name, members in event.groups.items()
                    ),
                    fingerprint=event.fingerprint,
                    versions=dict(event.versions),
                    toolchains=event.toolchains,
                    shares=True,
                    limit_s=event.limit_s,
                )
            elif isinstance(event, RunUpdate):
                news = News(lease=context.lease, update=_update(event))
            else:
                news = News(lease=context.lease, event=event)  # type: ignore[arg-type]
            context.say(encode(news))

        out = folder / "artifact"
        job = SharedRunJob(
            exchange=str(exchange.folder),
            known=known,
            settings=request.settings,
            pins=request.pins,
            out=str(out) if request.export else None,
            run_id=request.run_id,
            previous=request.previous,
            spent_s=request.spent_s + time.monotonic() - began,
            **model,
        )
        update = client.job(job, ticket=ticket, on_event=on_event)
        sha256, size = self._keep_artifact(out) if request.export and out.is_dir() else ("", 0)
        return RunAnswer(
            update=_update(update),
            measurements=tuple(stored.values()),
            artifact=sha256,
            artifact_bytes=size,
        )

    def _export(self, context: Context, message: bytes, chunk: bytes) -> RunAnswer:
        """Build the artifact of a run that another machine has done, which was lost."""
        request = read(message, ExportRequest)
        self._close_groups()
        path = self._model(request.model)
        folder = self.leases / context.lease
        folder.mkdir(parents=True)
        client, ticket = PipelineClient("farm", self._environment), Ticket()
        try:
            with _watched(context, lambda: client.cancel(ticket)):
                out = folder / "artifact"
                job = ExportJob(
                    path=str(path), shapes=request.model.shapes, run=request.run, out=str(out)
                )
                client.job(job, ticket=ticket)
                sha256, size = self._keep_artifact(out)
        finally:
            client.close()
            shutil.rmtree(folder, ignore_errors=True)
        return RunAnswer(update=Update(), artifact=sha256, artifact_bytes=size)

    def _keep_artifact(self, folder: Path) -> tuple[str, int]:
        """Pack an artifact among the blobs, from where it is fetched; its hash and size."""
        for old in self.blobs.glob("*.artifact"):
            with contextlib.suppress(OSError):
                (self.blobs / old.stem).unlink(missing_ok=True)
                old.unlink()
        packed = self.blobs / f"{folder.parent.name}.tar"
        with tarfile.open(packed, "w") as archive:
            archive.add(folder, arcname=".")
        with packed.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        size = packed.stat().st_size
        packed.replace(self._blob(sha256))
        (self.blobs / f"{sha256}.artifact").touch()
        return sha256, size

    def _run_of(self, lease: str) -> tuple[PipelineClient, Ticket, Exchange]:
        with self._lock:
            found = self._runs.get(lease)
        if found is None:
            raise FarmError("there is no such run here")
        return found

    def _claim(self, message: bytes) -> Claimed:
        wish = read(message, Claim)
        _, _, exchange = self._run_of(wish.lease)
        exchange.give_back(wish.give_back)
        return Claimed(tuple(name for name in wish.groups if exchange.claim(name)))

    def _deliver(self, message: bytes) -> Nothing:
        delivery = read(message, Delivery)
        _, _, exchange = self._run_of(delivery.lease)
        if delivery.group:
            exchange.deliver(delivery.group, delivery.measurements)
        else:
            exchange.deliver_known(delivery.measurements)
        return Nothing()

    def _stop(self, message: bytes) -> Nothing:
        client, ticket, _ = self._run_of(read(message, Stop).lease)
        client.keep(ticket)
        return Nothing()

    # ------------------------------------------------------------------ for simulations

    def _sleep(self, context: Context, message: bytes, chunk: bytes) -> Nothing:
        """Do nothing for so many seconds: the machines of a simulated farm measure like this."""
        ends = time.monotonic() + float(message)
        while (left := ends - time.monotonic()) > 0 and context.wanted():
            time.sleep(min(left, SLEEP_LOOK_S))
        return Nothing()


SLEEP_LOOK_S = 0.5
"""Seconds between two looks at whether a simulated task is wanted; chosen: 200 simulated machines
share one process, which 4,000 looks a second would keep busy."""
GROUP_GRACE_S = 120.0
"""Seconds for importing the model beside the limit of a group; chosen."""
LOOK_AGAIN = 0.03
"""Share of drift in a quick look from which on a patient one follows; the farm's own limit."""


def context_of(request: GroupRequest) -> str:
    """Returns what the true values and the child of a group depend on beside the model."""
    settings = request.settings
    inputs = hashlib.sha256(settings.inputs_npz or b"").hexdigest()
    parts = (settings.seed, settings.threads, settings.precision, settings.target)
    return f"{inputs} {parts}"


_MAKING = threading.Lock()
"""Held while this process's member is made: several of Dask's workers may share a process."""


def member() -> Member:
    """Return this process's part in the farm."""
    with _MAKING:
        return _only_member()


@cache
def _only_member() -> Member:
    return Member()


def _update(update: RunUpdate) -> Update:
    return Update(
        candidates=update.candidates,
        without_candidates=update.without_candidates,
        constants=update.constants,
        run=update.run,
        toolchains=update.toolchains,
    )


def _row(measurement: Any) -> tuple[str, str]:
    return measurement.key, measurement.model if measurement.one_model else ""


def _failure(error: BaseException) -> Envelope:
    if isinstance(error, RemoteError) or not isinstance(error, CollageError):
        _LOG.error("a task failed by a defect", exc_info=error)
        return Envelope(error=f"a defect of a member: {error!r}")
    details = getattr(error, "details", None) or {}
    kind = type(error).__name__
    if isinstance(error, WorkerCrashed) or isinstance(error.__cause__, WorkerCrashed):
        return Envelope(error=str(error), kind="FarmError", again=True)
    with contextlib.suppress(TypeError, msgspec.MsgspecError):
        return Envelope(error=str(error), kind=kind, details=details)
    return Envelope(error=str(error), kind=kind)


def _signs_of_life(context: Context) -> AbstractContextManager[None]:
    """Tell the coordinator now and then that the task is alive, from its begin on."""
    message = encode(News(lease=context.lease))

    def tell() -> bool:
        with contextlib.suppress(Exception):  # the connection may be gone
            context.say(message)
        return True

    return recurring(tell, SIGN_OF_LIFE_S, name="farm-life", at_once=True)


def _watched(context: Context, stop: Callable[[], object]) -> AbstractContextManager[None]:
    """Call ``stop`` once the task is not wanted any more."""

    def look() -> bool:
        if context.wanted():
            return True
        stop()
        return False

    return recurring(look, LOOK_S, name="farm-watched")
