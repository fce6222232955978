"""A real farm judges its machines: by their speed probe, their libraries and their toolchains.

Four members on this machine: two alike, one that believes to have another ``msgspec``, and one with
a toolchain from a package that neither this process nor the others have. Their speed probes read
what the tests write into files, so that nothing here depends on how busy the machine is.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest

pytest.importorskip("distributed", reason="the extra `farm` is not installed")
pytest.importorskip("cryptography", reason="the extra `farm` is not installed")

from collage_engine.farm.admission import COMPARED
from collage_engine.farm.coordinator import FarmSettings, Task
from collage_engine.farm.farms import Connection
from collage_engine.farm.messages import (
    GroupAnswer,
    GroupRequest,
    News,
    RunRequest,
    SharedGroup,
    encode,
    read,
)
from collage_engine.farm.placing import Placing, arrived
from collage_engine.records.errors import CollageError
from collage_engine.records.farm import FarmMachine
from collage_engine.records.typed import decode
from collage_engine.service.run_client import Ticket
from collage_engine.store.store import Store
from collage_engine.toolchains.registry import known_names
from tests.support.farm_cluster import ROOT, FarmProcesses
from tests.support.farm_groups import prepare
from tests.support.toolchain_models import convolutions

MNIST = ROOT / "resources" / "models" / "mnist.onnx"
SITE = ROOT / "tests" / "support" / "farm_site"
PATIENCE_S = 300.0
"""Seconds for members to join on a busy machine; chosen."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def install_tango(folder: Path) -> Path:
    """The foreign toolchain's package in a folder, with the metadata that an installer writes."""
    shutil.copytree(
        ROOT / "tests" / "foreign_toolchain" / "collage_tango", folder / "collage_tango"
    )
    facts = folder / "collage_tango-0.3.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: collage-tango\nVersion: 0.3\n")
    (facts / "entry_points.txt").write_text(
        "[collage.toolchains]\ntango = collage_tango.toolchain:TangoToolchain\n"
    )
    return folder


class Judged(FarmProcesses):
    """The farm, and the files that hold what the speed probes read."""

    def __init__(self, folder: Path) -> None:
        self.probes = {name: folder / f"probe-{name}" for name in ("one", "two", "old", "dancer")}
        environments = {}
        for name, probe in self.probes.items():
            probe.write_text("1.0")
            environments[name] = {"PYTHONPATH": str(SITE), "COLLAGE_TEST_PROBE": str(probe)}
        environments["old"]["COLLAGE_TEST_VERSIONS"] = "msgspec=0.1"
        tango = install_tango(folder / "packages")
        environments["dancer"]["PYTHONPATH"] = os.pathsep.join((str(SITE), str(tango)))
        super().__init__(
            folder, list(self.probes), shares=True, drift=None, environments=environments
        )


@pytest.fixture(scope="module")
def farm(tmp_path_factory) -> Iterator[Judged]:
    processes = Judged(tmp_path_factory.mktemp("judged"))
    yield processes
    processes.close()


@pytest.fixture
def connection(farm, monkeypatch) -> Iterator[Connection]:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(farm.cache))
    made = Connection(farm.address, settings=FarmSettings(pause_s=0.5))
    until(lambda: len(machines(made)) == 4 and settled(made))
    yield made
    made.close()


def machines(connection: Connection) -> dict[str, FarmMachine]:
    return {one.name: one for one in connection.coordinator.status().machines}


def settled(connection: Connection) -> bool:
    return all(one.state in ("idle", "refused") for one in machines(connection).values())


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_a_machine_with_another_library_is_refused_with_a_sentence(farm, connection) -> None:
    old = machines(connection)["old"]
    assert old.state == "refused" and not old.pool
    assert (
        "other versions of the libraries that carry the work (msgspec 0.1 there and" in old.reason
    )
    done = subprocess.run(
        [sys.executable, "-m", "collage_engine", "farm", "status", farm.address],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=farm.environment | {"COLUMNS": "400"},
    )
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout and "install the same ones there as here" in done.stdout


def test_a_machine_with_a_further_toolchain_is_a_pool_of_its_own(connection) -> None:
    found = machines(connection)
    assert found["one"].pool == found["two"].pool != found["dancer"].pool
    pools = {pool.name: pool for pool in connection.coordinator.status().pools}
    assert "tango" in pools[found["dancer"].pool].toolchains
    apart = {found["dancer"].reason, found["one"].reason, found["two"].reason}
    assert any("tango is" in reason for reason in apart), apart


