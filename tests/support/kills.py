"""Kills random processes of runs, and checks that nothing that was measured or saved is lost.

``python -m tests.support.kills 200 --seed 1`` does it long and prints a table; the tests do a few.
Each run is a command (or a service with a client) on MNIST. While it goes on, processes of random
kinds are ended with SIGKILL at random moments; afterwards the campaign looks at what is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from collage_engine.machine.processes import descendants
from collage_engine.records.errors import SessionError
from collage_engine.records.time_limits import ANSWER_S
from collage_engine.session.file import load_session
from tests.support.caches import SHARED, fresh_cache

ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "resources" / "models" / "mnist.onnx"
FIRST_GUESS_S = 20.0
"""Seconds that a run is taken to last until one of its sort has been seen to its end."""
AGAIN = 0.5
"""Part of a run's duration within which the next process of the same run is killed (chosen)."""
ORPHANS_S = 3.0
"""Seconds after the command's end in which all of its processes must be gone."""
RUN_S = 240.0
"""Seconds beyond its budget after which a run counts as one that hangs."""
SERVICE_EVERY, FRESH_EVERY, WHOLE_EVERY = 4, 8, 10
"""Every how many runs it is one of a service; the store is a fresh one; and nobody disturbs a run,
which must then end well."""
LOOK_S = 0.02
"""Seconds between two looks whether a run has ended."""
REPLACED = frozenset({"collage-measure", "collage-transit"})
"""Kinds of which a run starts another when one is killed: such a run must end well."""
STEP_S = 1.0
"""Longest time between two looks at the clock that counts; what is more was a stop."""


class AwakeClock:
    """Counts seconds in which this process was let run; while its group was frozen it counts none.

    The runs are frozen together with the campaign, so that limits on them need this clock.

    Attributes:
        stopped: Seconds that were not counted.
    """

    def __init__(self) -> None:
        self.stopped = 0.0

    def wait(self, ended: Callable[[], bool], seconds: float) -> bool:
        """Wait until something has ended, or for so many counted seconds.

        Returns:
            Whether it has ended.
        """
        counted, last = 0.0, time.monotonic()
        while not (over := ended()) and counted < seconds:
            time.sleep(LOOK_S)
            now = time.monotonic()
            counted += min(now - last, STEP_S)
            self.stopped += max(now - last - STEP_S, 0.0)
            last = now
        return over


@dataclass
class Report:
    """What became of the kills.

    Attributes:
        kinds: How often a process of each kind was killed.
        runs: How many runs were started to be disturbed.
        ended: How many of them ended by themselves before anything was killed.
        faults: Sentences about what must not be; empty: all went well.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    ended: int = 0
    faults: list[str] = field(default_factory=list)


class DisturbedRun:
    """A run that goes on in a command of its own, or in a service that was asked for it.

    Attributes:
        process: The command or the service.
        service: Whether it is a service.
    """

    def __init__(self, process: subprocess.Popen[bytes], service: bool, said: Path) -> None:
        self.process = process
        self.service = service
        self.said = said
        self.done = threading.Event()

    def over(self) -> bool:
        """Whether the run has ended; a service goes on living after it."""
        return self.process.poll() is not None or self.done.is_set()

    def listen(self) -> None:
        """Read what the service says until its end, and notice the end of the run."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                if json.loads(line).get("method") == "done":
                    self.done.set()

    def last_words(self) -> str:
        """Return the end of what it wrote to standard error."""
        return self.said.read_bytes()[-400:].decode(errors="replace")


