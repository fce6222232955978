"""Defines what the coordinator needs of the library that carries its tasks, and uses Dask.

The coordinator keeps the queue. The carrier takes one task for one machine, reports how it ended,
and reports which machines come and go. Everything that Dask raises is translated here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import queue
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from collage_engine.farm.certificates import INSTALL, certificate_path, security
from collage_engine.farm.member_calls import beside as run_beside
from collage_engine.farm.member_calls import call as run_call
from collage_engine.machine import logs
from collage_engine.records.errors import FarmError
from collage_engine.records.files import read_file

_LOG = logging.getLogger(__name__)

CONNECT_S = 15.0
"""Seconds for reaching a scheduler; chosen: a TLS handshake takes milliseconds."""
GREETING_S = 30.0
"""Seconds for reaching a scheduler and exchanging greetings with it, for which Dask has no limit;
chosen."""
MOST_FILE_BYTES = 1 << 20
"""Bytes of a scheduler file that are read, 1 MiB; chosen: one takes some kilobytes."""
STATUS_KEY = "collage-farm"
"""Name, in the scheduler's metadata, of what coordinators publish about themselves."""
LOOPBACK_HTTP = "127.0.0.1:0"
"""Where Dask's HTTP servers listen. They cannot be left out: even without a dashboard each process
opens one, by default on all addresses and without TLS."""
SETTINGS: dict[str, Any] = {
    # A task that dies with its machine is the coordinator's to repeat.
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-ttl": "20s",
    "distributed.scheduler.no-workers-timeout": "60s",
    "distributed.comm.timeouts.tcp": "12s",
    "distributed.comm.timeouts.connect": "10s",
    # No pages over HTTP; what is left of the server listens on loopback (see `cluster`).
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # An idle worker takes 0.2 to 0.5 % of a core instead of 3.8 % with these.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.tick.limit": "30s",
}
"""Settings of Dask for scheduler, members and coordinators; measured in pairs with the defaults:
a lost worker is noticed after 20 to 40 s instead of minutes, and its task is not repeated twice."""


NO_ADDRESS = "Couldn't detect a suitable IP address"
"""How Dask's warning begins on a machine that has no way to others."""
MOST_MESSAGE_BYTES = 1 << 30
"""Bytes that one part of a message may have, 1 GiB; chosen: parts of models and artifacts have
8 MiB, and what a run knows of all its candidates some MB. What is larger comes from something that
is no farm: the first eight bytes of an answer over HTTP would be a length of 3 EiB."""


class MachineLost(Exception):
    """The machine that had a task does not answer any more; ``str`` says what is known."""


class Listener(Protocol):
    """Takes what a carrier reports, from any thread."""

    def joined(self, address: str, name: str) -> None:
        """Take notice of a machine that has joined."""
        ...

    def left(self, address: str) -> None:
        """Take notice that a machine is gone."""
        ...

    def news(self, message: bytes) -> None:
        """Take what a task says on its way."""
        ...

    def closed(self, reason: str) -> None:
        """Take notice that the scheduler is gone, with everything that was in flight."""
        ...


OnResult = Callable[[bytes | MachineLost], None]


class Carrier(Protocol):
    """Carries tasks to machines."""

    address: str

    def start(self, listener: Listener) -> None:
        """Begin to report; machines that are there already are reported as joined."""
        ...

    def submit(
        self, address: str, name: str, lease: str, message: bytes, chunk: bytes, done: OnResult
    ) -> None:
        """Run a member's function as a task on one machine."""
        ...

    def beside(self, address: str, name: str, message: bytes, done: OnResult) -> None:
        """Run a member's function at once, beside the task that the machine works on."""
        ...

    def cancel(self, lease: str) -> None:
        """Cancel a task that is not wanted any more; its result is not reported."""
        ...

    def publish(self, coordinator: str, status: bytes) -> None:
        """Keep what a coordinator says of itself where others can read it."""
        ...

    def published(self) -> dict[str, bytes]:
        """Return what all coordinators said of themselves."""
        ...

    def close(self) -> None:
        """Leave the cluster."""
        ...


def apply_settings() -> None:
    """Give Dask the farm's settings in this process."""
    import dask.config

    dask.config.set(SETTINGS)
    _limit_messages()
    # `collage farm serve` says itself that others cannot reach the address it has.
    warnings.filterwarnings("ignore", NO_ADDRESS, RuntimeWarning)
    for name in ("distributed", "distributed.client"):
        # Dask shows stack traces on the screen; they belong into this program's log.
        logger = logging.getLogger(name)
        logger.handlers = list(logging.getLogger(logs.ROOT).handlers)
        logger.propagate = False
        logger.setLevel(logging.ERROR)


