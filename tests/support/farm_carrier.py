"""Defines a carrier without a network: machines are objects that a test makes answer, or leave."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from collage_engine.farm.carrier import Listener, MachineLost, OnResult
from collage_engine.farm.messages import Envelope, Have, Hello, Nothing, encode, read

ENGINE = "engine"
LIBRARIES = {"python": "3.11", "distributed": "1"}


def hello(**changes: object) -> Hello:
    """Returns what a machine of the usual kind says."""
    facts = {
        "engine": ENGINE,
        "libraries": LIBRARIES,
        "processor": "Zen 4, 2 cores",
        "cores": 2,
        "fingerprint": "f" * 16,
        "toolchains": {"tvm": "0.27", "onednn": "3"},
        "adapters": {"tvm": "a", "onednn": "b"},
        "compiler": "0.27 llvm",
    }
    return Hello(**{**facts, **changes})  # type: ignore[arg-type]


@dataclass
class Sent:
    """A message that is in flight."""

    address: str
    name: str
    lease: str
    message: bytes
    chunk: bytes
    done: OnResult

    def answer(self, body: bytes = b"", **envelope: object) -> None:
        """Give the answer."""
        self.done(encode(Envelope(body=body, **envelope)))  # type: ignore[arg-type]

    def lose(self, reason: str = "killed") -> None:
        """Have its machine die under it."""
        self.done(MachineLost(reason))


@dataclass
class FakeCarrier:
    """Keeps what is sent until a test answers it; greetings and files are answered at once."""

    hellos: dict[str, Hello] = field(default_factory=dict)
    answers: dict[str, Callable[[Sent], None]] = field(default_factory=dict)
    """The functions that answer at once, by the name of the task's function."""
    address: str = "fake://farm"
    sent: list[Sent] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    asked_beside: list[tuple[str, str, bytes]] = field(default_factory=list)
    has_files: set[tuple[str, str]] = field(default_factory=set)
    puts: list[tuple[str, int]] = field(default_factory=list)
    listener: Listener | None = None

    def __post_init__(self) -> None:
        self.changed = threading.Condition()

    def start(self, listener: Listener) -> None:
        self.listener = listener

    def join(self, name: str, said: Hello | None = None) -> None:
        """Has a machine join."""
        self.hellos[name] = said or hello()
        assert self.listener is not None
        self.listener.joined(name, name)

    def leave(self, name: str) -> None:
        """Has a machine leave."""
        assert self.listener is not None
        self.listener.left(name)

    def submit(
        self, address: str, name: str, lease: str, message: bytes, chunk: bytes, done: OnResult
    ) -> None:
        one = Sent(address, name, lease, message, chunk, done)
        if name == "hello":
            one.answer(encode(self.hellos[address]))
        elif name == "have":
            wanted = read(message, Have).hashes
            one.answer(encode(Have(tuple(h for h in wanted if (address, h) not in self.has_files))))
        elif name == "put":
            self.puts.append((address, len(chunk)))
            one.answer(encode(Nothing()))
        elif name in self.answers:
            self.answers[name](one)
        else:
            with self.changed:
                self.sent.append(one)
                self.changed.notify_all()

    def beside(self, address: str, name: str, message: bytes, done: OnResult) -> None:
        self.asked_beside.append((address, name, message))
        done(encode(Envelope(body=encode(Nothing()))))

    def cancel(self, lease: str) -> None:
        self.cancelled.append(lease)

    def publish(self, coordinator: str, status: bytes) -> None:
        pass

    def published(self) -> dict[str, bytes]:
        return {}

    def close(self) -> None:
        pass

    def take(self, count: int = 1, timeout_s: float = 10.0) -> list[Sent]:
        """Returns the next messages in flight, once there are so many."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.sent) >= count, timeout_s), self.sent
            taken, self.sent = self.sent[:count], self.sent[count:]
        return taken
