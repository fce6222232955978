"""What the engine says when its pipeline process meets a full disk, a defect, or its end."""

from __future__ import annotations

import errno
import signal
import threading
import time
from typing import Any

import pytest

from collage_engine.machine.worker import RemoteError
from collage_engine.records import protocol as p
from collage_engine.records.protocol import Job, ModelDimensions, ModelOpen, RunStart
from collage_engine.records.settings import RunSettings
from collage_engine.run import child
from collage_engine.service.engine import HANDLERS
from collage_engine.service.run_client import PipelineClient, Ticket
from collage_engine.support.errors import Cancelled, CollageError, ModelError
from tests.unit.slow_jobs import Ask, Die, LimitedSleep, Sleep


def job_of(request: p.ChildRequest[Any, p.Outcome]) -> Job[p.ChildRequest[Any, p.Outcome]]:
    return Job(request=request, path="/m.onnx")


NO_SLEEP = job_of(Sleep(seconds=0))
NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NO_ROOM, "no space left on the disk .* set TMPDIR"),
        (OSError(errno.EACCES, "Permission denied", "/x/y"), "^/x/y: Permission denied$"),
    ],
)
def test_what_the_system_refuses_is_a_sentence(monkeypatch, error, says):
    def do(job: object, control: object) -> None:
        raise error

    monkeypatch.setitem(child.DO, ModelDimensions, do)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(CollageError, match=says) as raised:
        child.serve(job_of(ModelDimensions()), lambda _: None)
    assert "Errno" not in str(raised.value)


def test_a_defect_is_called_one_and_leaves_no_scratch():
    client = PipelineClient("test")
    scratch = client._scratch.path.parent
    try:
        with pytest.raises(RemoteError, match="a defect of Collage Explorer, in its step 'sleep'"):
            client.job(NO_SLEEP)
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


LONG_S = 600.0
"""Seconds of a job that has not ended by itself when a test looks, however slow the machine is."""
WAITS_S = 100.0
"""Seconds after which a test gives up waiting."""


class Asked(threading.Thread):
    """A job asked for by a thread of its own."""

    def __init__(self, client: PipelineClient, seconds: float, **more: bool) -> None:
        super().__init__(daemon=True)
        self.client, self.seconds, self.more = client, seconds, more
        self.ticket = Ticket()
        self.asleep = threading.Event()
        self.said: object = None
        self.start()

    def run(self) -> None:
        try:
            job = job_of(Sleep(seconds=self.seconds, **self.more))
            self.said = self.client.job(
                job, ticket=self.ticket, on_event=lambda _: self.asleep.set()
            )
        except CollageError as error:
            self.said = error

    def ended(self) -> object:
        self.join(WAITS_S)
        assert not self.is_alive()
        return self.said


def until(condition) -> None:
    end = time.monotonic() + WAITS_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_job_is_cancelled_while_its_child_is_only_starting(client):
    asked = Asked(client, 60)
    until(lambda: client.busy)
    assert client.cancel(asked.ticket)
    assert isinstance(asked.ended(), Cancelled)
    assert client.job(NO_SLEEP) == "slept"


def test_a_running_job_is_asked_to_end_and_keeps_its_child(client):
    assert client.job(NO_SLEEP) == "slept"
    child = client._worker.pid
    asked = Asked(client, LONG_S)
    assert asked.asleep.wait(WAITS_S)
    assert client.cancel()
    assert isinstance(asked.ended(), Cancelled)
    assert client._worker.pid == child


def test_a_job_that_does_not_listen_is_killed(client):
    asked = Asked(client, LONG_S, stubborn=True)
    assert asked.asleep.wait(WAITS_S)
    client.cancel(asked.ticket)
    assert isinstance(asked.ended(), Cancelled)


def test_a_second_stop_ends_a_job_that_keeps_at_once(client):
    assert client.job(NO_SLEEP) == "slept"
    asked = Asked(client, LONG_S)
    assert asked.asleep.wait(WAITS_S)
    assert client.keep()
    time.sleep(0.3)
    assert asked.is_alive(), "it was not cancelled"
    assert client.keep()
    assert isinstance(asked.ended(), Cancelled)


@pytest.mark.parametrize("stop", ["keep", "cancel"])
def test_stopping_one_that_waits_leaves_the_one_that_runs(client, stop):
    first = Asked(client, LONG_S, keeps=True)
    assert first.asleep.wait(WAITS_S)
    second = Asked(client, LONG_S)
    until(lambda: len(client._queue) == 2)
    assert getattr(client, stop)(second.ticket)
    assert isinstance(second.ended(), Cancelled), "there is nothing of it to keep"
    time.sleep(0.3)
    assert first.is_alive(), "it was not stopped"
    assert client.keep(first.ticket) and first.ended() == "kept"