def _limit_messages() -> None:
    """Have Dask end a connection that announces more than ``MOST_MESSAGE_BYTES``.

    Dask itself asks for as much memory as the other side announces. What is replaced is no promised
    interface; a test (``tests/unit/test_farm_hostile.py``) says when that has changed.
    """
    from distributed.comm import tcp
    from distributed.comm.core import CommClosedError

    module: Any = tcp
    read: Any = module.read_bytes_rw
    if getattr(read, "limited", False):
        return

    async def read_limited(stream: Any, size: int) -> Any:
        if size > MOST_MESSAGE_BYTES:
            raise CommClosedError(f"a message of {size} bytes was announced")
        return await read(stream, size)

    read_limited.limited = True  # type: ignore[attr-defined]
    module.read_bytes_rw = read_limited


@dataclass(frozen=True)
class Address:
    """How a farm is reached: a scheduler's address, or its scheduler file, and a certificate."""

    text: str
    certificate: Path | None = None

    @property
    def is_file(self) -> bool:
        """Tells whether the address names a scheduler file."""
        return "://" not in self.text

    @property
    def encrypted(self) -> bool:
        """Tells whether the connection is encrypted; that of a file is what the file says."""
        if self.is_file:
            return _in_file(Path(self.text)).startswith("tls://")
        return self.text.startswith("tls://")


def _in_file(path: Path) -> str:
    """The address that a scheduler file holds.

    Raises:
        FarmError: It is no such file.
    """
    try:
        address = json.loads(read_file(path, MOST_FILE_BYTES))["address"]
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        address = None
    if not isinstance(address, str):
        raise FarmError(
            f"{path} is neither an address such as tls://HOST:8786 nor a scheduler file"
        )
    return address


def connect(address: Address) -> Any:
    """Return a Dask client of a farm.

    Raises:
        FarmError: The package is missing, or the farm cannot be reached; the sentence says why.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise FarmError(f"a farm needs the package distributed: {INSTALL}") from error
    apply_settings()
    encrypted = address.encrypted
    where: dict[str, Any] = (
        {"scheduler_file": address.text} if address.is_file else {"address": address.text}
    )
    if encrypted:
        where["security"] = security(address.certificate or certificate_path())
    make: Any = Client  # it has no types
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    given_up = threading.Event()

    def work() -> None:
        """Connect; in a thread of its own, since Dask waits for ever for a greeting."""
        try:
            client = make(
                **where,
                timeout=CONNECT_S,
                set_as_default=False,
                name="collage",
                # No answer is unpickled: a member chooses the form of its answers.
                serializers=["dask", "msgpack"],
                deserializers=["dask", "msgpack"],
            )
        except Exception as error:  # whatever Dask makes of what the other side sends
            ended.put(error)
            return
        ended.put(client)
        if given_up.is_set():
            client.close(timeout=2)

    threading.Thread(target=work, name="farm-connect", daemon=True).start()
    try:
        found = ended.get(timeout=GREETING_S)
    except queue.Empty:
        given_up.set()
        found = TimeoutError(NO_GREETING)
    if isinstance(found, Exception):
        _LOG.info("a farm cannot be reached", exc_info=found)
        raise FarmError(_why_unreachable(address, found)) from found
    return found


NO_GREETING = "it takes the connection and says nothing"


def _why_unreachable(address: Address, error: Exception) -> str:
    text = str(error) or type(error).__name__
    words = text.lower()
    if "wrong_version_number" in words:
        text = "it does not speak TLS"
    elif "ssl" in words or "certificate" in words or "unknown ca" in words:
        text = "its certificate is another one than this user's"
    elif "reset" in words or "closed" in words:
        text = "it ended the connection; does it expect tls:// ?"
    elif text == NO_GREETING:
        pass
    elif isinstance(error, OSError) and "was announced" not in words:
        text = "there is no answer"
    else:
        text = "what answers there is no scheduler of Dask, or one of another version"
    return f"the farm {address.text} cannot be reached: {text}"


def why_not_started(error: Exception) -> str:
    """Returns why one of Dask's servers did not start: what it raises says only that it did not."""
    cause = error.__cause__ or error
    system = cause.strerror if isinstance(cause, OSError) else None
    return system or str(cause) or type(cause).__name__


