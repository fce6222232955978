"""Kills random processes of runs, and checks that nothing that was measured or saved is lost.

``python -m tests.support.kills 200 --seed 1`` does it long and prints a table; the tests do a few.
Each kill starts a command (or a service with a client) on MNIST, waits a random while, ends one
process of a random kind with SIGKILL, and looks at what is left.
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
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from collage_engine.machine.processes import descendants
from collage_engine.records.errors import SessionError
from collage_engine.session.file import load_session

ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "resources" / "models" / "mnist.onnx"
LONGEST_S = 25.0
"""Seconds of a run within which something is killed; a run of MNIST takes some 20 s."""
ORPHANS_S = 3.0
"""Seconds after the command's end in which all of its processes must be gone."""
RUN_S = 240.0
"""Seconds after which a run that was left alone counts as one that hangs."""
SERVICE_EVERY, FRESH_EVERY, WHOLE_EVERY = 4, 8, 10
"""Every how many kills the run is one of a service; the store is a fresh one; and a run that nobody
disturbs must end well."""


@dataclass
class Report:
    """What became of the kills.

    Attributes:
        kinds: How often a process of each kind was killed.
        ended: How often a run ended by itself before its turn came.
        faults: Sentences about what must not be; empty: all went well.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    faults: list[str] = field(default_factory=list)


class Campaign:
    """A folder with a store, a session and an artifact, on which runs are killed."""

    def __init__(self, folder: Path, seed: int, toolchains: str) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.report = Report()
        self.toolchains = toolchains
        self.stores = 0
        self.new_store()

    def new_store(self) -> None:
        """Go on with an empty cache; compiled runtimes are kept."""
        self.stores += 1
        self.cache = self.folder / f"cache{self.stores}"
        self.session = self.folder / f"run{self.stores}.collage"
        self.known: set[str] = set()
        self.runs: set[str] = set()

    def environment(self) -> dict[str, str]:
        """Of everything that is started; by it the processes are found again."""
        return os.environ | {
            "COLLAGE_CACHE_DIR": str(self.cache),
            "COLLAGE_BUILD_DIR": os.environ.get("COLLAGE_BUILD_DIR", str(self.folder / "build")),
            "TMPDIR": str(self.folder / "tmp"),
        }

    def start(self, service: bool) -> subprocess.Popen[bytes]:
        """Start a command, or a service that does a run."""
        (self.folder / "tmp").mkdir(exist_ok=True)
        place = ["place", str(MNIST), "--toolchains", self.toolchains, "--budget", "8s"]
        place += ["--session", str(self.session), "-o", str(self.folder / "out")]
        started = subprocess.Popen(
            [sys.executable, "-m", "collage_engine", *(["serve"] if service else place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if service else subprocess.DEVNULL,
            stderr=subprocess.PIPE if not service else subprocess.DEVNULL,
            cwd=ROOT,
            env=self.environment(),
            start_new_session=True,
        )
        if service:
            self.ask_for_a_run(started)
        return started

    def ask_for_a_run(self, service: subprocess.Popen[bytes]) -> None:
        """Have a service open the model and start a run."""
        assert service.stdin is not None and service.stdout is not None
        settings = {"toolchains": self.toolchains.split(","), "budget_s": 8}

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

    def kill_one(self, number: int) -> None:
        """Start a run, kill something of it at a random moment, and check what is left."""
        if number and number % FRESH_EVERY == 0:
            self.new_store()
        service = number % SERVICE_EVERY == SERVICE_EVERY - 1
        started = self.start(service)
        kind = "nothing"
        moment = time.monotonic() + self.random.uniform(0.1, LONGEST_S)
        while time.monotonic() < moment and started.poll() is None:
            time.sleep(0.02)
        if started.poll() is not None:
            self.report.ended += 1
        else:
            kind = self.kill_any(started.pid)
            self.report.kinds[kind] += 1
            if service and kind != "command":
                time.sleep(1.0)
        self.finish(started, service, number)
        self.check(f"kill {number} ({kind})")

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
        return kind

    def finish(self, started: subprocess.Popen[bytes], service: bool, number: int) -> None:
        """Wait for the run's end, or end the service by closing its input."""
        try:
            if service and started.poll() is None:
                assert started.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    started.stdin.close()
                started.wait(20)
            else:
                started.communicate(timeout=RUN_S)
        except subprocess.TimeoutExpired:
            self.report.faults.append(f"kill {number}: the command did not end")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()

    def check(self, when: str) -> None:
        """Look for orphans, lost costs, a damaged store and a session that cannot be opened."""
        deadline = time.monotonic() + ORPHANS_S
        while (left := self.orphans()) and time.monotonic() < deadline:
            time.sleep(0.05)
        if left:
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
                document, _ = load_session(self.session)
            except SessionError as error:
                self.report.faults.append(f"{when}: {error}")
            else:
                runs = {run.id for run in document.runs}
                if not self.runs <= runs:
                    self.report.faults.append(f"{when}: a run was lost from the session")
                self.runs = runs

    def orphans(self) -> list[int]:
        """Processes that belong to this campaign."""
        found = []
        mark = f"COLLAGE_CACHE_DIR={self.folder}/".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
        return found

    def whole_run(self, number: int) -> None:
        """A run that nobody disturbs ends well, and leaves nothing behind."""
        started = self.start(service=False)
        try:
            _, said = started.communicate(timeout=RUN_S)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            self.report.faults.append(f"after kill {number}: the next run did not end")
            return
        if started.returncode:
            text = said.decode(errors="replace")[-300:]
            self.report.faults.append(f"after kill {number}: status {started.returncode}: {text}")
        self.check(f"the run after kill {number}")

    def run(self, count: int, seconds: float) -> Report:
        """Kill so often, or for so long."""
        deadline = time.monotonic() + seconds
        done = faults = 0
        for number in range(count):
            if time.monotonic() > deadline:
                break
            self.kill_one(number)
            done += 1
            for fault in self.report.faults[faults:]:
                print(fault, file=sys.stderr)
            faults = len(self.report.faults)
            print(f"{done} of {count}, {faults} faults", file=sys.stderr)
            if done % WHOLE_EVERY == 0:
                self.whole_run(number)
        if done % WHOLE_EVERY:
            self.whole_run(done - 1)
        return self.report


def keys_of(store: sqlite3.Connection) -> list[str]:
    """The keys of a store: none where the first run was killed before it made its tables."""
    tables = store.execute("select name from sqlite_master where name = 'measurements'").fetchall()
    if not tables:
        return []
    return [row[0] for row in store.execute("select key from measurements")]


def command_of(pid: int) -> str:
    """How a process was started; empty when it is gone."""
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="collage-kills-") as folder:
        campaign = Campaign(Path(folder), options.seed, options.toolchains)
        report = campaign.run(options.count, options.seconds)
    print(f"{sum(report.kinds.values())} killed, {report.ended} ended before, by kind:")
    for kind, count in report.kinds.most_common():
        print(f"  {kind}: {count}")
    for fault in report.faults:
        print(f"FAULT {fault}")
    print(f"{len(report.faults)} faults")
    return 1 if report.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
