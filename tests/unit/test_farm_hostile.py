"""What answers in a scheduler's place, and machines that answer with something else than asked."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("distributed", reason="the extra `farm` is not installed")

from distributed.protocol import dumps
from distributed.protocol.utils import pack_frames

from collage_engine.cli.main import main
from collage_engine.farm import carrier as carrier_module
from collage_engine.farm.carrier import (
    ECHO,
    MOST_MACHINES,
    MOST_MESSAGE_BYTES,
    MOST_STATUS_CHARACTERS,
    Address,
    DaskCarrier,
    connect,
)
from collage_engine.farm.coordinator import Coordinator
from collage_engine.farm.messages import News, Nothing, encode
from collage_engine.records.errors import FarmError, ModelError
from tests.support.farm_carrier import ENGINE, LIBRARIES, FakeCarrier, Sent
from tests.unit.test_farm_coordinator import QUICK, Work, machine, states, until

GREETING = {"compression": None, "python": (3, 11, 0), "pickle-protocol": 5}
NO_SCHEDULER = "what answers there is no scheduler of Dask"


def framed(message: object) -> bytes:
    """A message as Dask sends it."""
    packed = bytes(pack_frames(dumps(message)))
    return struct.pack("Q", len(packed)) + packed


def greeting_then(message: object) -> bytes:
    return framed(GREETING) + framed(message) * 5


@contextlib.contextmanager
def answering(content: bytes | None) -> Iterator[str]:
    """A server that sends this to everybody, or ends the connection (None); its address."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken, _ = server.accept()
                    if content is None:
                        taken.close()
                        continue
                    kept.append(taken)
                    with contextlib.suppress(OSError):
                        taken.sendall(content)

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for taken in kept:
                taken.close()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 1000, NO_SCHEDULER),
        (b"SSH-2.0-OpenSSH_9.2\r\n", NO_SCHEDULER),
        (struct.pack("Q", MOST_MESSAGE_BYTES + 1) + b"x" * 1000, NO_SCHEDULER),
        (bytes(4096), NO_SCHEDULER),
        (struct.pack("QQQ", 66, 1, 50) + b"\xc1" * 50, NO_SCHEDULER),
        (greeting_then(None), NO_SCHEDULER),
        (greeting_then({"workers": 7}), NO_SCHEDULER),
        (framed("OK"), NO_SCHEDULER),
        (None, "it ended the connection"),
    ],
)
def test_what_answers_and_is_no_scheduler_gets_a_sentence(content, sentence) -> None:
    with answering(content) as address, pytest.raises(FarmError, match=sentence):
        connect(Address(address))


def test_what_says_nothing_is_not_waited_for_for_ever(monkeypatch, capsys) -> None:
    monkeypatch.setattr(carrier_module, "GREETING_S", 1.0)
    with answering(b"") as address:
        assert main(["farm", "status", address]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "it takes the connection and says nothing" in said


class Scheduler:
    """The requests of a scheduler's that ``DaskCarrier`` uses."""

    address = "tls://scheduler"

    def __init__(self) -> None:
        self.answer: object = {"workers": {"tls://a": {"name": "a"}}}
        self.metadata: object = {}
        self.subscribed: dict[str, Callable[[Any], None]] = {}
        self.echoes = True

    def identity(self, n_workers: int) -> object:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def log_event(self, topic: str, msg: object) -> None:
        if self.echoes:
            self.subscribed[topic]((1.0, msg))

    def get_metadata(self, keys: list[str], default: object) -> object:
        return self.metadata


class Client:
    """Stands in for Dask's client."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()

    def sync(self, request: Any, callback_timeout: float, **arguments: Any) -> Any:
        return request(**arguments)

    def subscribe_topic(self, topic: str, handler: Callable[[Any], None]) -> None:
        self.scheduler.subscribed[topic] = handler

    def close(self, timeout: float) -> None:
        pass


class Heard:
    """Notes what a carrier reports."""

    def __init__(self) -> None:
        self.said: queue.Queue[tuple[str, ...]] = queue.Queue()

    def joined(self, address: str, name: str) -> None:
        self.said.put(("joined", address, name))

    def left(self, address: str) -> None:
        self.said.put(("left", address))

    def news(self, message: bytes) -> None:
        self.said.put(("news", message.decode()))

    def closed(self, reason: str) -> None:
        self.said.put(("closed", reason))


@pytest.fixture
def watched(monkeypatch) -> Iterator[tuple[Client, Heard]]:
    monkeypatch.setattr(carrier_module, "WATCH_S", 0.01)
    client, heard = Client(), Heard()
    made = heard.carrier = DaskCarrier(client, "topic")
    made.start(heard)
    assert heard.said.get(timeout=10) == ("joined", "tls://a", "a")
    yield client, heard
    made.close()


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"workers": None},
        {"workers": 5},
        {"workers": dict.fromkeys(range(MOST_MACHINES + 1))},
        MemoryError(),
        ValueError("odd"),
    ],
)
def test_a_scheduler_that_answers_garbage_counts_as_gone(watched, answer) -> None:
    client, heard = watched
    client.status = "closed"
    client.scheduler.answer = answer
    assert heard.said.get(timeout=10) == ("closed", "the scheduler tls://scheduler is gone")


def test_a_scheduler_that_passes_nothing_on_counts_as_gone(watched) -> None:
    client, heard = watched
    client.scheduler.echoes = False
    what, reason = heard.said.get(timeout=10)
    assert what == "closed" and reason.endswith("passes no messages on")


def test_workers_and_events_of_odd_forms_are_taken_as_far_as_they_go(watched) -> None:
    client, heard = watched
    client.scheduler.answer = {"workers": {"tls://a": 5, 7: {"name": ["b"]}}}
    assert heard.said.get(timeout=10) == ("joined", "7", "['b']")
    for topic in ("topic", "all"):
        for event in (None, 5, (), (1, 2, 3), (1.0, None), (1.0, {"action": 5}), (1.0, ECHO)):
            client.scheduler.subscribed[topic](event)
    client.scheduler.subscribed["topic"]((1.0, b"news"))
    assert heard.said.get(timeout=10) == ("news", "news")


class Cancelled:
    """A future whose scheduler is gone."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.callbacks.append(callback)

    def result(self, timeout: float) -> None:
        raise type("FutureCancelledError", (Exception,), {})("scheduler-connection-lost")

    def cancel(self) -> None:
        pass


def test_a_task_that_its_scheduler_has_dropped_is_no_fault_of_its_machine(watched) -> None:
    """A scheduler that is restarted at once has nothing but this to be known by."""
    client, heard = watched
    carrier, lost = heard.carrier, []
    future = Cancelled()
    client.submit = lambda *arguments, **options: future
    carrier.submit("tls://a", "run", "lease", b"", b"", lost.append)
    (ended,) = future.callbacks
    ended(future)
    what, reason = heard.said.get(timeout=10)
    assert what == "closed" and "has dropped its tasks" in reason and not lost


def test_a_task_that_was_cancelled_here_says_nothing(watched) -> None:
    client, heard = watched
    carrier, lost = heard.carrier, []
    future = Cancelled()
    client.submit = lambda *arguments, **options: future
    carrier.submit("tls://a", "run", "lease", b"", b"", lost.append)
    carrier.cancel("lease")
    future.callbacks[0](future)
    assert heard.said.empty() and not lost


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        (None, {}),
        ([1], {}),
        ({"a": 5, "b": "{}", "c": "x" * (MOST_STATUS_CHARACTERS + 1)}, {"b": b"{}"}),
    ],
)
def test_what_coordinators_publish_is_read_within_limits(metadata, found) -> None:
    client = Client()
    client.scheduler.metadata = metadata
    assert DaskCarrier(client, "topic").published() == found