class Campaign:
    """A folder with a store, a session and an artifact, on which runs are killed."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        toolchains: str,
        fresh_every: int = FRESH_EVERY,
        budget_s: int = 8,
    ) -> None:
        self.budget_s = budget_s
        self.folder = folder
        self.random = random.Random(seed)
        self.report = Report()
        self.toolchains = toolchains
        self.fresh_every = fresh_every
        self.clock = AwakeClock()
        self.lasts: dict[tuple[bool, bool], float] = {}
        self.stores = 0
        self.new_store()

    def new_store(self) -> None:
        """Goes on without measurements; compiled runtimes and what was probed are kept."""
        self.stores += 1
        folder = self.folder / f"cache{self.stores}"
        self.cache = fresh_cache(folder)
        self.session = self.folder / f"run{self.stores}.collage"
        self.known: set[str] = set()
        self.runs: set[str] = set()

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of all that is started, by which it is found again."""
        return os.environ | {
            "COLLAGE_CACHE_DIR": str(self.cache),
            "COLLAGE_BUILD_DIR": os.environ.get("COLLAGE_BUILD_DIR", str(self.folder / "build")),
            "TMPDIR": str(self.folder / "tmp"),
        }

    def start(self, service: bool) -> DisturbedRun:
        """Start a command, or a service that does a run."""
        (self.folder / "tmp").mkdir(exist_ok=True)
        place = ["place", str(MNIST), "--toolchains", self.toolchains]
        place += ["--budget", f"{self.budget_s}s"]
        place += ["--session", str(self.session), "-o", str(self.folder / "out")]
        said = self.folder / "said"
        with said.open("wb") as written:
            process = subprocess.Popen(
                [sys.executable, "-m", "collage_engine", *(["serve"] if service else place)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if service else subprocess.DEVNULL,
                stderr=written,
                cwd=ROOT,
                env=self.environment(),
                start_new_session=True,
            )
        started = DisturbedRun(process, service, said)
        if service:
            self.ask_for_a_run(started)
        return started

    def ask_for_a_run(self, started: DisturbedRun) -> None:
        """Have a service open the model and start a run."""
        service = started.process
        assert service.stdin is not None and service.stdout is not None
        settings = {"toolchains": self.toolchains.split(","), "budget_s": self.budget_s}

        def ask(number: int, method: str, **params: object) -> dict:
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            service.stdin.write(json.dumps(message).encode() + b"\n")
            service.stdin.flush()
            for line in service.stdout:
                answer = json.loads(line)
                if answer.get("id") == number:
                    return answer["result"]
            raise AssertionError(f"the service ended before it answered {method}")

        ask(1, "hello")
        document = ask(2, "model.open", path=str(MNIST))["document"]
        ask(3, "run.start", document=document, settings=settings)
        threading.Thread(target=started.listen, daemon=True).start()

    def disturb(self, number: int, most: int) -> None:
        """Start a run, kill processes of it at random moments, and check what is left.

        Args:
            number: Of the run; by it follow its sort and whether its store is empty.
            most: Kills that it may get.
        """
        fresh = number % self.fresh_every == 0
        if number and fresh:
            self.new_store()
        service = number % SERVICE_EVERY == SERVICE_EVERY - 1
        started = self.start(service)
        self.report.runs += 1
        began, stopped = time.monotonic(), self.clock.stopped
        lasts = self.lasts.setdefault((service, fresh), FIRST_GUESS_S)
        killed: list[str] = []
        moment = self.random.uniform(0.1, lasts)
        while len(killed) < most and not self.clock.wait(started.over, moment):
            killed.append(self.kill_any(started.process.pid))
            moment = self.random.uniform(0.1, lasts * AGAIN)
        if not killed:
            self.report.ended += 1
            stopped = self.clock.stopped - stopped
            self.lasts[service, fresh] = time.monotonic() - began - stopped
        when = f"run {number} ({', '.join(killed) or 'nothing'} killed)"
        self.finish(started, when)
        if not started.service and killed and REPLACED.issuperset(killed):
            self.check_status(started, when)

    def kinds(self, top: int) -> dict[str, list[int]]:
        """Return the living processes of a run by kind."""
        kinds: dict[str, list[int]] = {"command": [top]}
        for pid in descendants(top):
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                kinds.setdefault(name, []).append(pid)
        return kinds

    def kill_any(self, top: int) -> str:
        """Kill one process of a kind drawn among those that there are; the kind's name."""
        kinds = self.kinds(top)
        names = sorted(kinds)
        weights = [
            1 / (1 + self.report.kinds[name]) for name in names
        ]  # rare kinds have their turn
        kind = self.random.choices(names, weights)[0]
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.random.choice(kinds[kind]), signal.SIGKILL)
        self.report.kinds[kind] += 1
        return kind

    def finish(self, started: DisturbedRun, when: str) -> None:
        """Wait for the run's end and the service's, and check what is left."""
        process = started.process
        ended = self.clock.wait(started.over, self.budget_s + RUN_S)
        if ended and started.service:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            ended = self.clock.wait(lambda: process.poll() is not None, 20.0)
        if not ended:
            self.report.faults.append(f"{when}: it did not end")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if "Traceback" in started.last_words():
            self.report.faults.append(f"{when}: {started.last_words()}")
        self.check(when)

    def check(self, when: str) -> None:
        """Look for orphans, lost costs, a damaged store and a session that cannot be opened."""
        if not self.clock.wait(lambda: not self.orphans(), ORPHANS_S):
            left = self.orphans()
            commands = [command_of(pid)[-120:] for pid in left]
            self.report.faults.append(f"{when}: orphans {commands}")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        store = self.cache / "measurements.db"
        if store.exists():
            with contextlib.closing(sqlite3.connect(store)) as connection:
                verdict = connection.execute("pragma integrity_check").fetchone()[0]
                keys = keys_of(connection)
            if verdict != "ok":
                self.report.faults.append(f"{when}: the store is {verdict}")
            if len(keys) != len(set(keys)) or not self.known <= set(keys):
                self.report.faults.append(f"{when}: costs were lost or counted twice")
            self.known = set(keys)
        if self.session.exists():
            try:
                document = load_session(self.session)
            except SessionError as error:
                self.report.faults.append(f"{when}: {error}")
            else:
                runs = {run.id for run in document.runs}
                if not self.runs <= runs:
                    self.report.faults.append(f"{when}: a run was lost from the session")
                self.runs = runs

    def orphans(self) -> list[int]:
        """Returns the processes that belong to this campaign."""
        found = []
        mark = f"COLLAGE_CACHE_DIR={self.folder}/".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
        return found

    def left_behind(self, began: float) -> list[str]:
        """Names what killed processes left, and a run that began then did not remove.

        What was younger than ``ANSWER_S`` at that time may have belonged to a process that lives.
        Unfinished files stay for an hour (``JOB_S``), unfinished folders do not.
        """
        tmp = self.folder / "tmp"
        unfinished = [*self.folder.glob(".*.partial/"), *self.folder.glob(".*.old")]
        left = []
        for path in [*(tmp.iterdir() if tmp.exists() else ()), *unfinished]:
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_mtime < began - ANSWER_S:
                    left.append(path.name)
        return sorted(left)

    def whole_run(self, when: str) -> None:
        """Checks that a run that nobody disturbs ends well, and leaves nothing behind."""
        while True:
            stopped = self.clock.stopped
            started = self.start(service=False)
            self.finish(started, when)
            if not started.process.returncode:
                return
            if self.clock.stopped == stopped:
                break
            # Its budget went by while the group was frozen, which says nothing about the run.
        self.check_status(started, when)

    def check_status(self, started: DisturbedRun, when: str) -> None:
        """Note a fault when a run that had to end well did not."""
        if status := started.process.returncode:
            self.report.faults.append(f"{when}: status {status}: {started.last_words()}")

    def run(self, count: int, seconds: float) -> Report:
        """Kill so often, or for so long."""
        deadline = time.monotonic() + seconds
        faults = number = 0
        while (killed := self.report.kinds.total()) < count and time.monotonic() < deadline:
            self.disturb(number, count - killed)
            if number % WHOLE_EVERY == WHOLE_EVERY - 1:
                self.whole_run(f"the run after run {number}")
            for fault in self.report.faults[faults:]:
                print(fault, file=sys.stderr)
            faults = len(self.report.faults)
            killed = self.report.kinds.total()
            print(
                f"{killed} of {count} killed in {number + 1} runs, {faults} faults", file=sys.stderr
            )
            number += 1
        began = time.time()
        self.whole_run("the last run")
        if left := self.left_behind(began):
            self.report.faults.append(f"after the last run there still is {', '.join(left)}")
        return self.report


