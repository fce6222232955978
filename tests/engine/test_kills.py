"""Nothing that was measured or saved is lost when any process of a run is killed.

Each run is a command, or a service with a client, on MNIST. While it goes on, processes of random
kinds are ended with SIGKILL at random moments; afterwards the campaign looks at what is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from collage_engine.machine.processes import descendants
from collage_engine.store.session_file import load_session
from collage_engine.support.time_limits import ANSWER_S
from tests.support.artifact_cases import MNIST
from tests.support.caches import fresh_cache
from tests.support.command import ROOT

KILLS = int(os.environ.get("COLLAGE_KILLS", "3"))
"""Kills in one test; ``COLLAGE_KILLS=200`` is the whole campaign, an hour or two."""
TOOLCHAINS = ("onednn", "onnxruntime")
BUDGET_S = 8
LASTS_S = 15.0
"""Seconds that a run takes from its start to its end, within which its first process is killed."""
ORPHANS_S = 3.0
"""Seconds after the command's end in which all of its processes must be gone."""
RUN_S = 240.0
"""Seconds beyond its budget after which a run counts as one that hangs."""
SERVICE_EVERY, FRESH_EVERY = 2, 8
"""Every how many runs it is one of a service, and the store is a fresh one."""
REPLACED = frozenset({"collage-measure", "collage-transit"})
"""Kinds of which a run starts another when one is killed: such a run must end well."""


def waited(ended: Callable[[], bool], seconds: float) -> bool:
    """Wait until something has ended, or for so long; whether it has ended."""
    deadline = time.monotonic() + seconds
    while not (over := ended()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return over


class Campaign:
    """A folder with a store, a session and an artifact, on which runs are killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.random = random.Random(7)
        self.kinds: Counter[str] = Counter()
        self.said = folder / "said"
        self.new_store("0")

    def new_store(self, name: str) -> None:
        """Go on without measurements; compiled runtimes and what was probed are kept."""
        self.cache = fresh_cache(self.folder / f"cache{name}")
        self.session = self.folder / f"run{name}.collage"
        self.known: set[str] = set()
        self.runs: set[str] = set()

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a command; by its environment all that it starts is found again."""
        (self.folder / "tmp").mkdir(exist_ok=True)
        caches = {"COLLAGE_CACHE_DIR": str(self.cache), "TMPDIR": str(self.folder / "tmp")}
        with self.said.open("wb") as written:
            return subprocess.Popen(
                [sys.executable, "-m", "collage_engine", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=written,
                cwd=ROOT,
                env=os.environ | caches,
            )

    def start_command(self) -> subprocess.Popen[bytes]:
        """Start a run of the command line."""
        how = ["--toolchains", ",".join(TOOLCHAINS), "--budget", f"{BUDGET_S}s"]
        where = ["--session", str(self.session), "-o", str(self.folder / "out")]
        return self.start("place", str(MNIST), *how, *where)

    def start_service(self, done: threading.Event) -> subprocess.Popen[bytes]:
        """Start a service and a run of it; the event is set when the run is over."""
        service = self.start("serve")
        assert service.stdin is not None and service.stdout is not None

        def ask(number: int, method: str, **params: object) -> dict:
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            service.stdin.write(json.dumps(message).encode() + b"\n")
            service.stdin.flush()
            return next(a for a in map(json.loads, service.stdout) if a.get("id") == number)

        def listen() -> None:
            for line in service.stdout:
                with contextlib.suppress(ValueError):  # the last line of one that was killed
                    if json.loads(line).get("method") == "done":
                        done.set()

        ask(1, "hello")
        document = ask(2, "model.open", path=str(MNIST))["result"]["document"]
        settings = {"toolchains": TOOLCHAINS, "budget_s": BUDGET_S}
        ask(3, "run.start", document=document, settings=settings)
        threading.Thread(target=listen, daemon=True).start()
        return service

    def disturb(self, number: int, most: int) -> None:
        """Start a run, kill up to so many of its processes at random moments, and check."""
        if number and number % FRESH_EVERY == 0:
            self.new_store(str(number))
        done = threading.Event()
        is_service = number % SERVICE_EVERY == SERVICE_EVERY - 1
        process = self.start_service(done) if is_service else self.start_command()

        def over() -> bool:
            return process.poll() is not None or done.is_set()

        killed: list[str] = []
        while len(killed) < most and not waited(over, self.random.uniform(0.1, LASTS_S)):
            killed.append(self.kill_any(process.pid))
        print(f"run {number}: {killed} killed", file=sys.stderr)
        self.finish(process, over)
        if not is_service and REPLACED.issuperset(killed):
            assert process.returncode == 0, self.said.read_text()

    def kill_any(self, top: int) -> str:
        """Kill one process of a kind drawn among those that there are; the kind's name."""
        kinds: dict[str, list[int]] = {"command": [top]}
        for pid in descendants(top):
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                kinds.setdefault(name, []).append(pid)
        kind = self.random.choice(sorted(kinds))
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.random.choice(kinds[kind]), signal.SIGKILL)
        self.kinds[kind] += 1
        return kind

    def finish(self, process: subprocess.Popen[bytes], over: Callable[[], bool]) -> None:
        """Wait for the run's end and the service's, and check what is left."""
        try:
            assert waited(over, BUDGET_S + RUN_S), "it did not end"
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait(20.0)
        finally:
            process.kill()
            process.wait()
        assert "Traceback" not in self.said.read_text()
        self.check()

    def check(self) -> None:
        """Look for orphans, lost costs, a damaged store and a session that cannot be opened."""
        assert waited(lambda: not self.orphans(), ORPHANS_S), self.orphans()
        store = self.cache / "measurements.db"
        if store.exists():
            with contextlib.closing(sqlite3.connect(store)) as connection:
                assert connection.execute("pragma integrity_check").fetchone()[0] == "ok"
                keys = keys_of(connection)
            assert len(keys) == len(set(keys)) and self.known <= set(keys), "costs were lost"
            self.known = set(keys)
        if self.session.exists():
            runs = {run.id for run in load_session(self.session).runs}
            assert self.runs <= runs, "a run was lost from the session"
            self.runs = runs

    def orphans(self) -> list[str]:
        """Returns the command lines of the processes that belong to this campaign."""
        found = []
        mark = f"COLLAGE_CACHE_DIR={self.folder}/".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().decode()[-120:])
        return found

    def left_behind(self, began: float) -> list[str]:
        """Names what killed processes left, and a run that began then did not remove.

        What was younger than ``ANSWER_S`` at that time may have belonged to a process that lives.
        Unfinished files stay for an hour (``JOB_S``), unfinished folders do not.
        """
        unfinished = [*self.folder.glob(".*.partial/"), *self.folder.glob(".*.old")]
        left = [*(self.folder / "tmp").iterdir(), *unfinished]
        return sorted(path.name for path in left if path.lstat().st_mtime < began - ANSWER_S)


def keys_of(store: sqlite3.Connection) -> list[str]:
    """Returns a store's keys; none where the first run was killed before it made its tables."""
    tables = store.execute("select name from sqlite_master where name = 'measurements'").fetchall()
    return [row[0] for row in store.execute("select key from measurements")] if tables else []


@pytest.mark.timeout(4 * 3600 if KILLS > 3 else 300)
def test_whatever_is_killed_no_cost_is_lost_and_the_next_run_ends_well(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path)
    number = 0
    while (killed := campaign.kinds.total()) < KILLS:
        campaign.disturb(number, KILLS - killed)
        number += 1
    print(dict(campaign.kinds))
    began = time.time()
    campaign.disturb(0, 0)
    assert not campaign.left_behind(began)