class Garbled(FakeCarrier):
    """Machines that answer one function with something else."""

    def __init__(self, function: str, body: bytes) -> None:
        super().__init__()
        self.function, self.body = function, body

    def submit(self, address, name, lease, message, chunk, done) -> None:
        if name == self.function:
            Sent(address, name, lease, message, chunk, done).answer(self.body)
        else:
            super().submit(address, name, lease, message, chunk, done)


BODIES = [b"", b"\xff", b"[]", b"[" * 100_000, b'{"hashes": 5}', b'{"name": 5}']


@pytest.mark.parametrize("body", BODIES)
def test_a_machine_that_does_not_say_what_it_is_gets_no_task_and_holds_nothing_up(body) -> None:
    farm = Coordinator(Garbled("hello", body), ENGINE, LIBRARIES, QUICK)
    try:
        farm.carrier.join("a")  # type: ignore[attr-defined]
        until(lambda: states(farm).get("a") == "refused")
        reason = machine(farm, "a").reason
        assert "it does not say what it is" in reason or "another version" in reason
        ended, _ = Work(farm).end()
        assert isinstance(ended, FarmError), "no machine is waited for"
    finally:
        farm.close()


@pytest.mark.parametrize("body", BODIES)
def test_a_machine_that_does_not_say_what_it_lacks_ends_the_task(body, tmp_path) -> None:
    model = tmp_path / "model"
    model.write_bytes(b"model")
    farm = Coordinator(Garbled("have", body), ENGINE, LIBRARIES, QUICK)
    try:
        farm.carrier.join("a")  # type: ignore[attr-defined]
        ended, _ = Work(farm, files={"0" * 64: model}).end()
        assert isinstance(ended, FarmError) and "sent no Have" in str(ended)
        until(lambda: states(farm)["a"] == "idle")
    finally:
        farm.close()


def test_a_model_that_is_removed_while_it_is_sent_ends_its_task(tmp_path) -> None:
    farm = Coordinator(FakeCarrier(), ENGINE, LIBRARIES, QUICK)
    try:
        farm.carrier.join("a")  # type: ignore[attr-defined]
        ended, _ = Work(farm, files={"0" * 64: tmp_path / "gone"}).end()
        assert isinstance(ended, ModelError) and "gone cannot be read" in str(ended)
        until(lambda: states(farm)["a"] == "idle")
    finally:
        farm.close()


def test_news_that_are_none_change_nothing() -> None:
    fake = FakeCarrier()
    farm = Coordinator(fake, ENGINE, LIBRARIES, QUICK)
    try:
        fake.join("a")
        work = Work(farm)
        (sent,) = fake.take()
        for message in [*BODIES, encode(News(lease="another")), encode(Nothing())]:
            farm.news(message)
        sent.answer(b"1")
        assert work.end() == (b"1", "a")
    finally:
        farm.close()
