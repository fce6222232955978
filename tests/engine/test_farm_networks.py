"""A farm whose members are in network namespaces of their own: cut off, frozen, and at work."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="the extra `farm` is not installed")
pytest.importorskip("cryptography", reason="the extra `farm` is not installed")

from collage_engine.farm.coordinator import Task
from collage_engine.farm.farms import Connection
from collage_engine.records.errors import CollageError
from tests.support.farm_cluster import ROOT, FarmProcesses
from tests.support.farm_networks import Networks, possible

MNIST = ROOT / "resources" / "models" / "mnist.onnx"
ELSEWHERE_S = 60.0
"""Seconds within which the task of a machine that does not answer must begin on another one."""
PATIENCE_S = 300.0
"""Seconds for a member to join, on a busy machine; chosen."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "COLLAGE_LONG_TESTS" not in os.environ,
        reason="it waits for two minutes; run it with COLLAGE_LONG_TESTS=1",
    ),
    pytest.mark.skipif(not possible(), reason="no network namespaces can be made here"),
]


@pytest.fixture(scope="module")
def networks() -> Iterator[Networks]:
    made = Networks(["one", "two"])
    yield made
    made.close()


@pytest.fixture(scope="module")
def farm(networks, tmp_path_factory) -> Iterator[FarmProcesses]:
    processes = FarmProcesses(
        tmp_path_factory.mktemp("networks"),
        networks.names,
        host=networks.address,
        shares=True,
        prefixes=networks.prefixes,
    )
    yield processes
    processes.close()


@pytest.fixture
def connection(farm, monkeypatch) -> Iterator[Connection]:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(farm.cache))
    made = Connection(farm.address)
    until_idle(made)
    yield made
    made.close()


def states(connection: Connection) -> dict[str, str]:
    return {one.name: one.state for one in connection.coordinator.status().machines}


def until_idle(connection: Connection) -> None:
    ends = time.monotonic() + PATIENCE_S
    while states(connection) != {"one": "idle", "two": "idle"}:
        assert time.monotonic() < ends, connection.coordinator.status()
        time.sleep(0.1)


class Begun:
    """A task that sleeps for so long, where it began and how it ended."""

    def __init__(self, connection: Connection, seconds: float) -> None:
        self.begins: queue.Queue[str] = queue.Queue()
        self.ends: queue.Queue[tuple[bytes | CollageError, str]] = queue.Queue()
        connection.coordinator.submit(
            Task(
                name="sleep",
                message=repr(seconds).encode(),
                began=lambda name, address: self.begins.put(name),
                done=lambda body, name: self.ends.put((body, name)),
            )
        )


def begins_elsewhere(connection: Connection, disturb) -> float:
    """Disturb the machine of a task that runs; seconds until the task begins on the other one."""
    task = Begun(connection, 3.0)
    first = task.begins.get(timeout=30)
    time.sleep(1.0)  # it gives its first sign of life
    began = time.monotonic()
    disturb(first)
    second = task.begins.get(timeout=ELSEWHERE_S)
    took = time.monotonic() - began
    assert second != first
    body, machine = task.ends.get(timeout=60)
    assert isinstance(body, bytes) and machine == second
    print(f"elsewhere after {took:.1f} s")
    return took


def test_the_task_of_a_machine_that_is_cut_off_begins_elsewhere(networks, connection) -> None:
    cut: list[str] = []

    def disturb(name: str) -> None:
        cut.append(name)
        networks.cut(name)

    try:
        assert begins_elsewhere(connection, disturb) < ELSEWHERE_S
    finally:
        for name in cut:
            networks.mend(name)
    until_idle(connection)


def test_the_task_of_a_frozen_machine_begins_elsewhere(farm, connection) -> None:
    frozen: list[str] = []

    def disturb(name: str) -> None:
        frozen.append(name)
        for process in farm.everybody(name):
            process.send_signal(signal.SIGSTOP)

    try:
        assert begins_elsewhere(connection, disturb) < ELSEWHERE_S
    finally:
        for name in frozen:
            for process in farm.everybody(name):
                process.send_signal(signal.SIGCONT)
    until_idle(connection)


def test_a_model_is_placed_on_members_that_only_the_network_connects(
    farm, connection, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["place", str(MNIST), "-o", str(out), "--farm", farm.address, "--json"]
    words += ["--toolchains", "tvm,onednn", "--budget", "60s", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "collage_engine", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=farm.environment,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["measured_on"] in ("one", "two")
    assert (out / "manifest.json").is_file()
