"""A real farm over TLS on this machine: who gets in, what listens, what survives."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("distributed", reason="the extra `farm` is not installed")
pytest.importorskip("cryptography", reason="the extra `farm` is not installed")

from collage_engine.farm.carrier import Address, connect
from collage_engine.farm.certificates import keep_certificate, make_certificate
from collage_engine.farm.cluster import own_address
from collage_engine.farm.coordinator import Task
from collage_engine.farm.farms import Connection, DaskFarms, look_at
from collage_engine.records.errors import CollageError, FarmError
from collage_engine.records.settings import RunSettings
from collage_engine.store.store import Store
from tests.support.farm_cluster import ROOT, FarmProcesses

MNIST = ROOT / "resources" / "models" / "mnist.onnx"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("farm")


@pytest.fixture(scope="module")
def farm(folder) -> Iterator[FarmProcesses]:
    alone = len(os.sched_getaffinity(0)) < 2
    processes = FarmProcesses(folder, ["one", "two"], host=own_address(), shares=alone)
    yield processes
    processes.close()


@pytest.fixture
def cache(farm, monkeypatch) -> None:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(farm.cache))


@pytest.fixture
def connection(farm, cache) -> Iterator[Connection]:
    made = Connection(farm.address)
    made.coordinator.wait_for_pool("", 240)
    yield made
    made.close()


def sleep(connection: Connection, seconds: float) -> queue.Queue[tuple[bytes | CollageError, str]]:
    ends: queue.Queue[tuple[bytes | CollageError, str]] = queue.Queue()
    connection.coordinator.submit(
        Task(
            name="sleep",
            message=repr(seconds).encode(),
            done=lambda body, machine: ends.put((body, machine)),
        )
    )
    return ends


def speaks_http(ip: str, port: int) -> bool:
    with socket.create_connection((ip, port), timeout=5) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        plain.settimeout(5)
        answer = b""
        with contextlib.suppress(OSError):
            answer = plain.recv(100)
    return answer.startswith(b"HTTP")


def test_strangers_are_kept_out_with_a_sentence(farm, tmp_path) -> None:
    strange = tmp_path / "certificate.pem"
    keep_certificate(make_certificate(), strange)
    with pytest.raises(FarmError, match="certificate is another one"):
        connect(Address(farm.address, strange))
    with pytest.raises(FarmError, match="cannot be reached"):
        connect(Address(farm.address.replace("tls://", "tcp://")))
    with pytest.raises(FarmError, match="neither an address such as"):
        connect(Address(str(tmp_path / "no-scheduler.json")))


def test_only_tls_listens_beyond_loopback(farm, connection) -> None:
    beyond = [
        (one.laddr.ip, one.laddr.port)
        for process in farm.everything()
        for one in process.net_connections(kind="inet")
        if one.status == "LISTEN" and not one.laddr.ip.startswith("127.")
    ]
    joined = len(farm.processes) - 1
    assert len(beyond) == joined + 1, "a port of the scheduler and one of each worker"
    assert not any(speaks_http(ip, port) for ip, port in beyond)


def test_without_tls_a_farm_listens_on_loopback_only(farm) -> None:
    words = ["farm", "serve", "--no-tls", "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "collage_engine", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=farm.environment,
        timeout=60,
    )
    assert done.returncode == 2 and "listens on loopback only" in done.stderr


def test_the_status_of_a_farm_that_nobody_uses_shows_its_pools(farm, cache) -> None:
    """No coordinator is there to ask: the machines are asked what they are."""
    ends = time.monotonic() + 300
    while not (status := look_at(farm.address)).pools or any(
        one.state != "idle" for one in status.machines
    ):
        assert time.monotonic() < ends, status
    assert {one.name for one in status.machines} == {"one", "two"}
    assert "onednn" in status.pools[0].toolchains and status.machines[0].pool


def test_a_second_machine_of_a_name_is_told_to_take_another_one(farm, tmp_path) -> None:
    words = ["farm", "join", farm.address, "--name", "one"]
    # Another temporary folder than that of the members beside: its locks are not theirs.
    with subprocess.Popen(
        [sys.executable, "-m", "collage_engine", *words],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=farm.environment | {"TMPDIR": str(tmp_path)},
    ) as second:
        try:
            assert second.stderr is not None
            said = second.stderr.readline()
        finally:
            second.terminate()
    assert "a machine that is called one already" in said and "with --name" in said


def test_a_cluster_of_ones_own_is_used_through_its_client(farm, cache) -> None:
    farms = DaskFarms()
    client = connect(Address(farm.address))
    try:
        address = farms.use(client)
        assert farms.jobs(RunSettings(farm=address)) is not None
        assert farms.status(address).address == farm.address
    finally:
        farms.close()


def test_dasks_own_commands_make_a_farm_that_a_scheduler_file_names(farm, cache, tmp_path) -> None:
    """Scheduler and worker know nothing of this program but where its package lies."""
    file = tmp_path / "scheduler.json"
    http = ["--dashboard-address", "127.0.0.1:0"]
    scheduler = ["scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file)]
    worker = ["worker", "--scheduler-file", str(file), "--nthreads", "1", "--memory-limit", "0"]
    worker += ["--no-nanny", "--name", "plain"]
    # Another temporary folder than that of the members beside: its locks are not theirs.
    environment = farm.environment | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with contextlib.ExitStack() as started:
        for words in (scheduler, worker):
            command = [sys.executable, "-P", "-m", "dask", *words, *http]
            with (tmp_path / f"{words[0]}.log").open("wb") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            started.callback(process.wait)
            started.callback(process.kill)
        ends = time.monotonic() + 120
        while not file.exists():
            assert time.monotonic() < ends, (tmp_path / "scheduler.log").read_text()
            time.sleep(0.1)
        connection = Connection(str(file))
        started.callback(connection.close)
        pool = connection.coordinator.wait_for_pool("", 300)
        assert pool.machines == ("plain",) and "onednn" in pool.toolchains
        assert isinstance(sleep(connection, 0.1).get(timeout=60)[0], bytes)
        listening = {
            (one.laddr.ip, one.laddr.port)
            for process in psutil.Process().children()
            if str(file) in process.cmdline()
            for one in process.net_connections(kind="inet4")
            if one.status == "LISTEN"
        }
        http = {(ip, port) for ip, port in listening if speaks_http("127.0.0.1", port)}
        assert len(http) == 2, "a port of the scheduler and one of the worker"
        assert {ip for ip, _ in http} == {"127.0.0.1"}


def test_a_task_whose_coordinator_is_gone_ends(farm, connection) -> None:
    """It looks into Dask's own state of the task (``member_calls.is_wanted``)."""
    other = Connection(farm.address)
    other.coordinator.wait_for_pool("", 240)
    sleep(other, 300)
    ends = time.monotonic() + 30
    while not any(m.state == "measuring" for m in other.coordinator.status().machines):
        assert time.monotonic() < ends
        time.sleep(0.05)
    other.close()
    # All machines are free for this coordinator again: as many tasks as there are machines end.
    waiting = [sleep(connection, 0.1) for _ in connection.coordinator.status().machines]
    for one in waiting:
        assert isinstance(one.get(timeout=60)[0], bytes)


