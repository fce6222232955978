"""A farm of Dask on loopback: whole runs on its machines, and what is lost when processes die."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import msgspec
import onnx
import psutil
import pytest

pytest.importorskip("tvm")
pytest.importorskip("distributed")

import collage_engine
from collage_engine.api import load_session
from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.cli.main import main
from collage_engine.farm import processes as certificates
from collage_engine.farm.client import Farm, keep, model_contents
from collage_engine.farm.processes import kind_of_machine
from collage_engine.farm.task import FarmTask, run_task
from collage_engine.records.settings import RunSettings
from collage_engine.store.store import Store
from collage_engine.support.errors import CollageError, FarmError, UsageError
from collage_engine.support.files import resource

ROOT = Path(collage_engine.__file__).resolve().parents[1]
MNIST = resource("models/mnist.onnx")
QUICK = RunSettings(toolchains=("tvm", "onnxruntime"), threads=1, budget_s=10)
STARTS_S = 60.0
"""Seconds for a scheduler or worker to start on a busy machine."""


class Cluster:
    """A scheduler and workers on loopback, each worker with a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = folder / "certificate.pem"
        certificates.make_certificate(self.certificate)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"tls://127.0.0.1:{port}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start("serve", "--host", "127.0.0.1", "--port", str(port))

    def join(self, name: str) -> subprocess.Popen[bytes]:
        return self._start("join", self.address, "--name", name, cache=self.folder / name)

    def _start(self, *arguments: str, cache: Path | None = None) -> subprocess.Popen[bytes]:
        environment = os.environ | {"COLLAGE_FARM_CERTIFICATE": str(self.certificate)}
        if cache is not None:
            # Compiled adapters are shared: compiling them again would take a minute.
            shared = Path(os.environ.get("COLLAGE_CACHE_DIR") or Path.home() / ".cache/collage")
            cache.mkdir()
            for entry in shared.iterdir() if shared.is_dir() else ():
                if entry.name not in ("farm", "logs") and not entry.name.startswith("measurements"):
                    (cache / entry.name).symlink_to(entry)
            environment["COLLAGE_CACHE_DIR"] = str(cache)
        log = (self.folder / f"log{len(self.processes)}").open("wb")
        command = [sys.executable, "-m", "collage_engine", "farm", *arguments]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def connect(self, workers: int) -> Farm:
        ends = time.monotonic() + STARTS_S
        while True:
            try:
                farm = Farm(self.address, self.certificate)
                break
            except FarmError:
                assert time.monotonic() < ends, self.logs()
                time.sleep(0.3)
        if workers:
            farm._client.wait_for_workers(workers, timeout=STARTS_S)
        return farm

    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("log*")))

    def close(self) -> None:
        for process in self.processes:
            end_tree(process)


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for a process and everything below it."""
    if process.poll() is not None:
        return
    top = psutil.Process(process.pid)
    for each in (*top.children(recursive=True), top):
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A farm of which a test may kill what it likes."""
    made = Cluster(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def farm_of_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A farm with the machine ``one``, which stays as it is."""
    made = Cluster(tmp_path_factory.mktemp("farm"))
    made.join("one")
    yield made
    made.close()


def copies(folder: Path, *names: str) -> list[FarmTask]:
    folder.mkdir(exist_ok=True)
    for name in names:
        shutil.copy(MNIST, folder / f"{name}.onnx")
    return [FarmTask(name=n, model=folder / f"{n}.onnx", settings=QUICK) for n in names]


@pytest.mark.slow
def test_models_are_placed_on_the_machines_and_everything_comes_back(
    farm_of_one: Cluster, tmp_path: Path
) -> None:
    lines: list[str] = []
    tasks = copies(tmp_path / "models", "first", "second")
    with farm_of_one.connect(1) as farm, Store(tmp_path / "store.db") as store:
        assert farm.kinds == (kind_of_machine(),)
        with pytest.raises(UsageError, match=kind_of_machine()):
            next(farm.place(tasks, kind="abacus"))
        answers = {}
        for task, answer in farm.place(tasks, kind=kind_of_machine(), on_event=lines.append):
            keep(answer, store, tmp_path / f"{task.name}.collage", tmp_path / "out" / task.name)
            answers[task.name] = answer
        rows = store.info().measurements
    assert set(answers) == {"first", "second"} and not any(a.failure for a in answers.values())
    for name, answer in answers.items():
        assert answer.run is not None and answer.run.placement is not None
        assert run_artifact(tmp_path / "out" / name)["max_rel_error"] < 1e-4
        with load_session(tmp_path / f"{name}.collage") as session:
            assert [run.id for run in session.runs] == [answer.run.id]
    assert rows > 0
    assert {line.partition(":")[0] for line in lines} == {
        "first.onnx on one",
        "second.onnx on one",
    }


def command(cluster: Cluster, folder: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Return a command that places on a farm, and the environment for it."""
    line = [sys.executable, "-m", "collage_engine", "place", *arguments]
    line += ["--farm", cluster.address, "--toolchains", "tvm,onnxruntime", "--threads", "1"]
    environment = os.environ | {
        "COLLAGE_FARM_CERTIFICATE": str(cluster.certificate),
        "COLLAGE_CACHE_DIR": str(folder / "cache"),
    }
    return [*line, "--budget", "10s", "--json"], environment


@pytest.mark.slow
def test_a_machine_that_is_killed_loses_its_tasks_and_nothing_is_lost_in_a_new_folder(
    cluster: Cluster, tmp_path: Path
) -> None:
    first = cluster.join("one")
    models = [str(task.model) for task in copies(tmp_path / "models", "first", "second")]
    new = tmp_path / "deep" / "new"
    line, environment = command(cluster, tmp_path, *models, "-o", str(new))
    with cluster.connect(1) as farm:
        placing = subprocess.Popen(line, cwd=ROOT, env=environment, stdout=PIPE, stderr=PIPE)
        assert placing.stderr is not None
        begun = placing.stderr.readline()
        assert b"first.onnx on one" in begun or b"second.onnx on one" in begun, begun
        cluster.join("two")
        farm._client.wait_for_workers(2, timeout=STARTS_S)
        end_tree(first)
        printed, errors = placing.communicate(timeout=2 * STARTS_S + 60)
    assert placing.returncode == 0, errors
    document = json.loads(printed)
    assert set(document["runs"]) == {"first", "second"} and not document["failed"]
    for name in ("first", "second"):
        assert run_artifact(new / name)["max_rel_error"] < 1e-4
        assert (new / f"{name}.collage").is_file()


def test_where_results_cannot_be_written_nothing_is_placed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [str(task.model) for task in copies(tmp_path / "models", "first", "second")]
    (tmp_path / "text").write_text("no session")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "second.collage").write_text("no session")
    for where, says in (("text", "no folder can be made"), ("out", "would overwrite a file")):
        arguments = [*models, "-o", str(tmp_path / where), "--farm", "tls://127.0.0.1:1"]
        assert main(["place", *arguments]) != 0
        assert says in capsys.readouterr().err, where


