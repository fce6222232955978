"""The service's wire: what a client may send, what it gets."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from collage_engine.records import protocol as p
from collage_engine.records.pin import Pin
from collage_engine.records.toolchain import Device
from collage_engine.records.versions import SERVICE_PROTOCOL
from collage_engine.service import server as server_module
from collage_engine.service.engine import Engine
from collage_engine.service.run_client import Ticket
from collage_engine.service.server import Server
from collage_engine.store.session_file import save_session
from collage_engine.support.errors import Cancelled, CollageError, InfeasibleError, UsageError
from tests.unit.test_session import a_document


class FakeEngine:
    """Answers a few methods; never computes."""

    def __init__(self, listener):
        self.listener = listener
        self.cancelled = threading.Event()
        self.has_pins = False

    def cancel_request(self, ticket: Ticket) -> None:
        ticket.cancelled.set()

    def request(self, params: p.Request[Any], ticket: Ticket | None = None) -> Any:
        method = params.method
        if method == "model.open":
            assert ticket is not None and ticket.cancelled.wait(60)
            raise Cancelled("stopped by the user")
        if isinstance(params, p.Hello):
            if params.version != SERVICE_PROTOCOL:
                raise UsageError("another version")
            return p.HelloAnswer(
                engine="0",
                host="h",
                device=Device(name="cpu", description="d"),
            )
        if method == "run.cancel":
            self.cancelled.set()
            return None
        if method == "graph.get":
            assert self.cancelled.wait(60), "the cancel was not served while this request ran"
            return {"graph": "late"}
        if method == "run.search":
            raise InfeasibleError("no placement exists", {"pins": [0]})
        if method == "runs.list":
            raise RuntimeError("a defect")
        if method == "pins.set":
            time.sleep(0.1)
            self.has_pins = True
            return params
        if method == "candidates.query":
            return {"has_pins": self.has_pins}
        raise AssertionError(method)

    def close(self) -> None:
        pass


@pytest.fixture
def talk(monkeypatch):
    """Send lines, wait for that many answers, return them decoded."""
    monkeypatch.setattr(server_module, "Engine", FakeEngine)

    def run(*messages: Any) -> list[dict[str, Any]]:
        lines = [m if isinstance(m, bytes) else json.dumps(m).encode() for m in messages]
        sink = io.BytesIO()
        server = Server(_Source(lines, sink, len(lines)), sink)
        server.serve()
        return [json.loads(line) for line in sink.getvalue().splitlines()]

    return run


class _Source:
    """Lines, then end of file only once everything was answered."""

    def __init__(self, lines: list[bytes], sink: io.BytesIO, answers: int) -> None:
        self._lines, self._sink, self._answers = lines, sink, answers

    def __iter__(self):
        for k, line in enumerate(self._lines):
            yield line + b"\n"
            if k == 0:
                self._wait(1)
        self._wait(self._answers)

    def _wait(self, answers: int) -> None:
        end = time.monotonic() + 60
        while self._sink.getvalue().count(b"\n") < answers and time.monotonic() < end:
            time.sleep(0.005)


def request(identity: int, method: str, params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}


HELLO = request(1, "hello", {"version": SERVICE_PROTOCOL, "client": "test"})


def test_what_is_asked_after_new_pins_finds_them(talk):
    """Requests are worked on in threads, of which a later one may otherwise be the first."""
    answers = talk(
        HELLO,
        request(2, "pins.set", {"document": "d", "pins": []}),
        request(3, "candidates.query", {"document": "d"}),
    )
    (found,) = (answer["result"] for answer in answers if answer["id"] == 3)
    assert found == {"has_pins": True}


def test_an_opening_is_cancelled_by_its_id_without_a_document(talk):
    answers = talk(
        HELLO,
        request("seven", "model.open", {"path": "m.onnx"}),
        request(8, "request.cancel", {"request": "seven"}),
        request(9, "request.cancel", {"request": "seven"}),
    )
    by_id = {answer["id"]: answer for answer in answers}
    assert by_id["seven"]["error"]["data"]["kind"] == "Cancelled"
    assert by_id[8]["result"] is None and by_id[9]["result"] is None


def test_wrong_version_is_refused(talk):
    (answer,) = talk(request(1, "hello", {"version": 999}))
    assert answer["error"]["data"]["kind"] == "UsageError"


@pytest.mark.parametrize(
    ("message", "code", "says"),
    [
        (b"{nonsense", -32700, "not a JSON document"),
        (b'{"method": "\xff"}', -32700, "not UTF-8"),
        (b"[" * 100_000, -32600, "got `array`"),
        ({"jsonrpc": "2.0", "id": 2}, -32600, "missing required field `method`"),
        (request(2, "fly"), -32601, "known are hello"),
        (request(2, "run.search", {}), -32602, "document"),
        (
            request(2, "pins.set", {"document": "d", "pins": [{"kind": "maybe", "nodes": []}]}),
            -32602,
            "$.pins[0].kind",
        ),
    ],
)
def test_wrong_messages_get_an_error_that_says_where(talk, message, code, says):
    answers = talk(HELLO, message)
    error = answers[1]["error"]
    assert error["code"] == code
    assert says in error["message"]


def test_an_engine_error_keeps_its_kind_and_details(talk):
    answer = talk(HELLO, request(2, "run.search", {"document": "d"}))[1]
    assert answer["id"] == 2
    assert answer["error"]["message"] == "no placement exists"
    assert answer["error"]["data"] == {
        "kind": "InfeasibleError",
        "exit_status": 1,
        "details": {"pins": [0]},
    }


def test_a_defect_is_an_error_not_a_silence(talk, caplog):
    answer = talk(HELLO, request(2, "runs.list", {"document": "d"}))[1]
    assert answer["error"]["code"] == -32603
    assert "RuntimeError: a defect" in caplog.text


def test_a_cancel_is_served_while_a_long_request_runs(talk):
    answers = talk(
        HELLO,
        request(2, "graph.get", {"document": "d"}),
        request(3, "run.cancel", {"document": "d"}),
    )
    assert [a["id"] for a in answers] == [1, 3, 2]


# -- requests whose values nobody checked before -----------------------------------------


@pytest.fixture
def opened(tmp_path):
    """A real engine with one document; no request of these tests gets as far as its children."""
    engine = Engine()
    path = tmp_path / "a.collage"
    save_session(a_document(), path)
    handle = engine.request(p.SessionOpen(path=str(path))).document
    yield engine, handle
    engine.close()


@pytest.mark.parametrize("path", ["a\0b", "~nobody-at-all/x", "x" * 300, "", " "])
def test_a_path_that_no_file_can_have_is_told_in_a_sentence(opened, path):
    engine, handle = opened
    for params in (p.ModelOpen(path=path or "\0"), p.SessionOpen(path=path)):
        with pytest.raises(CollageError):
            engine.request(params)
    with pytest.raises(CollageError):
        engine.request(p.SessionSave(document=handle, path=path))


@pytest.mark.parametrize("name", ["..", "/", "x" * 300, "a\0b"])
def test_a_name_that_no_file_can_have_is_told_in_a_sentence(opened, name):
    with pytest.raises(UsageError, match="is no name of a file"):
        opened[0].request(p.ModelOpen(content=b"", name=name))


@pytest.mark.parametrize("node", [-1, 1, 10**9])
def test_a_node_that_is_none_is_told_in_a_sentence(opened, node):
    engine, handle = opened
    for params in (
        p.InsideQuery(document=handle, node=node),
        p.Explain(document=handle, node=node),
        p.MeasureNow(document=handle, nodes=(node,)),
    ):
        with pytest.raises(UsageError, match="there is no node"):
            engine.request(params)


def test_a_pin_that_names_nothing_is_refused(opened):
    engine, handle = opened
    with pytest.raises(UsageError, match="names no toolchain"):
        engine.request(p.PinsSet(document=handle, pins=(Pin(kind="on", nodes=(0,)),)))


def test_sigterm_ends_the_engine_in_order(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    server = subprocess.Popen(
        [sys.executable, "-m", "collage_engine", "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert server.stdin is not None and server.stdout is not None
    request = {"jsonrpc": "2.0", "id": 1, "method": "hello", "params": {}}
    server.stdin.write(json.dumps(request).encode() + b"\n")
    server.stdin.flush()
    assert b"result" in server.stdout.readline()
    assert list(tmp_path.glob("collage-process-*"))
    server.terminate()
    assert server.wait(60) == 128 + 15
    assert not list(tmp_path.iterdir())
    server.communicate()
