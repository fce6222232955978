"""The engine as another process uses it: over pipes, cancelled, killed, asked out of turn."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from collage_engine.records.versions import SERVICE_PROTOCOL
from collage_engine.store.store import Store
from tests.support.caches import fresh_cache

ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "resources" / "models" / "mnist.onnx"


class Client:
    """Speaks the protocol with an engine process."""

    def __init__(self, cache: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "collage_engine", "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "COLLAGE_CACHE_DIR": str(cache)},
        )
        self.events: list[dict[str, Any]] = []
        self._ids = itertools.count(1)

    def _read(self) -> dict[str, Any]:
        """Return the next answer or event."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the engine ended"
        return json.loads(line)

    def call(self, method: str, **params: Any) -> Any:
        assert self.process.stdin is not None
        number = next(self._ids)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        while (answer := self._read()).get("id") != number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(answer["error"]["message"])
        return answer["result"]

    def wait_for(self, method: str) -> dict[str, Any]:
        while not any(event["method"] == method for event in self.events):
            self.events.append(self._read())
        return next(event for event in self.events if event["method"] == method)["params"]

    def close(self) -> None:
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()


@pytest.fixture
def client(tmp_path):
    found = Client(fresh_cache(tmp_path))
    found.call("hello", version=SERVICE_PROTOCOL, client="test")
    yield found
    found.close()


def test_a_run_over_the_wire(client):
    opened = client.call("model.open", path=str(MNIST))
    handle = opened["document"]
    graph = client.call("graph.get", document=handle)["graph"]
    assert len(graph["nodes"]) == opened["model"]["nodes"]
    settings = {"toolchains": ["onnxruntime"], "threads": 1, "in_place": False}
    run = client.call("run.start", document=handle, settings=settings)
    done = client.wait_for("done")
    assert done["event"] == {"type": "done", "state": "finished", "run": run, "reason": None}
    placed = client.call("runs.list", document=handle)[0]
    assert placed["placement"]["measured_us"] > 0
    costs = client.call("candidates.query", document=handle, nodes=[0])
    assert all(0 in c["nodes"] for c in costs["candidates"])
    assert any(c["cost"]["state"] == "measured" for c in costs["candidates"])

    # A run leaves out what cannot be in the best placement; with the pin it can.
    for nodes in ([0], list(range(1, opened["model"]["nodes"]))):
        client.call("measure.now", document=handle, nodes=nodes)
    pin = {"kind": "exactly", "nodes": [0], "text": "p"}
    client.call("pins.set", document=handle, pins=[pin])
    found = client.call("run.search", document=handle, settings=settings)
    assert [0] in [part["nodes"] for part in found["placement"]["partitions"]]
    assert found["verdicts"][0]["state"] == "honoured"
    # Against the placement that is shown, which another cover may undercut by estimate.
    more_us = found["placement"]["estimated_us"] - placed["placement"]["estimated_us"]
    assert found["verdicts"][0]["price_us"] == pytest.approx(more_us, abs=0.01)

    fresh = client.call("measure.now", document=handle, nodes=[0, 1])
    assert any(c["cost"]["state"] == "measured" for c in fresh["candidates"])
    with pytest.raises(RuntimeError, match="cannot be one partition"):
        client.call("measure.now", document=handle, nodes=[0, 3])
    inside = client.call(
        "inside.query", document=handle, candidate=fresh["candidates"][0]["id"], node=0
    )
    assert "conv2d" in inside["relax"]
    (_, rows), *_ = inside["sections"]
    assert dict(rows)["shape"] == "8×1×5×5 float32" and len(dict(rows)["histogram"]) == 40


def test_a_cancel_is_answered_at_once_and_keeps_what_was_measured(client, tmp_path):
    handle = client.call("model.open", path=str(MNIST))["document"]
    client.call("run.start", document=handle, settings={"toolchains": ["onnxruntime", "tvm"]})
    client.wait_for("measured")
    began = time.monotonic()
    client.call("run.cancel", document=handle)
    assert time.monotonic() - began < 20, "the run would go on for minutes"
    done = client.wait_for("done")
    assert done["event"]["state"] == "cancelled"
    with Store(tmp_path / "measurements.db") as store:
        assert store.info().measurements > 0
    # The engine lives on and knows what was measured.
    candidates = client.call("candidates.query", document=handle)["candidates"]
    assert any(c["cost"].get("state") == "measured" for c in candidates)
