"""Mutated requests to a running service: each gets one answer in time, and the service lives on.

Requests that write files or measure are left out: a mutated path must not hit a real file, and a
run takes longer than a case may.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import psutil

from collage_engine.records.versions import SERVICE_PROTOCOL
from tests import zoo
from tests.fuzz.campaign import CASE_BYTES, CONTROL, LONGEST, ROOT, WRONG, Finding
from tests.fuzz.mutations import mutate_bytes, mutate_json

SETTINGS = {"toolchains": ["tvm"], "threads": 1, "budget_s": 1.0, "tolerance": 1e-3}
MODEL = zoo.build("dynamic_batch").SerializeToString()
INPUT = {"image": [2, 3, 8, 8]}
BY_VALUE = {"content": base64.b64encode(MODEL).decode(), "name": "m.onnx", "shapes": INPUT}
REQUESTS: dict[str, dict[str, Any]] = {
    "model.dimensions": BY_VALUE,
    "shapes.open": {"choices": [{"dims": {"batch": 2}}, {"shapes": {"image": [3, 3, 8, 8]}}]},
    "shapes.list": {},
    "request.cancel": {"request": 1},
    "graph.get": {},
    "pins.set": {"pins": [{"kind": "exactly", "nodes": [0], "text": "p"}]},
    "run.preflight": {"settings": SETTINGS},
    "run.cancel": {},
    "run.search": {"settings": SETTINGS},
    "candidates.query": {"nodes": [0]},
    "explain": {"node": 0},
    "inside.get": {"candidate": "tvm:0000000000", "node": 0},
    "runs.list": {},
    "runs.edit": {"run": "r1", "name": "n", "note": ""},
    "runs.compare": {"a": "first", "b": "last"},
    "export.report": {"run": "last", "format": "html"},
}
"""Method → sensible parameters, beside the document's handle."""
ANSWER_S = 240.0
"""Seconds that a request may take; chosen: a mutated ``run.preflight`` may be about all toolchains,
which the service then probes for the first time, and a probe alone may take 180 s."""
OF_NO_DOCUMENT = ("model.dimensions", "request.cancel")


class Service:
    """The service's process with a small model open.

    Attributes:
        document: The handle of a document that is open.
    """

    def __init__(self, folder: Path) -> None:
        model = folder / "m.onnx"
        model.write_bytes(MODEL)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "collage_engine.service"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "COLLAGE_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT)},
        )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.ask({"id": 1, "method": "hello", "params": {"version": SERVICE_PROTOCOL}})
        about = {"path": str(model), "shapes": INPUT}
        opened = self.ask({"id": 2, "method": "model.open", "params": about})
        self.document: str = opened["result"]["document"]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            if "id" in message:
                self._answers.put(message)
        self._answers.put(None)

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def next_answer(self) -> dict[str, Any]:
        """The next answer; an exception where there is none in time, or the service has ended."""
        answer = self._answers.get(timeout=ANSWER_S)
        if answer is None:
            raise EOFError(f"the service ended with status {self.process.wait()}")
        return answer

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self.send(json.dumps({"jsonrpc": "2.0", **message}).encode())
        return self.next_answer()

    def rss(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def protocol_campaign(numbers: range) -> Iterator[Finding | None]:
    """Run cases; like ``campaign``. A finding holds its own request."""
    with tempfile.TemporaryDirectory(prefix="collage-fuzz-") as scratch:
        service: Service | None = None
        try:
            for number in numbers:
                service = service or Service(Path(scratch))
                line = _request(Random(f"protocol {number}"), service.document, 10 + number)
                before = service.rss()
                what = _judged(service, line, number)
                if what is None and service.rss() - before > CASE_BYTES:
                    what = f"it took {(service.rss() - before) >> 20} MiB"
                if what is None:
                    yield None
                    continue
                service.close()
                service = None
                yield Finding("protocol", number, f"{what}; request: {line[:400]!r}")
        finally:
            if service is not None:
                service.close()


def _request(random: Random, document: str, number: int) -> bytes:
    method = random.choice(list(REQUESTS))
    params = dict(REQUESTS[method])
    if method not in OF_NO_DOCUMENT:
        params["document"] = document
    message: Any = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    if random.random() < 0.85:
        message["params"] = mutate_json(random, params)
    else:
        message = mutate_json(random, message)
    line = json.dumps(message).encode()
    return mutate_bytes(random, line).replace(b"\n", b" ") if random.random() < 0.1 else line


def _judged(service: Service, line: bytes, number: int) -> str | None:
    """Send a request, then one that is right; what is wrong with the answers, if anything.

    A message that has lost its id, or that a blank line became, may have no answer: the answer to
    the right request behind it shows that the service has read it.
    """
    after, end = 10**7 + number, time.monotonic() + ANSWER_S
    try:
        service.send(line)
        _ask_for_runs(service, after)
        moved, waits_for = False, _id_of(line)
        while True:
            answer = service.next_answer()
            if answer["id"] == waits_for:
                waits_for = None
            if answer["id"] != after:
                if why := _wrong(answer):
                    return why
                if entries := _entries(answer):
                    service.document, moved = entries[0]["document"], True
            elif time.monotonic() < end and (moved or waits_for is not None):
                # What it was asked of may be none of the shapes, and closed. Requests that take
                # long are answered after it.
                time.sleep(0.01)
                _ask_for_runs(service, after)
                moved = False
            elif waits_for is not None:
                raise queue.Empty
            else:
                return None if "result" in answer else f"afterwards: {answer}"
    except queue.Empty:
        return f"no answer after {ANSWER_S:g} s"
    except (EOFError, BrokenPipeError) as error:
        return str(error)


def _id_of(line: bytes) -> int | str | None:
    """The id of a request that will have an answer of its own; None: it may have none."""
    try:
        message = msgspec.json.decode(line)  # as the service does: NaN is no JSON
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    known = isinstance(message, dict) and message.get("jsonrpc") == "2.0"
    number = message.get("id") if known and message.get("method") in list(REQUESTS) else None
    return number if type(number) in (int, str) else None


def _ask_for_runs(service: Service, number: int) -> None:
    right = {"jsonrpc": "2.0", "id": number, "method": "runs.list"}
    service.send(json.dumps({**right, "params": {"document": service.document}}).encode())


def _entries(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The documents that belong together, where that is what the answer tells."""
    result = answer.get("result")
    return result.get("entries", []) if isinstance(result, dict) else []


def _wrong(answer: dict[str, Any]) -> str | None:
    if "error" not in answer:
        return None
    code, text = answer["error"]["code"], answer["error"]["message"]
    if code == -32603 or (found := WRONG.search(text)) is not None:
        return f"error {code}: {text[:400]}"
    assert found is None
    if len(text) > LONGEST:
        return f"a sentence of {len(text)} characters: {text[:200]}"
    return "control characters in a sentence" if CONTROL.search(text) and code != -32700 else None