def test_a_machine_whose_probe_drifts_pauses_is_measured_again_and_is_set_aside(
    farm, connection
) -> None:
    requests = decode(prepare(MNIST, ("onednn",)), list[GroupRequest])
    sha256 = requests[0].model.files[requests[0].model.name]
    pool = machines(connection)["one"].pool
    begun: queue.Queue[str] = queue.Queue()
    ends: queue.Queue[tuple[bytes | CollageError, str]] = queue.Queue()

    def submit(number: int) -> None:
        connection.coordinator.submit(
            Task(
                name="group",
                message=encode(requests[number]),
                done=lambda body, name: ends.put((body, name)),
                began=lambda name, address: begun.put(name),
                pool=pool,
                files={sha256: MNIST},
                checked=True,
            )
        )

    for time_over in range(1, 4):
        farm.probes["one"].write_text("1.04")
        # Both machines get a group; what "one" measures is dropped, and measured by "two".
        for number in (0, 1):
            submit(number)
        answers = [ends.get(timeout=PATIENCE_S) for _ in range(2)]
        assert [name for _, name in answers] == ["two", "two"]
        for body, _ in answers:
            assert isinstance(body, bytes) and read(body, GroupAnswer).measurements
        assert sorted(begun.get(timeout=1) for _ in range(3)) == ["one", "two", "two"]
        one = machines(connection)["one"]
        assert "4.0 % slower than its reference" in one.reason
        if time_over < 3:
            assert one.state == "paused"
            farm.probes["one"].write_text("1.0")
            until(lambda: machines(connection)["one"].state == "idle")
        else:
            assert one.state == "set aside" and "that was so 3 times" in one.reason
    farm.probes["one"].write_text("1.0")
    time.sleep(1.0)
    assert machines(connection)["one"].state == "set aside"


def test_a_new_machine_measures_what_its_pool_has_measured_and_is_parted_if_it_is_slower(
    farm, connection, tmp_path
) -> None:
    """The run is a stand-in, which has shared its groups; machines and costs are real."""
    requests = decode(prepare(MNIST, ("onednn",)), list[GroupRequest])
    request = requests[0]
    sha256 = request.model.files[request.model.name]
    pool = machines(connection)["two"].pool
    placing = Placing(
        connection.coordinator,
        pool,
        connection.store,
        request.model,
        {sha256: MNIST},
        RunRequest(model=request.model, settings=request.settings, run_id="r1"),
        Ticket(),
        lambda event: None,
    )
    placing.machine = "two"
    groups = tuple(
        SharedGroup(id=str(number), candidates=one.candidates)
        for number, one in enumerate(requests[:COMPARED])
    )
    placing._take(
        News(
            lease="run",
            groups=groups,
            fingerprint=request.fingerprint,
            versions=request.versions,
            toolchains=request.toolchains,
            shares=True,
            limit_s=PATIENCE_S,
        ),
        "two",
    )
    ends: queue.Queue[bytes | CollageError] = queue.Queue()
    for one in requests[:COMPARED]:
        connection.coordinator.submit(
            Task(
                name="group",
                message=encode(one),
                done=lambda body, name: ends.put(body),
                pool=pool,
                machine="two",
                files={sha256: MNIST},
            )
        )
    for _ in range(COMPARED):
        body = ends.get(timeout=PATIENCE_S)
        assert isinstance(body, bytes)
        connection.store.put_many(arrived(read(body, GroupAnswer).measurements, "two"))
    connection._placings.append(placing)
    farm.environments["slow"] = farm.environments["one"] | {"COLLAGE_TEST_SLOWER": "10"}
    farm.processors["slow"] = farm.processors["one"]
    farm.join("slow")
    try:
        ends_at = time.monotonic() + PATIENCE_S
        while (
            slow := machines(connection).get("slow")
        ) is None or "times slower" not in slow.reason:
            assert time.monotonic() < ends_at, slow
            with contextlib.suppress(queue.Empty):
                placing._inbox.get(timeout=0.1)()
    finally:
        connection._placings.remove(placing)
        farm.processes["join-slow"].terminate()
    assert slow.pool == f"{pool}-slow" and slow.done >= 3
    assert slow.reason.startswith("a pool of its own: ") and "known candidates were" in slow.reason


def test_a_pool_has_a_toolchain_that_the_coordinator_lacks(farm, connection, tmp_path) -> None:
    assert "tango" not in known_names()
    model, out, cache = tmp_path / "model.onnx", tmp_path / "out", tmp_path / "cache"
    onnx.save(convolutions(), model)
    words = ["place", str(model), "-o", str(out), "--farm", farm.address, "--json"]
    words += ["--pool", machines(connection)["dancer"].pool, "--toolchains", "tvm,tango"]
    words += ["--pin", "relu=tango", "--no-in-place", "--budget", "60s"]
    certificate = str(farm.cache / "farm" / "certificate.pem")
    environment = farm.environment | {
        "COLLAGE_CACHE_DIR": str(cache),
        "COLLAGE_FARM_CERTIFICATE": certificate,
    }
    done = subprocess.run(
        [sys.executable, "-m", "collage_engine", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert run["measured_on"] == "dancer"
    assert "tango" in {part["toolchain"] for part in run["placement"]["partitions"]}
    assert (out / "manifest.json").is_file(), "the artifact was built and fetched there"
    costs = [m.cost for m in Store(cache / "measurements.db").measurements()]
    assert costs and {cost.machine for cost in costs} == {"dancer"}
    # The pool of the others says itself that it has no such toolchain.
    words[words.index("--pool") + 1] = machines(connection)["two"].pool
    refused = subprocess.run(
        [sys.executable, "-m", "collage_engine", *words, "--budget", "20s"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    assert refused.returncode == 2 and "there is no toolchain 'tango'" in refused.stderr
