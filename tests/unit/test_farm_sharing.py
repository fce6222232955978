"""Groups that a run shares with other machines, and what keeps strangers and Dask away."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from collage_engine.cli.main import main
from collage_engine.farm.carrier import DROPPED, Address, why_lost, why_not_started
from collage_engine.farm.certificates import (
    keep_certificate,
    make_certificate,
    security,
    take_certificate,
)
from collage_engine.farm.cluster import is_loopback
from collage_engine.farm.placing import arrived
from collage_engine.farm.pools import why_not_alike
from collage_engine.farm.worker_process import why_not_joined
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import Cost, invalid
from collage_engine.records.errors import FarmError, MeasureError, UsageError
from collage_engine.records.numbering import OperatorNumber
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.store.measurement import Measurement
from collage_engine.store.store import Store
from collage_engine.timing.exchange import Exchange, GroupsShared, group_id
from collage_engine.timing.measurer import CandidateGroup, Measurer, MeasuringResult
from collage_engine.timing.shared_measurer import SharedMeasurer

ROOT = Path(__file__).resolve().parents[2]


def key(number: int) -> str:
    return f"{number:064x}"


def candidate(number: int) -> Candidate:
    return Candidate(
        id=f"tvm:{number}",
        instance=ToolchainInstance(toolchain="tvm"),
        nodes=(OperatorNumber(number),),
        label=f"op{number}",
        key=key(number),
    )


def measured(number: int, us: float = 5.0) -> Measurement:
    return Measurement(key=key(number), cost=Cost(state="measured", median_us=us, count=3))


GROUPS = [CandidateGroup((n,), (candidate(n),)) for n in range(6)]


class LocalMeasurer:
    """Takes a while for each group, and stores what it has measured."""

    model_hash = ""
    versions: dict[str, str] = {}
    probe_reference = None

    def __init__(self, store: Store, seconds: float = 0.02) -> None:
        self.store = store
        self.seconds = seconds
        self.groups: list[int] = []

    def measure(self, groups, **_: object) -> MeasuringResult:
        found = MeasuringResult()
        for group in groups:
            time.sleep(self.seconds)
            self.groups.append(group.nodes[0])
            for one in group.candidates:
                self.store.put(Measurement(key=one.key, cost=measured(1, 7.0).cost))
                found.costs[one.key] = measured(1, 7.0).cost
                found.measured += 1
        return found


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "measurements.db")


@pytest.fixture
def exchange(tmp_path) -> Exchange:
    return Exchange(tmp_path / "exchange", create=True)


def shared(local: object, exchange: Exchange, said: list[GroupsShared]) -> SharedMeasurer:
    return SharedMeasurer(local, exchange, said.append, "f", ["tvm"])  # type: ignore[arg-type]


def test_a_group_is_measured_by_whoever_reserves_it_first(store, exchange) -> None:
    said: list[GroupsShared] = []
    local = LocalMeasurer(store)
    other = Exchange(exchange.folder)
    theirs = [group_id(GROUPS[n].candidates) for n in (1, 4)]
    assert all(other.claim(name) for name in theirs)
    assert not exchange.claim(theirs[0]), "it is reserved"
    for n, name in zip((1, 4), theirs, strict=True):
        other.deliver(name, [measured(n)])
    events: list[object] = []
    result = shared(local, exchange, said).measure(GROUPS, on_event=events.append)
    assert local.groups == [0, 2, 3, 5]
    assert {k: c.median_us for k, c in result.costs.items()} == {
        key(n): 5.0 if n in (1, 4) else 7.0 for n in range(6)
    }
    assert (result.measured, result.skipped, result.from_store) == (6, 0, 0)
    assert list(said[0].groups) == [group_id(g.candidates) for g in GROUPS]
    assert said[-1].groups == {}, "they are taken back at the end"


def test_what_others_leave_out_is_measured_here(store, exchange) -> None:
    local = LocalMeasurer(store)
    name = group_id(GROUPS[0].candidates)
    exchange.claim(name)
    exchange.deliver(name, [measured(99)])  # a key that nobody asked for
    result = shared(local, exchange, []).measure(GROUPS[:2])
    assert sorted(local.groups) == [0, 1] and key(99) not in result.costs


def test_the_run_waits_for_groups_that_others_measure_until_its_deadline(store, exchange) -> None:
    local = LocalMeasurer(store)
    name = group_id(GROUPS[0].candidates)
    exchange.claim(name)
    began = time.monotonic()
    result = shared(local, exchange, []).measure(GROUPS[:3], deadline=began + 0.5)
    assert 0.4 < time.monotonic() - began < 3 and result.skipped == 1
    threading.Timer(0.2, lambda: exchange.deliver(name, [measured(0)])).start()
    again = shared(local, exchange, []).measure(
        [*GROUPS[:1], *GROUPS[3:]], deadline=time.monotonic() + 20
    )
    assert again.costs[key(0)].median_us == 5.0


class CrashingMeasurer(LocalMeasurer):
    """Says of one group that it crashed."""

    def measure(self, groups, **options: object) -> MeasuringResult:
        found = super().measure(groups, **options)
        for group in groups:
            if group.nodes[0] == 5:
                (one,) = group.candidates
                crashed = invalid("crashed while running by itself: killed by SIGSEGV")
                self.store.put(Measurement(key=one.key, cost=crashed))
                found.costs[one.key] = crashed
                found.invalid += 1
        return found


@pytest.mark.parametrize("right_there", [True, False])
def test_what_crashed_here_is_tried_by_another_machine(
    store, exchange, right_there, monkeypatch
) -> None:
    monkeypatch.setattr("collage_engine.timing.shared_measurer.TRIED_WAIT_S", 1.0)
    first = group_id(GROUPS[0].candidates)
    exchange.claim(first)
    exchange.deliver(first, [measured(0)])  # there is another machine
    crashed = group_id(GROUPS[5].candidates)

    def share(groups: GroupsShared) -> None:
        # Offered again after it was measured here: this time the other one takes it.
        if list(groups.groups) == [crashed] and exchange.claim(crashed):
            exchange.deliver(crashed, [measured(5)] if right_there else [])

    local = CrashingMeasurer(store)
    result = SharedMeasurer(local, exchange, share, "f", ["tvm"]).measure(GROUPS)
    cost = result.costs[key(5)]
    assert (cost.state == "measured") is right_there and local.groups.count(5) == 1
    assert result.invalid == (0 if right_there else 1) and store.get(key(5)).state == cost.state


def test_known_costs_are_neither_shared_nor_measured(store, exchange) -> None:
    store.put_many([measured(n) for n in range(4)])
    said: list[GroupsShared] = []
    local = LocalMeasurer(store)
    result = shared(local, exchange, said).measure(GROUPS)
    assert result.from_store == 4 and sorted(local.groups) == [4, 5]
    assert set(said[0].groups) == {group_id(GROUPS[n].candidates) for n in (4, 5)}


def test_measuring_again_is_not_shared(store, exchange) -> None:
    said: list[GroupsShared] = []
    shared(LocalMeasurer(store), exchange, said).measure(GROUPS, again=True)
    assert not said


def test_what_a_machine_sends_is_checked_before_it_is_stored() -> None:
    good = measured(1)
    bad = [
        msgspec.structs.replace(good, key="../../x"),
        msgspec.structs.replace(good, cost=Cost()),
        msgspec.structs.replace(good, cost=Cost(state="measured", median_us=-1.0)),
        msgspec.structs.replace(good, cost=invalid("")),
    ]
    kept = arrived([good, *bad], "m1")
    assert [(m.key, m.cost.machine) for m in kept] == [(good.key, "m1")]
    named = arrived(kept, "m2")
    assert named[0].cost.machine == "m1", "the machine that measured it stays"
    with pytest.raises(MeasureError, match="sent no measurements"):
        from collage_engine.timing.exchange import checked

        checked(b'[{"key": 5}]')


def test_a_probe_of_another_machine_is_not_compared_with_the_reference_of_this_one(store) -> None:
    store.put_constant("guard", (1e-3, 1e-3))
    cost = Cost(
        state="measured", median_us=10.0, count=3, probe="guard", reading_us=200.0, probe_us=100.0
    )
    store.put_many(arrived([Measurement(key=key(1), cost=cost)], "m1"))
    assert store.get(key(1)).median_us == pytest.approx(5.0), "by its own reference, 100 µs"


def test_a_store_tells_what_was_put_and_forgets_measurements_only(store) -> None:
    told: list[Measurement] = []
    store.on_put = told.extend
    store.put(measured(1))
    store.put_constant("peaks", 5)
    store.forget_measurements()
    assert [m.key for m in told] == [key(1)]
    assert store.get(key(1)) is None and store.constant("peaks") == 5


@pytest.mark.parametrize(
    ("factor", "alike"), [(1.1, True), (0.9, True), (1.6, False), (0.5, False)]
)
def test_a_machine_is_alike_within_the_drift_of_its_pool(factor, alike) -> None:
    known = [10.0, 20.0, 30.0, 40.0]
    sentence = why_not_alike(known, [us * factor for us in known], drift=0.25)
    assert (sentence == "") is alike
    if not alike:
        assert "4 known candidates were" in sentence and "whose drift is 25 %" in sentence


def test_a_certificate_is_for_its_owner_only(tmp_path) -> None:
    pytest.importorskip("cryptography", reason="the extra `farm` is not installed")
    pytest.importorskip("distributed", reason="the extra `farm` is not installed")
    path = tmp_path / "certificate.pem"
    keep_certificate(make_certificate(), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    used = security(path)
    assert used.require_encryption
    for role in ("client", "scheduler", "worker"):
        # All that dask-jobqueue writes into the command of a worker.
        assert set(used.get_tls_config_for_role(role).values()) - {None} == {str(path)}
        assert used.get_tls_config_for_role(role)["key"] == str(path)
    path.chmod(0o640)
    with pytest.raises(FarmError, match="others can read the key"):
        security(path)
    with pytest.raises(FarmError, match="needs the certificate that"):
        security(tmp_path / "none.pem")
    with pytest.raises(FarmError, match="no certificate of a farm"):
        keep_certificate(b"hello", path)


def test_the_certificate_of_a_farm_that_is_joined_replaces_no_other_one(
    tmp_path, monkeypatch
) -> None:
    pytest.importorskip("cryptography", reason="the extra `farm` is not installed")
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("COLLAGE_FARM_CERTIFICATE", raising=False)
    ours, theirs = make_certificate(), make_certificate()
    path = take_certificate(ours)
    assert path.read_bytes() == ours and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert take_certificate(ours) == path, "the same one again"
    with pytest.raises(UsageError, match="is the certificate of another farm"):
        take_certificate(theirs)
    assert path.read_bytes() == ours
    monkeypatch.setenv("COLLAGE_FARM_CERTIFICATE", str(tmp_path / "theirs.pem"))
    assert take_certificate(theirs).read_bytes() == theirs


def _one_letter_less(content: bytes) -> bytes:
    begin = content.index(b"-----BEGIN CERTIFICATE") + 60
    return content[:begin] + content[begin + 1 :]


@pytest.mark.parametrize("damage", ["a letter", "another key", "a pipe"])
def test_a_damaged_certificate_is_named_and_replaces_no_good_one(tmp_path, damage) -> None:
    pytest.importorskip("cryptography", reason="the extra `farm` is not installed")
    pytest.importorskip("distributed", reason="the extra `farm` is not installed")
    path, good = tmp_path / "certificate.pem", make_certificate()
    keep_certificate(good, path)
    if damage == "a pipe":
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(FarmError, match="not a regular file"):
            security(tmp_path / "pipe")
        return
    border = b"-----BEGIN CERTIFICATE"
    bad = _one_letter_less(good)
    if damage == "another key":
        bad = good.split(border)[0] + border + make_certificate().split(border)[1]
    with pytest.raises(FarmError, match="is damaged"):
        keep_certificate(bad, path)
    assert path.read_bytes() == good and [p.name for p in tmp_path.iterdir()] == [path.name]
    path.write_bytes(bad)
    with pytest.raises(FarmError, match=r"certificate\.pem is damaged"):
        security(path)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[]", b"{}", b'{"address": 5}', b"[" * 100_000, None]
)
def test_what_is_no_scheduler_file_gets_a_sentence(tmp_path, content) -> None:
    path = tmp_path / "scheduler.json"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    with pytest.raises(FarmError, match="nor a scheduler file"):
        assert Address(str(path)).encrypted


def test_without_a_farm_dask_is_never_imported() -> None:
    code = (
        "import sys\n"
        "import collage_engine.api, collage_engine.cli.commands, collage_engine.cli.farm_command\n"
        "import collage_engine.service.server, collage_engine.run.child, collage_engine.run.run\n"
        "from collage_engine.farm.farms import DaskFarms\n"
        "from collage_engine.service.engine import Engine\n"
        "from collage_engine.service.protocol import Hello\n"
        "engine = Engine(farms=DaskFarms())\n"
        "engine.request('hello', Hello())\n"
        "engine.close()\n"
        "print([m for m in ('dask', 'distributed', 'tornado') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["place", "a.onnx", "b.onnx", "-o", "out"], 2, "over a farm only: name it with --farm"),
        (["place", "a.onnx", "-o", "out", "--pool", "zen"], 2, "name the farm with --farm"),
        (["farm", "status"], 2, "no farm is served on this machine"),
        (["farm", "join", "tls://127.0.0.1:1"], 1, "needs the certificate that"),
        (["farm", "serve", "--no-tls", "--host", "0.0.0.0"], 2, "listens on loopback only"),
        (["farm", "stop", "nothere"], 1, "neither an address such as"),
    ],
)
def test_what_is_asked_wrongly_of_a_farm_gets_a_sentence(
    words, status, sentence, capsys, monkeypatch, tmp_path
) -> None:
    pytest.importorskip("distributed", reason="the extra `farm` is not installed")
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path))
    assert main(words) == status
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_measurer_and_shared_measurer_are_used_alike() -> None:
    for name in ("measure", "renew", "close", "probe_reference"):
        assert hasattr(Measurer, name) and hasattr(SharedMeasurer, name)


def test_what_dask_raises_is_said_in_words() -> None:
    for module, name in (
        ("distributed.scheduler", "KilledWorker"),
        ("distributed.comm", "CommClosedError"),
        ("distributed.scheduler", "NoValidWorkerError"),
    ):
        assert hasattr(pytest.importorskip(module), name), "Dask calls it otherwise now"
        said = why_lost(type(name, (Exception,), {})("of Dask"))
        assert name not in said and " " in said
    client = pytest.importorskip("distributed.client")
    assert ("CancelledError", client.FutureCancelledError.__name__) == DROPPED
    assert issubclass(client.FutureCancelledError, client.CancelledError)
    assert why_lost(ValueError("odd")) == ("its task ended without an answer (ValueError: odd)")


def test_what_dask_logs_does_not_reach_the_screen(tmp_path) -> None:
    pytest.importorskip("distributed", reason="the extra `farm` is not installed")
    code = (
        "import logging\n"
        "from collage_engine.farm.carrier import apply_settings\n"
        "from collage_engine.machine import logs\n"
        "logs.configure()\n"
        "apply_settings()\n"
        "for name in ('distributed.scheduler', 'distributed.client', 'distributed.worker'):\n"
        "    logging.getLogger(name).critical('of Dask')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"COLLAGE_CACHE_DIR": str(tmp_path)},
        check=True,
    )
    assert not done.stdout and not done.stderr
    assert (tmp_path / "logs" / "collage.log").read_text().count("of Dask") == 3


@pytest.mark.parametrize(
    ("host", "address", "said"),
    [
        (None, "tls://10.0.0.1:8786", ["ssh HOST collage farm join tls://10.0.0.1:8786", "< /c"]),
        (None, "tls://127.0.0.1:8786", ["other machines cannot reach this one under that address"]),
        ("0.0.0.0", "tls://[::1]:8786", ["other machines cannot reach this one"]),
        ("127.0.0.1", "tls://127.0.0.1:8786", []),
    ],
)
def test_a_farm_says_how_machines_join_it_or_that_others_cannot(
    host, address, said, capsys, monkeypatch, tmp_path
) -> None:
    pytest.importorskip("distributed", reason="the extra `farm` is not installed")
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        "collage_engine.farm.cluster.serve",
        lambda host, port, tls, started: started(address, Path("/c"), False),
    )
    assert main(["farm", "serve", *(["--host", host] if host else [])]) == 0
    printed = capsys.readouterr().out
    assert all(part in printed for part in said)
    assert ("ssh HOST" in printed) is ("10.0.0.1" in address)
    assert ("cannot reach" in printed) is any("cannot reach" in part for part in said)
    assert f"joins with: collage farm join {address}" in printed


def test_a_machine_without_a_way_to_others_gets_no_warning_of_dask(tmp_path) -> None:
    """Dask looks for an address of its own by connecting to one that is far away."""
    pytest.importorskip("distributed", reason="the extra `farm` is not installed")
    code = (
        "import socket, sys\n"
        "class NoWay(socket.socket):\n"
        "    def connect(self, address):\n"
        "        raise OSError(101, 'Network is unreachable')\n"
        "socket.socket = NoWay\n"
        "from collage_engine.farm.carrier import apply_settings\n"
        "from distributed.utils import get_ip\n"
        "if 'ours' in sys.argv: apply_settings()\n"
        "print(get_ip())\n"
    )
    for settings, warns in ((["ours"], False), ([], True)):
        done = subprocess.run(
            [sys.executable, "-c", code, *settings],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | {"COLLAGE_CACHE_DIR": str(tmp_path)},
            check=True,
        )
        assert ("suitable IP address" in done.stderr) is warns, "Dask says it otherwise now"
        assert done.stdout.strip()


def test_why_a_worker_or_a_scheduler_does_not_start_is_said_in_words() -> None:
    pytest.importorskip("distributed", reason="the extra `farm` is not installed")

    def failed(cause: Exception) -> Exception:
        error = RuntimeError("Worker failed to start.")
        error.__cause__ = cause
        return error

    taken = failed(ValueError("Unexpected response: {'message': 'name taken, one'}"))
    assert "a machine that is called one already" in why_not_joined(taken, "one")
    assert "join under another name with --name" in why_not_joined(taken, "one")
    assert "does not answer" in why_not_joined(TimeoutError("after 60s"), "one")
    port = failed(OSError(98, "Address already in use"))
    assert why_not_started(port) == why_not_joined(port, "one") == "Address already in use"
    assert why_not_started(ValueError("odd")) == "odd"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("127.example.org", False),
        ("0.0.0.0", False),
        ("", False),
    ],
)
def test_loopback_is_known_by_its_addresses(host, loopback) -> None:
    assert is_loopback(host) is loopback
