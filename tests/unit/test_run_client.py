"""What the engine says when its pipeline process meets a full disk, a defect, or its end."""

from __future__ import annotations

import errno
import threading
import time

import pytest

from collage_engine.machine.cgroups import memory_bytes
from collage_engine.machine.worker import RemoteError, Worker
from collage_engine.records.errors import Cancelled, CollageError, ModelError
from collage_engine.run import child
from collage_engine.service import run_client
from collage_engine.service.run_client import PipelineClient, Ticket

NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NO_ROOM, "no space left on the disk .* set TMPDIR"),
        (OSError(errno.EACCES, "Permission denied", "/x/y"), "^/x/y: Permission denied$"),
    ],
)
def test_what_the_system_refuses_is_a_sentence(monkeypatch, error, says):
    def job(**_: object) -> None:
        raise error

    monkeypatch.setitem(child._JOBS, "open", job)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(CollageError, match=says) as raised:
        child.serve(("open", {}), lambda _: None)
    assert "Errno" not in str(raised.value)


def test_a_defect_is_called_one_and_leaves_no_scratch():
    client = PipelineClient("test")
    scratch = client._scratch.path.parent
    try:
        with pytest.raises(RemoteError, match="a defect of Collage Explorer, in its step 'nope'"):
            client.job("nope")
    finally:
        client.close()
    assert not scratch.exists()


# -- jobs that wait, are cancelled, are closed ---------------------------------------------


@pytest.fixture
def client():
    client = PipelineClient("test")
    client._worker.target = "tests.unit.slow_jobs:serve"
    yield client
    client.close()


class Asked(threading.Thread):
    """A job asked for by a thread of its own."""

    def __init__(self, client: PipelineClient, seconds: float, **more: object) -> None:
        super().__init__(daemon=True)
        self.client, self.seconds, self.more = client, seconds, more
        self.ticket = Ticket()
        self.said: object = None
        self.start()

    def run(self) -> None:
        try:
            self.said = self.client.job(
                "sleep", ticket=self.ticket, seconds=self.seconds, **self.more
            )
        except CollageError as error:
            self.said = error

    def ended(self) -> object:
        self.join(20)
        assert not self.is_alive()
        return self.said