LOST_BY = {
    "KilledWorker": "its worker died",
    "CommClosedError": "the connection broke",
    "NoValidWorkerError": "it has left the farm",
    "TimeoutError": "its answer did not arrive",
}
"""What Dask's exceptions say of a machine, by the names of their classes, as parts of sentences."""
DROPPED = ("CancelledError", "FutureCancelledError")
"""Names of the classes of Dask's exceptions which say that a task was cancelled."""


def why_lost(error: Exception) -> str:
    """Returns why a machine gave no answer, in words; the exception itself goes to the log."""
    _LOG.info("a machine gave no answer", exc_info=error)
    name = type(error).__name__
    return LOST_BY.get(name, f"its task ended without an answer ({name}: {error})")


def ask(client: Any, what: str, **arguments: Any) -> Any:
    """Return what the scheduler answers to a request of Dask's.

    Raises:
        Exception: Whatever Dask raises; TimeoutError where it gives no answer.
    """
    request = getattr(client.scheduler, what)
    return client.sync(request, callback_timeout=ANSWER_S, **arguments)


def workers_of(client: Any) -> dict[str, str]:
    """Return the workers that a scheduler has, by their addresses with their names.

    Raises:
        FarmError: The scheduler answers something else.
        Exception: Whatever Dask raises.
    """
    answer = ask(client, "identity", n_workers=-1)
    workers = answer.get("workers") if isinstance(answer, dict) else None
    if not isinstance(workers, dict) or len(workers) > MOST_MACHINES:
        raise FarmError("the scheduler does not say which workers it has")
    return {
        str(address): str(worker.get("name", address) if isinstance(worker, dict) else address)
        for address, worker in workers.items()
    }


def _message_of(event: object) -> object:
    """Return what an event of Dask's says, without its time."""
    return event[1] if isinstance(event, tuple | list) and len(event) == 2 else None


