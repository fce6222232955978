"""The child-process worker: answers, failures, crashes, hangs, floods, families."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from collage_engine.machine import child_process, cuda, processes
from collage_engine.machine.device import memory_bytes
from collage_engine.machine.worker import (
    RemoteError,
    Worker,
    WorkerCrashed,
    WorkerTimeout,
    call_in_child,
)
from collage_engine.support.errors import Cancelled, InfeasibleError, ToolchainError
from tests.support.worker_targets import Unpicklable

DO = "tests.support.worker_targets:do"
SPIN = "while True: pass"


def gone(pid: int) -> bool:
    """Not there any more, or only its death certificate."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_gone(*pids: int) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if all(map(gone, pids)):
            return True
        time.sleep(0.02)
    return False


def pipes() -> set[str]:
    """Of this process, each by its own number; what an earlier test left may go meanwhile."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(os.readlink(descriptor))
    return {link for link in found if link.startswith(("pipe:", "socket:"))}


@pytest.fixture
def worker():
    with Worker(DO) as made:
        yield made


def test_same_child_answers_and_large_data_goes_both_ways(worker):
    first = worker.call({"do": "pid"})
    assert first == worker.pid != os.getpid()
    size, back = worker.call({"do": "big", "bytes": b"a" * 5_000_000, "n": 7_000_000})
    assert (size, len(back)) == (5_000_000, 7_000_000)
    assert worker.call({"do": "pid"}) == first
    assert worker.generation == 1


def test_a_class_keeps_state_until_the_child_is_gone():
    with Worker("tests.support.worker_targets:Counter") as worker:
        assert [worker.call(n) for n in (1, 2, 3)] == [1, 3, 6]
        worker.close()
        assert worker.call(1) == 1
        assert worker.generation == 2


def test_environment_is_set_before_anything_is_imported():
    with Worker(DO, env={"COLLAGE_TEST_VARIABLE": "on"}) as worker:
        assert worker.call({"do": "env", "name": "COLLAGE_TEST_VARIABLE"}) == "on"
    assert "COLLAGE_TEST_VARIABLE" not in os.environ


def test_what_a_child_sent_before_it_died_arrives_also_where_it_is_read_late(worker, monkeypatch):
    receive = child_process._receive

    def late(*arguments):
        time.sleep(0.75 * child_process.END_S)
        receive(*arguments)

    monkeypatch.setattr(child_process, "_receive", late)
    heard = []
    with pytest.raises(WorkerCrashed, match="killed by SIGKILL"):
        worker.call({"do": "messages", "n": 3, "die": True}, on_message=heard.append)
    assert heard == [{"number": number} for number in range(3)]


def test_crash_names_the_signal_and_the_last_words(worker):
    with pytest.raises(WorkerCrashed) as caught:
        worker.call({"do": "segv"})
    assert str(caught.value) == "killed by SIGSEGV: libfoo: bad pointer"
    assert worker.call({"do": "pid"}) == worker.pid
    assert worker.generation == 2


def test_a_crash_without_a_word_names_the_call(worker):
    with pytest.raises(WorkerCrashed) as caught:
        worker.call({"do": "crash-silently"})
    pattern = r"killed by SIGSEGV: in string_at \(ctypes/__init__\.py, line \d+\)"
    assert re.fullmatch(pattern, str(caught.value))


def test_exit_names_the_status(worker):
    with pytest.raises(WorkerCrashed, match=r"^ended with status 7: giving up$"):
        worker.call({"do": "exit", "status": 7})
    with pytest.raises(RemoteError, match="SystemExit: 3"):
        worker.call({"do": "sys.exit", "status": 3})


def test_exceptions_are_carried(worker):
    with pytest.raises(RemoteError, match=r"^ValueError: wrong shape") as caught:
        worker.call({"do": "raise", "text": "wrong shape"})
    assert "worker_targets.py" in caught.value.__notes__[0]
    with pytest.raises(ToolchainError, match=r"^no such op$"):
        worker.call({"do": "raise-ours", "text": "no such op"})
    with pytest.raises(ToolchainError, match=r"^no compiler$"):
        worker.call({"do": "raise-derived", "text": "no compiler"})
    with pytest.raises(InfeasibleError) as infeasible:
        worker.call({"do": "infeasible"})
    assert infeasible.value.details == {"reason": "because"}
    with pytest.raises(RemoteError, match="pickle"):
        worker.call({"do": "unpicklable"})
    with pytest.raises(RemoteError, match="TypeError"):
        worker.call(Unpicklable())
    assert worker.generation == 1, "an exception is an answer, not a crash"


def test_a_target_that_cannot_be_imported_is_an_error():
    with pytest.raises(RemoteError, match="ModuleNotFoundError"):
        call_in_child("tests.no_such_module:thing", 1)


def test_a_child_that_lacks_the_processor_is_not_taken_for_one_that_hangs():
    """All compete for one processor, so that each of seven has a seventh of it."""
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(6)]
    try:
        for other in others:
            os.sched_setaffinity(other.pid, {min(os.sched_getaffinity(0))})
        with Worker(DO) as worker:
            pid = worker.call({"do": "pid"})
            os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
            began = time.monotonic()
            # Where each session has its share, the child has half of the processor.
            assert worker.call({"do": "compute", "s": 2.0}, timeout_s=3.0) >= 2.0
            assert time.monotonic() - began > 3.0, "it did not have to wait"
            for endless in ("sleep", "compute"):
                with pytest.raises(WorkerTimeout, match="no answer within 3 s"):
                    worker.call({"do": endless, "s": 600}, timeout_s=3.0)
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_silence_limit_is_reset_by_messages(worker):
    worker.call({"do": "pid"})
    request = {"do": "messages", "n": 10, "every_s": 0.4}
    assert worker.call(request, silence_s=3.0) == 10
    with pytest.raises(WorkerTimeout):
        worker.call({"do": "sleep", "s": 60}, silence_s=0.2)


def test_a_cancel_ends_a_call_and_later_ones(worker):
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        worker.call({"do": "sleep", "s": 60}, cancel=cancel)
    assert time.monotonic() - began < 30, "its answer would have come after 60"
    with pytest.raises(Cancelled):
        worker.call({"do": "pid"}, cancel=cancel)


def test_flood_of_output_neither_blocks_nor_corrupts(worker):
    assert worker.call({"do": "flood", "lines": 20_000}) == "done"
    worker.call({"do": "pid"})


def test_memory_limit():
    assert Worker(DO).memory_limit_bytes < memory_bytes(), "a limit of its own by default"
    with Worker(DO, memory_limit_bytes=200 << 20) as worker:
        assert worker.call({"do": "allocate", "mib": 20}) == 20
        with pytest.raises(WorkerCrashed, match=r"used more than 0\.195 GiB of memory"):
            worker.call({"do": "allocate", "mib": 4000})


def test_whole_family_dies_on_timeout_and_close(worker):
    family: list[int] = []
    worker.call({"do": "pid"})
    with pytest.raises(WorkerTimeout):
        worker.call({"do": "family"}, silence_s=3.0, on_message=family.extend)
    assert len(family) == 3 and wait_gone(*family)
    family.clear()
    worker.call({"do": "family", "s": 0}, on_message=family.extend)
    assert not any(map(gone, family))
    worker.close()
    assert wait_gone(*family)


def test_whole_family_dies_with_the_parent(tmp_path):
    script = (
        "from collage_engine.machine.worker import Worker\n"
        f"w = Worker({DO!r})\n"
        "def tell(pids): print(*pids, w.warden_pid, flush=True)\n"
        "w.call({'do': 'family'}, on_message=tell)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
    )
    assert parent.stdout is not None
    family = [int(word) for word in parent.stdout.readline().split()]
    assert len(family) == 4 and not any(map(gone, family))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert wait_gone(*family)


def test_no_descriptor_is_left_behind(worker):
    worker.call({"do": "pid"})
    worker.close()
    before = pipes()
    for _ in range(3):
        worker.call({"do": "pid"})
        worker.close()
    assert not pipes() - before


def test_the_family_of_a_worker_is_found_with_its_memory(worker):
    family: list[int] = []
    worker.call({"do": "family", "s": 0}, on_message=family.extend)
    warden = worker.warden_pid
    assert set(family) <= set(processes.descendants(warden))
    assert processes.tree_private_bytes(warden) > processes.private_bytes(worker.pid) > 1 << 20
    assert processes.private_bytes(2**22 + 1) == 0 and not processes.descendants(2**22 + 1)


def test_processes_that_end_while_they_are_looked_at_are_no_error():
    """The look at a tree's memory meets processes that have just ended: they count nothing."""
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            subprocess.run(["sh", "-c", "true & true & wait"], check=True)

    threads = [threading.Thread(target=come_and_go) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            assert processes.tree_private_bytes(os.getpid()) > 1 << 20
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def crowded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of files named as modules that every child imports."""
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("json", "numpy", "msgspec", "tvm", "importlib_metadata"):
        (folder / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.usefixtures("crowded")
def test_a_worker_loads_the_installed_modules() -> None:
    with Worker("tests.support.worker_targets:echo") as worker:
        assert worker.call(3) == 3


@pytest.mark.usefixtures("crowded")
def test_the_driver_is_asked_by_our_own_module() -> None:
    cuda.cuda_probe.cache_clear()
    assert "wrong module" not in (cuda.cuda_probe().reason or "")
    cuda.cuda_probe.cache_clear()