def until(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_job_is_cancelled_while_its_child_is_only_starting(client):
    asked = Asked(client, 60)
    until(lambda: client.busy)
    assert client.cancel(asked.ticket)
    assert isinstance(asked.ended(), Cancelled)
    assert client.job("sleep", seconds=0) == "slept"


def test_a_running_job_is_asked_to_end_and_keeps_its_child(client):
    assert client.job("sleep", seconds=0) == "slept"
    child = client._worker.pid
    asked = Asked(client, 60)
    until(lambda: client.busy)
    time.sleep(0.3)
    assert client.cancel()
    assert isinstance(asked.ended(), Cancelled)
    assert client._worker.pid == child


def test_a_job_that_does_not_listen_is_killed(client):
    asked = Asked(client, 60, stubborn=True)
    until(lambda: client._worker.pid is not None)
    time.sleep(0.3)
    client.cancel(asked.ticket)
    assert isinstance(asked.ended(), Cancelled)


def test_a_running_job_is_told_to_keep_what_it_has(client):
    assert client.job("sleep", seconds=0) == "slept"
    asked = Asked(client, 60, keeps=True)
    until(lambda: client.busy)
    time.sleep(0.3)
    assert client.keep(asked.ticket)
    assert asked.ended() == "kept"


def test_a_second_stop_ends_a_job_that_keeps_at_once(client):
    assert client.job("sleep", seconds=0) == "slept"
    asked = Asked(client, 60)
    until(lambda: client.busy)
    time.sleep(0.3)
    assert client.keep()
    time.sleep(0.3)
    assert asked.is_alive(), "it was not cancelled"
    assert client.keep()
    assert isinstance(asked.ended(), Cancelled)


def test_a_job_that_waits_has_nothing_to_keep(client):
    first = Asked(client, 1.5)
    until(lambda: client.busy)
    second = Asked(client, 60)
    until(lambda: len(client._queue) == 2)
    assert client.keep(second.ticket)
    assert isinstance(second.ended(), Cancelled)
    assert first.ended() == "slept"


def test_cancelling_one_that_waits_leaves_the_one_that_runs(client):
    first = Asked(client, 1.5)
    until(lambda: client.busy)
    second = Asked(client, 60)
    until(lambda: len(client._queue) == 2)
    assert client.cancel(second.ticket)
    assert isinstance(second.ended(), Cancelled)
    assert first.is_alive(), "the answer came at once"
    assert first.ended() == "slept"


def test_a_ticket_cancelled_beforehand_never_starts(client):
    ticket = Ticket()
    assert client.cancel(ticket)
    with pytest.raises(Cancelled):
        client.job("sleep", ticket=ticket, seconds=60)
    assert not client.busy and client._worker.generation == 0


def test_there_may_be_nothing_to_cancel(client):
    assert not client.cancel()


def test_jobs_that_wait_at_the_close_start_no_child(client):
    scratch = client._scratch.path.parent
    first = Asked(client, 60)
    until(lambda: client._worker.pid is not None)
    second = Asked(client, 60)
    until(lambda: len(client._queue) == 2)
    client.close()
    assert isinstance(first.ended(), Cancelled) and isinstance(second.ended(), Cancelled)
    with pytest.raises(Cancelled):
        client.job("sleep", seconds=0)
    assert client._worker.generation == 1 and not client._worker.alive
    assert not scratch.exists()


def test_a_job_beyond_its_time_is_ended_and_the_next_one_runs(client, monkeypatch):
    monkeypatch.setitem(run_client._LIMITS_S, "sleep", 12.0)
    stuck = Asked(client, 600, stubborn=True)
    after = Asked(client, 0.0)
    assert "'sleep' was ended after 12 s" in str(stuck.ended())
    assert after.ended() == "slept"


def test_an_opening_that_takes_too_much_memory_is_ended_and_names_the_file(client):
    client._worker.memory_limit_bytes = 200 << 20
    with pytest.raises(ModelError, match=r"^/m\.onnx cannot be opened: used more than .* memory"):
        client.job("open", path="/m.onnx")
    assert Asked(client, 0.0).ended() == "slept"


def test_every_job_of_the_child_has_a_limit():
    limited = run_client._LIMITS_S.keys() | run_client._SILENCE_S.keys()
    assert child._JOBS.keys() - {"sleep", "ask", "die"} <= limited
    measuring = Worker("").memory_limit_bytes
    job = run_client.PipelineClient("test")._worker.memory_limit_bytes
    assert measuring < job < memory_bytes(), "a candidate that takes too much costs only itself"


def test_two_openings_that_never_end_are_cancelled_and_leave_both_children_free():
    clients = [PipelineClient(name) for name in ("pipeline", "side")]
    try:
        for client in clients:
            client._worker.target = "tests.unit.slow_jobs:serve"
        stuck = [Asked(client, 600, stubborn=True) for client in clients]
        time.sleep(0.1)
        for client in clients:
            for asked in stuck:
                client.cancel(asked.ticket)
        assert all(isinstance(asked.ended(), Cancelled) for asked in stuck)
        assert [Asked(client, 0.0).ended() for client in clients] == ["slept", "slept"]
    finally:
        for client in clients:
            client.close()


# -- toolchains that end the child -----------------------------------------------------------

WAYS = ("abort", "segfault", "exit", "hang")


@pytest.mark.parametrize("way", WAYS)
def test_a_toolchain_that_ends_the_process_that_asks_it_is_left_out_and_the_job_goes_on(
    client, way
):
    left_out = client.job("ask", toolchains=("good", way))
    assert left_out.keys() == {way}
    assert "the process that asked it about the model ended" in left_out[way]
    assert client.job("ask", toolchains=("good", way)) == left_out, "later jobs leave it out too"


def test_a_child_that_is_killed_from_outside_costs_no_toolchain(client, tmp_path, monkeypatch):
    monkeypatch.setenv("COLLAGE_TEST_MARK", str(tmp_path / "mark"))
    assert client.job("ask", toolchains=("good", "killed")) == {}
    assert (tmp_path / "mark").exists()


def test_several_of_them_are_left_out_one_by_one(client):
    assert client.job("ask", toolchains=WAYS).keys() == set(WAYS)


def test_a_child_that_dies_while_no_toolchain_is_asked_ends_the_job(client):
    client.job("ask", toolchains=("good",))
    with pytest.raises(CollageError, match="pipeline process died during die"):
        client.job("die")