def keys_of(store: sqlite3.Connection) -> list[str]:
    """Returns a store's keys; none where the first run was killed before it made its tables."""
    tables = store.execute("select name from sqlite_master where name = 'measurements'").fetchall()
    if not tables:
        return []
    return [row[0] for row in store.execute("select key from measurements")]


def command_of(pid: int) -> str:
    """Returns the command line of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def main() -> int:
    """Do a campaign and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=36_000.0, help="stop after so long")
    parser.add_argument("--toolchains", default="tvm,onnxruntime,onednn")
    parser.add_argument(
        "--fresh-every",
        type=int,
        default=FRESH_EVERY,
        help="runs after which the store is a new one; 1: every run measures its candidates",
    )
    parser.add_argument("--budget", type=int, default=8, help="seconds of a run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="collage-kills-") as folder:
        os.environ.setdefault(SHARED, folder)
        campaign = Campaign(
            Path(folder),
            options.seed,
            options.toolchains,
            options.fresh_every,
            options.budget,
        )
        report = campaign.run(options.count, options.seconds)
    runs = f"{report.runs} runs, {report.ended} of which ended before anything was killed"
    print(f"{report.kinds.total()} processes killed in {runs}; by kind:")
    for kind, count in report.kinds.most_common():
        print(f"  {kind}: {count}")
    for fault in report.faults:
        print(f"FAULT {fault}")
    print(f"{len(report.faults)} faults")
    return 1 if report.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