def test_the_task_of_a_killed_worker_ends_elsewhere_and_the_worker_comes_back(
    farm, connection
) -> None:
    ends = time.monotonic() + 240
    while [m.state for m in connection.coordinator.status().machines] != ["idle", "idle"]:
        assert time.monotonic() < ends, connection.coordinator.status()
        time.sleep(0.1)
    tasks = [sleep(connection, 3.0) for _ in range(2)]
    ends = time.monotonic() + 30
    while not all(m.state == "measuring" for m in connection.coordinator.status().machines):
        assert time.monotonic() < ends
        time.sleep(0.02)
    worker = farm.worker("one")
    assert worker is not None
    worker.send_signal(signal.SIGKILL)
    assert all(isinstance(one.get(timeout=60)[0], bytes) for one in tasks)
    assert [m.state for m in connection.coordinator.status().machines].count("lost") <= 1
    ends = time.monotonic() + 240
    while not all(m.state == "idle" for m in connection.coordinator.status().machines):
        assert time.monotonic() < ends, connection.coordinator.status()
        time.sleep(0.1)


def test_two_models_are_placed_at_once_and_every_cost_says_where_it_was_measured(
    farm, connection, folder
) -> None:
    out, other = folder / "out", folder / "other.onnx"
    shutil.copy(MNIST, other)
    words = ["place", str(MNIST), str(other), "-o", str(out), "--farm", farm.address, "--json"]
    words += ["--toolchains", "tvm,onednn", "--budget", "30s", "--threads", "1"]
    words += ["--no-in-place", "--confirm", "quick"]
    with subprocess.Popen(
        [sys.executable, "-m", "collage_engine", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=farm.environment,
    ) as started:
        seen = []
        while started.poll() is None:
            with contextlib.suppress(FarmError):
                seen.append(look_at(farm.address))
            time.sleep(1)
        assert started.stdout is not None and started.stderr is not None
        text, said = started.stdout.read(), started.stderr.read().decode()
    assert started.returncode == 0, said
    document = json.loads(text)
    assert not document["failed"] and set(document["runs"]) == {str(MNIST), str(other)}
    for path, run in document["runs"].items():
        assert run["artifact"] == str(out / Path(path).stem)
        assert (out / Path(path).stem / "manifest.json").is_file()
    placed = {one.model: one.machine for status in seen for one in status.placements}
    assert placed == {Path(p).name: run["measured_on"] for p, run in document["runs"].items()}
    assert sorted(placed.values()) == ["one", "two"], "each machine placed one of them"
    costs = [m.cost for m in Store(farm.cache / "measurements.db").measurements()]
    # The models are equal, and so are their keys: of each key the later cost is kept.
    assert costs and {cost.machine for cost in costs} <= {"one", "two"}
    done = subprocess.run(
        [sys.executable, "-m", "collage_engine", "run", str(out / "mnist")],
        capture_output=True,
        cwd=ROOT,
        env=farm.environment,
    )
    assert done.returncode == 0, done.stderr