class DaskCarrier:
    """Carries tasks with a Dask client."""

    def __init__(self, client: Any, topic: str) -> None:
        self._client = client
        self._topic = topic
        self.address: str = client.scheduler.address
        self._futures: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._beside = ThreadPoolExecutor(max_workers=8, thread_name_prefix="farm-beside")
        self._listener: Listener | None = None
        self._known: set[str] = set()
        self._closing = threading.Event()
        self._unheard = 0
        """Events to this client itself that have not come back, since one last did."""
        with contextlib.suppress(AttributeError):  # it is no promised interface
            client.scheduler_comm.interval = SEND_INTERVAL_S

    def start(self, listener: Listener) -> None:
        """Begin to report; machines that are there already are reported as joined."""
        self._listener = listener
        self._client.subscribe_topic("all", self._on_scheduler_event)
        self._client.subscribe_topic(self._topic, self._on_news)
        threading.Thread(target=self._watch, name="farm-watch", daemon=True).start()

    def _watch(self) -> None:
        """Look at the list of workers now and then: an event may be lost with a connection.

        Each look also sends an event to this client itself: it may be that the scheduler answers,
        and that what it passes on does not arrive any more.
        """
        failures = 0
        while not self._closing.is_set():
            try:
                workers = workers_of(self._client)
                ask(self._client, "log_event", topic=self._topic, msg=ECHO)
                self._unheard += 1
                failures = 0
            except Exception as error:
                failures += 1
                if (
                    failures >= SCHEDULER_MISSED
                    or getattr(self._client, "status", "") == "closed"
                    or not getattr(self._client, "scheduler_comm", None)
                ):
                    _LOG.warning("the scheduler does not answer: %s", error)
                    self._report_closed(f"the scheduler {self.address} is gone")
                    return
                workers = None
            if self._unheard > MOST_UNHEARD:
                self._report_closed(f"the scheduler {self.address} passes no messages on")
                return
            if workers is not None:
                for address, name in workers.items():
                    self._report_joined(address, name)
                for address in self._known - workers.keys():
                    self._report_left(address)
            self._closing.wait(WATCH_S)

    def _report_closed(self, reason: str) -> None:
        if not self._closing.is_set() and self._listener is not None:
            self._listener.closed(reason)

    def _report_joined(self, address: str, name: str) -> None:
        with self._lock:
            new = address not in self._known
            self._known.add(address)
        if new and self._listener is not None:
            self._listener.joined(address, name)

    def _report_left(self, address: str) -> None:
        with self._lock:
            known = address in self._known
            self._known.discard(address)
        if known and self._listener is not None:
            self._listener.left(address)

    def _on_scheduler_event(self, event: object) -> None:
        """Take what the scheduler logs; called in the client's own loop."""
        message = _message_of(event)
        if isinstance(message, dict) and message.get("action") == "remove-worker":
            self._report_left(str(message.get("worker")))

    def _on_news(self, event: object) -> None:
        message = _message_of(event)
        if message == ECHO:
            self._unheard = 0
        elif isinstance(message, bytes) and self._listener is not None:
            self._listener.news(message)

    def submit(
        self, address: str, name: str, lease: str, message: bytes, chunk: bytes, done: OnResult
    ) -> None:
        """Run a member's function as a task on one machine."""
        try:
            future = self._client.submit(
                run_call,
                name,
                lease,
                self._topic,
                message,
                chunk,
                key=lease,
                workers=[address],
                allow_other_workers=False,
                pure=False,
            )
        except Exception as error:
            done(MachineLost(why_lost(error)))
            return
        with self._lock:
            self._futures[lease] = future
        future.add_done_callback(lambda ended: self._finish(lease, ended, done))

    def _finish(self, lease: str, future: Any, done: OnResult) -> None:
        with self._lock:
            if self._futures.pop(lease, None) is None:
                return
        try:
            answer = future.result(timeout=CONNECT_S)
        except Exception as error:  # whatever Dask raises: the task gave no answer
            if type(error).__name__ in DROPPED:
                # Tasks that nobody here cancelled are dropped with their scheduler, which may have
                # been started again meanwhile. Its machines are not at fault, and have left it.
                self._report_closed(f"the scheduler {self.address} has dropped its tasks")
                return
            done(MachineLost(why_lost(error)))
            return
        done(answer if isinstance(answer, bytes) else MachineLost("it sent no answer in bytes"))

    def beside(self, address: str, name: str, message: bytes, done: OnResult) -> None:
        """Run a member's function at once, beside the task that the machine works on."""

        def work() -> None:
            try:
                answers = self._client.run(
                    run_beside, name, message, workers=[address], on_error="ignore"
                )
                answer = answers.get(address)
            except Exception as error:
                done(MachineLost(why_lost(error)))
                return
            done(answer if isinstance(answer, bytes) else MachineLost("it did not answer"))

        with contextlib.suppress(RuntimeError):  # it is being closed
            self._beside.submit(work)

    def cancel(self, lease: str) -> None:
        """Cancel a task that is not wanted any more; its result is not reported."""
        with self._lock:
            future = self._futures.pop(lease, None)
        if future is None:
            return

        def work() -> None:
            with contextlib.suppress(Exception):
                future.cancel()

        with contextlib.suppress(RuntimeError):  # it is being closed, which cancels everything
            self._beside.submit(work)

    def publish(self, coordinator: str, status: bytes) -> None:
        """Keep what a coordinator says of itself in the scheduler's metadata."""

        def work() -> None:
            with contextlib.suppress(Exception):
                self._client.set_metadata([STATUS_KEY, coordinator], status.decode())

        with contextlib.suppress(RuntimeError):  # it is being closed
            self._beside.submit(work)

    def published(self) -> dict[str, bytes]:
        """Return what all coordinators said of themselves."""
        found = ask(self._client, "get_metadata", keys=[STATUS_KEY], default={})
        if not isinstance(found, dict):
            return {}
        return {
            str(name): text.encode()
            for name, text in itertools.islice(found.items(), MOST_COORDINATORS)
            if isinstance(text, str) and len(text) <= MOST_STATUS_CHARACTERS
        }

    def close(self) -> None:
        """Leave the cluster."""
        self._closing.set()
        self._beside.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(Exception):
            self._client.close(timeout=2)


SEND_INTERVAL_S = 0.001
"""Seconds between two messages of a client to its scheduler at least; chosen. Dask's own 10 ms,
which gather small messages, were most of what a task waited for: one result is released just before
the next task is sent (``python -m tests.benchmarks.bench_farm overhead``)."""
WATCH_S = 2.0
"""Seconds between two looks at the list of workers; chosen."""
ANSWER_S = 15.0
"""Seconds in which a scheduler answers; chosen: with ``SCHEDULER_MISSED``, one that is frozen is
known within a minute."""
ECHO = "collage-farm-echo"
"""What a client sends to itself through the scheduler."""
MOST_UNHEARD = 15
"""Echoes that may fail to come back before the scheduler counts as gone; chosen: half a minute."""
MOST_MACHINES = 10_000
"""Workers of a scheduler that are looked at; chosen."""
MOST_COORDINATORS, MOST_STATUS_CHARACTERS = 1000, 1 << 24
"""Coordinators whose published status is read, and its length; chosen: with 200 machines it has
60,000 characters."""
SCHEDULER_MISSED = 3
"""Failed looks in a row after which the scheduler counts as gone; chosen."""