@pytest.mark.slow
def test_what_had_ended_is_kept_when_the_scheduler_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.join("one")
    tasks = copies(tmp_path / "models", "first", "second")
    with cluster.connect(1) as farm, Store(tmp_path / "store.db") as store:
        placing = farm.place(tasks)
        _, answer = next(placing)
        keep(answer, store, None, tmp_path / "out")
        rows = store.info().measurements
        end_tree(cluster.scheduler)
        with pytest.raises(FarmError, match="scheduler was lost"):
            next(placing)
        assert store.info().measurements == rows > 0
    assert run_artifact(tmp_path / "out")["max_rel_error"] < 1e-4


def test_strangers_are_kept_out(farm_of_one: Cluster, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    certificates.make_certificate(other)
    with pytest.raises(FarmError, match="cannot be reached"):
        Farm(farm_of_one.address, other)
    listening = {
        connection.laddr.ip
        for connection in psutil.Process(farm_of_one.scheduler.pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_a_run_that_is_not_wanted_any_more_stops() -> None:
    task = FarmTask(
        name="m", model=MNIST, settings=msgspec.structs.replace(QUICK, budget_s=120), pins=()
    )
    files = {MNIST.name: MNIST.read_bytes()}
    began = time.monotonic()
    answer = run_task(task, files, lambda: time.monotonic() - began < 2, lambda text: None)
    assert answer.run is None and answer.failure and not answer.artifact
    assert time.monotonic() - began < 60


def test_what_cannot_be_placed_is_said_in_a_sentence() -> None:
    def failure(files: dict[str, bytes], **other: str) -> str:
        task = FarmTask(name="m", model=Path("m.onnx"), settings=QUICK, **other)
        answer = run_task(task, files, lambda: True, lambda text: None)
        assert answer.run is None
        return answer.failure

    assert "m.onnx" in failure({"m.onnx": b"rubbish"})
    assert "version" in failure({}, version="0.0.1")
    assert "leads out" in failure({"../m.onnx": b"", "m.onnx": b""})


def test_weights_beside_a_model_travel_with_it(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.load(MNIST), path, save_as_external_data=True, location="weights.bin")
    contents = model_contents(path)
    assert contents.keys() == {path.name, "weights.bin"}
    with pytest.raises(UsageError, match="no file"):
        model_contents(tmp_path / "missing.onnx")


def test_a_certificate_that_others_can_read_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.pem"
    assert certificates.make_certificate(path) and not certificates.make_certificate(path)
    certificates.security(path)
    path.chmod(0o644)
    with pytest.raises(FarmError, match="chmod 600"):
        certificates.security(path)
    path.chmod(0o600)
    path.write_text("rubbish")
    with pytest.raises(FarmError, match="holds no certificate"):
        certificates.security(path)
    with pytest.raises(CollageError, match="cannot be read"):
        certificates.security(tmp_path / "missing")
