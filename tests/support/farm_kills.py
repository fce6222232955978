"""Kills processes of a farm while models are placed on it, and checks that no cost is lost.

``python -m tests.support.farm_kills 200 --seed 1`` does it long and prints a table; the tests do a
few. One farm serves all kills: a scheduler and two members on this machine. A command places MNIST
on it again and again; at a random moment a random process is killed with SIGKILL: a worker, a
member's supervisor, a measuring child, the scheduler, or the command itself. A supervisor and the
scheduler are started again, as a service manager would.
"""

from __future__ import annotations

import argparse
import contextlib
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

import psutil

from tests.support.farm_cluster import ROOT, FarmProcesses

MNIST = ROOT / "resources" / "models" / "mnist.onnx"
BUDGET_S = 45
"""Seconds of a run's budget."""
LATEST_SHARE = 1.2
"""Share of the budget within which something is killed: a run takes a little more than it."""
ENDS_S = 300.0
"""Seconds after which a run that was disturbed counts as one that hangs."""
FRESH_EVERY = 6
"""Every how many kills the store is a fresh one, so that there is something to measure."""


@dataclass
class Report:
    """What became of the kills.

    Attributes:
        kinds: How often a process of each kind was killed.
        ended: How often a run ended by itself before its turn came.
        finished: How often the run that was disturbed ended well.
        costs: Costs that were in the stores at the end of each run, added up.
        faults: Sentences about what must not be; empty: all went well.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    finished: int = 0
    costs: int = 0
    faults: list[str] = field(default_factory=list)


class FarmCampaign:
    """A farm on which runs are disturbed."""

    def __init__(self, folder: Path, seed: int, budget_s: int = BUDGET_S) -> None:
        self.folder = folder
        self.budget_s = budget_s
        self.random = random.Random(seed)
        self.report = Report()
        self.names = ["one", "two"][: len(os.sched_getaffinity(0))]
        self.farm = FarmProcesses(folder, self.names)
        self.known: dict[str, str] = {}
        self.stores = 0

    def close(self) -> None:
        """End the farm."""
        self.farm.close()

    def start(self, number: int) -> subprocess.Popen[bytes]:
        """Start a command that places a model; the coordinator's store is its own."""
        if number % FRESH_EVERY == 0:
            self.stores += 1
            self.known = {}
        cache = self.folder / f"coordinator{self.stores}"
        certificate = str(self.farm.cache / "farm" / "certificate.pem")
        words = ["place", str(MNIST), "-o", str(self.folder / "out"), "--farm", self.farm.address]
        words += ["--toolchains", "tvm,onednn", "--budget", f"{self.budget_s}s", "--measure", "all"]
        environment = {
            **self.farm.environment,
            "COLLAGE_CACHE_DIR": str(cache),
            "COLLAGE_FARM_CERTIFICATE": certificate,
        }
        self.store = cache / "measurements.db"
        return subprocess.Popen(
            [sys.executable, "-m", "collage_engine", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
        )

    def kill_one(self, number: int) -> None:
        """Start a run, kill something at a random moment, and check what is left."""
        started = self.start(number)
        moment = time.monotonic() + self.random.uniform(1.0, LATEST_SHARE * self.budget_s)
        while time.monotonic() < moment and started.poll() is None:
            time.sleep(0.05)
        kind = "nothing"
        if started.poll() is not None:
            self.report.ended += 1
        else:
            kind = self.kill_any(started)
            self.report.kinds[kind] += 1
        try:
            _, said = started.communicate(timeout=ENDS_S)
        except subprocess.TimeoutExpired:
            started.kill()
            _, said = started.communicate()
            self.report.faults.append(f"kill {number} ({kind}): the run did not end")
        if started.returncode == 0:
            self.report.finished += 1
        elif kind != "command":
            text = said.decode(errors="replace").strip()[-300:]
            self.report.faults.append(
                f"kill {number} ({kind}): status {started.returncode}: {text}"
            )
        self.check(f"kill {number} ({kind})")

    def kill_any(self, command: subprocess.Popen[bytes]) -> str:
        """Kill one process of a kind drawn among those that there are; the kind's name."""
        kinds: dict[str, list[int]] = {
            "command": [command.pid],
            "scheduler": [self.farm.processes["serve"].pid],
            "supervisor": [self.farm.processes[f"join-{name}"].pid for name in self.names],
        }
        for name in self.names:
            worker = self.farm.worker(name)
            if worker is None:
                continue
            kinds.setdefault("worker", []).append(worker.pid)
            with contextlib.suppress(psutil.Error):
                for child in worker.children(recursive=True):
                    if child.name().startswith("collage-"):
                        kinds.setdefault(child.name(), []).append(child.pid)
        kind = self.random.choice(sorted(kinds))
        victim = self.random.choice(kinds[kind])
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        if kind == "scheduler":
            self.farm.processes["serve"].wait()
            self.farm.serve()
        if kind == "supervisor":
            for processor, name in enumerate(self.names):
                if self.farm.processes[f"join-{name}"].pid == victim:
                    self.farm.processes[f"join-{name}"].wait()
                    self.farm.join(name, processor)
        return kind

    def check(self, when: str) -> None:
        """Look for costs that were lost, counted twice, or that no machine measured."""
        if not self.store.exists():
            return
        with contextlib.closing(sqlite3.connect(self.store)) as connection:
            verdict = connection.execute("pragma integrity_check").fetchone()[0]
            rows = connection.execute("select key, cost from measurements").fetchall()
        if verdict != "ok":
            self.report.faults.append(f"{when}: the store is {verdict}")
        keys = [key for key, _ in rows]
        if len(keys) != len(set(keys)) or not self.known.keys() <= set(keys):
            self.report.faults.append(f"{when}: costs were lost or counted twice")
        nameless = [key for key, cost in rows if '"machine"' not in cost]
        if nameless:
            self.report.faults.append(f"{when}: {len(nameless)} costs name no machine")
        self.known = dict(rows)
        self.report.costs += len(rows)

    def run(self, count: int, seconds: float) -> Report:
        """Kill so often, or for so long; then a run that nobody disturbs must end well."""
        deadline = time.monotonic() + seconds
        for number in range(count):
            if time.monotonic() > deadline:
                break
            self.kill_one(number)
        last = self.start(1)
        _, said = last.communicate(timeout=ENDS_S)
        if last.returncode:
            text = said.decode(errors="replace").strip()[-300:]
            self.report.faults.append(f"the run after all kills: status {last.returncode}: {text}")
        self.check("the run after all kills")
        return self.report


def main() -> int:
    """Do a campaign and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=36_000.0, help="stop after so long")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="collage-farm-kills-") as folder:
        campaign = FarmCampaign(Path(folder), options.seed)
        try:
            report = campaign.run(options.count, options.seconds)
        finally:
            campaign.close()
    print(
        f"{sum(report.kinds.values())} killed, {report.ended} ended before, {report.finished} of "
        f"the runs ended well, {report.costs} costs checked; by kind:"
    )
    for kind, count in report.kinds.most_common():
        print(f"  {kind}: {count}")
    for fault in report.faults:
        print(f"FAULT {fault}")
    print(f"{len(report.faults)} faults")
    return 1 if report.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