def test_a_ticket_cancelled_beforehand_never_starts(client):
    ticket = Ticket()
    assert client.cancel(ticket)
    with pytest.raises(Cancelled):
        client.job(job_of(Sleep(seconds=60)), ticket=ticket)
    assert not client.busy and client._worker.generation == 0


def test_jobs_that_wait_at_the_close_start_no_child(client):
    scratch = client._scratch.path.parent
    first = Asked(client, 60)
    until(lambda: client._worker.pid is not None)
    second = Asked(client, 60)
    until(lambda: len(client._queue) == 2)
    client.close()
    assert isinstance(first.ended(), Cancelled) and isinstance(second.ended(), Cancelled)
    with pytest.raises(Cancelled):
        client.job(NO_SLEEP)
    assert client._worker.generation == 1 and not client._worker.alive
    assert not scratch.exists()


def test_a_job_beyond_its_time_is_ended_and_the_next_one_runs(client):
    with pytest.raises(CollageError, match=r"limited\.sleep. was ended after 12 s"):
        client.job(job_of(LimitedSleep(seconds=600, stubborn=True)))
    assert client.job(NO_SLEEP) == "slept"


def test_an_opening_that_takes_too_much_memory_is_ended_and_names_the_file(client):
    client._worker.memory_limit_bytes = 200 << 20
    with pytest.raises(
        ModelError, match=r"^/large\.onnx cannot be opened: used more than .*memory"
    ):
        client.job(Job(request=ModelOpen(), path="/large.onnx"))
    assert Asked(client, 0.0).ended() == "slept"


def test_every_job_is_done_and_has_a_limit():
    kinds = {kind for kind in HANDLERS if issubclass(kind, p.ChildRequest)}
    assert kinds == child.DO.keys()
    assert all(kind.limit_s for kind in kinds)


# -- toolchains that end the child -----------------------------------------------------------

WAYS = ("abort", "segfault", "exit", "hang")


def test_toolchains_that_end_the_process_that_asks_are_left_out_and_the_job_goes_on(client):
    asked = job_of(Ask(toolchains=("good", *WAYS)))
    left_out = client.job(asked)
    assert left_out.keys() == set(WAYS)
    for reason in left_out.values():
        assert "the process that asked it about the model ended" in reason
    assert client.job(asked) == left_out, "later jobs leave them out too"


@pytest.fixture
def mark(tmp_path, monkeypatch):
    """Return a file with a letter for each child that came to a place where it may be killed."""
    monkeypatch.setenv("COLLAGE_TEST_MARK", str(tmp_path / "mark"))
    return tmp_path / "mark"


def test_a_child_that_is_killed_from_outside_costs_no_toolchain(client, mark):
    assert client.job(job_of(Ask(toolchains=("good", "killed")))) == {}
    assert len(mark.read_text()) == 2


def test_a_child_that_dies_while_no_toolchain_is_asked_ends_the_job(client, mark):
    client.job(job_of(Ask(toolchains=("good",))))
    with pytest.raises(CollageError, match="pipeline process died during die: killed by SIGABRT"):
        client.job(job_of(Die()))
    assert len(mark.read_text()) == 1


def test_a_child_that_is_killed_from_outside_does_its_job_once_more(client, mark):
    client.job(job_of(Die(signal=signal.SIGKILL, times=1)))
    assert len(mark.read_text()) == 2
    with pytest.raises(CollageError, match=r"says nothing about the model.*memory"):
        client.job(job_of(Die(signal=signal.SIGKILL)))
    assert len(mark.read_text()) == 4


def test_an_opening_that_is_killed_from_outside_does_not_blame_the_file(client):
    with pytest.raises(CollageError, match=r"/killed\.onnx.* twice by SIGKILL") as told:
        client.job(Job(request=ModelOpen(), path="/killed.onnx"))
    assert "cannot be opened" not in str(told.value)


@pytest.mark.parametrize(("budget_s", "most_s"), [(600.0, 600.0), (10.2, 0.3)])
def test_a_run_that_is_killed_goes_on_within_its_budget(client, mark, budget_s, most_s):
    settings = RunSettings(budget_s=budget_s)
    job = job_of(RunStart(document="d", settings=settings, run="r1", spent_s=0.1))
    spent_s = client.job(job).constants["spent_s"]
    assert 0.1 < spent_s <= most_s, "it is not given the time again, and has some seconds at least"
    assert most_s < 1.0 or spent_s > 0.5
