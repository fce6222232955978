"""Kills processes of a farm while it measures, and checks that no cost is lost or counted twice.

``python -m tests.support.farm_kills 200 --seed 1`` does a long campaign and prints a table; the
tests do a few. One farm serves all kills: a scheduler and two members on this machine. A
coordinator (``farm_groups``) has the groups of MNIST measured round after round; as soon as costs
arrive, a process that is drawn at random is killed with SIGKILL at a random moment: a worker, a
member's supervisor, a measuring child, a child for groups, the scheduler, or the coordinator.
Supervisor, scheduler and coordinator are started again, as a service manager would. Every so often
a whole ``collage place`` is disturbed instead. Time for which this process does not run, as in a
frozen control group, is not counted.
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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support.caches import fresh_cache
from tests.support.farm_cluster import ROOT, FarmProcesses
from tests.support.farm_groups import prepare

MNIST = ROOT / "resources" / "models" / "mnist.onnx"
TOOLCHAINS = ("onednn",)
"""Of the groups; chosen: it compiles in milliseconds, so that kills and not compilers take the
time. Whole runs have TVM beside it."""
BUDGET_S = 45
"""Seconds of budget that a whole run has; chosen."""
LATEST_SHARE = 1.2
"""Share of the budget within which something is killed: a run takes a little more than it."""
ENDS_S = 1800.0
"""Seconds after which a run that was disturbed counts as one that hangs."""
RECOVERS_S = 3600.0
"""Seconds within which costs must arrive again after a kill; chosen: on a machine that others use,
a scheduler that is killed costs two workers and their children half a minute."""
MOMENT_S = 3.0
"""Seconds after the first cost that has arrived within which something is killed; chosen: a few
groups long."""
WHOLE_EVERY = 20
"""Every how many kills a whole run is disturbed; chosen: it takes two minutes."""
FRESH_EVERY = 40
"""Every how many kills the store is a fresh one."""
FROZEN_S = 10.0
"""Seconds without a turn from which on this process was frozen, and the farm with it; chosen: Dask
counts a worker as lost after 20 s without a sign of life."""
CHILDREN = {
    "collage-measure": "measuring child",
    "collage-farm-gr": "child for groups",
    "collage-warden": "warden of a child",
}
"""Names of the processes below a worker, as the system cuts them to 15 characters, in words."""


class Awake:
    """A clock that stands still while this process is frozen.

    Attributes:
        seconds: Time for which this process ran.
        freezes: How often it was frozen for longer than members may be silent.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.freezes = 0
        self._last = time.monotonic()

    def wait(self, over: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is so, for so long at most; whether it is."""
        ends = self.seconds + seconds
        while not over():
            if self.seconds > ends:
                return False
            time.sleep(0.05)
            now = time.monotonic()
            self.seconds += min(now - self._last, 0.5)
            self.freezes += now - self._last > FROZEN_S
            self._last = now
        return True


@dataclass
class Report:
    """What became of the kills.

    Attributes:
        kinds: How often a process of each kind was killed.
        whole: How many of the kills were during a whole run.
        ended: How often a whole run ended by itself before its turn came.
        costs: Costs that arrived and were stored.
        rounds: How often all groups were measured.
        given_up: Groups that were asked again, because two machines had died under them or the
            scheduler was gone.
        recovery_s: Seconds from each kill until the next costs arrived.
        faults: Sentences about what must not be; empty: all went well.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    whole: int = 0
    ended: int = 0
    costs: int = 0
    rounds: int = 0
    given_up: int = 0
    recovery_s: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        recovery = sorted(self.recovery_s) or [0.0]
        lines = [
            f"{sum(self.kinds.values())} killed ({self.whole} during whole runs, {self.ended} of "
            f"which had ended before), {self.costs} costs in {self.rounds} rounds, "
            f"{self.given_up} groups asked again; the next costs after a median of "
            f"{recovery[len(recovery) // 2]:.1f} s, {recovery[-1]:.1f} s at most; by kind:"
        ]
        lines += [f"  {kind}: {count}" for kind, count in self.kinds.most_common()]
        lines += [f"FAULT {fault}" for fault in self.faults]
        return "\n".join([*lines, f"{len(self.faults)} faults"])


class FarmCampaign:
    """A farm whose processes are killed.

    Args:
        folder: For everything that is written.
        seed: Of the draws.
        whole_every: Every how many kills a whole run is disturbed; 0: never.
        budget_s: Budget of a whole run in seconds.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        whole_every: int = WHOLE_EVERY,
        budget_s: int = BUDGET_S,
    ) -> None:
        self.folder = folder
        self.budget_s = budget_s
        self.random = random.Random(seed)
        self.whole_every = whole_every
        self.report = Report()
        self.clock = Awake()
        self.names = ["one", "two"]
        self.requests = folder / "requests.json"
        self.requests.write_bytes(prepare(MNIST, TOOLCHAINS))
        self.farm = FarmProcesses(folder, self.names, shares=True)
        self.coordinator: subprocess.Popen[bytes] | None = None
        self.whole: subprocess.Popen[bytes] | None = None
        """The latest whole run."""
        self.wholes = 0
        self.stores = 0
        self.read = 0
        """Bytes of the journal that were read."""
        self.known: set[str] = set()
        """Keys of all costs that have arrived at the store in use."""
        self.fresh()

    def close(self) -> None:
        """End the farm."""
        self.end_coordinator()
        if self.whole is not None and self.whole.poll() is None:
            self.whole.kill()
            self.whole.wait()
        self.farm.close()

    # ------------------------------------------------------------------ processes

    @property
    def cache(self) -> Path:
        """Returns the coordinator's cache folder."""
        return self.folder / f"coordinator{self.stores}"

    @property
    def place_log(self) -> Path:
        """Returns the file of what the latest whole run has printed."""
        return self.folder / f"place{self.wholes}.log"

    def fresh(self) -> None:
        """Begin with an empty store."""
        self.end_coordinator()
        self.stores += 1
        fresh_cache(self.cache)
        self.known, self.read = set(), 0
        self.journal = self.folder / f"journal{self.stores}"
        self.journal.touch()

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of a coordinator."""
        return {
            **self.farm.environment,
            "COLLAGE_CACHE_DIR": str(self.cache),
            "COLLAGE_FARM_CERTIFICATE": str(self.farm.cache / "farm" / "certificate.pem"),
        }

    def start_coordinator(self) -> None:
        """Start the process that has groups measured."""
        words = [self.farm.address, str(self.requests), str(MNIST), str(self.journal)]
        with (self.folder / "coordinator.log").open("ab") as log:
            self.coordinator = subprocess.Popen(
                [sys.executable, "-m", "tests.support.farm_groups", *words],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=self.environment(),
            )

    def end_coordinator(self) -> None:
        """End it, if it runs."""
        if self.coordinator is not None:
            self.coordinator.kill()
            self.coordinator.wait()
            self.coordinator = None

    def start_whole(self) -> subprocess.Popen[bytes]:
        """Start a command that places the model."""
        words = ["place", str(MNIST), "-o", str(self.folder / "out"), "--farm", self.farm.address]
        words += ["--toolchains", ",".join(("tvm", *TOOLCHAINS)), "--budget", f"{self.budget_s}s"]
        words += ["--measure", "all"]
        self.wholes += 1
        with self.place_log.open("wb") as log:
            self.whole = subprocess.Popen(
                [sys.executable, "-m", "collage_engine", *words],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=self.environment(),
            )
        return self.whole

    # ------------------------------------------------------------------ kills

    def kill_one(self, number: int) -> None:
        """Kill something once costs arrive."""
        if number and number % FRESH_EVERY == 0:
            self.fresh()
        if self.whole_every and number % self.whole_every == self.whole_every - 1:
            self.end_coordinator()
            self.take_journal()
            self.disturb_whole(number)
            self.check(f"kill {number}")
            return
        if self.coordinator is None:
            self.start_coordinator()
        assert self.coordinator is not None
        began = self.clock.seconds
        if not self.clock.wait(self.has_news, RECOVERS_S):
            log = (self.folder / "coordinator.log").read_text(errors="replace")[-300:]
            self.fault(f"before kill {number}: no costs arrived for {RECOVERS_S:.0f} s: {log}")
            self.end_coordinator()
            return
        self.report.recovery_s.append(self.clock.seconds - began)
        self.clock.wait(lambda: False, self.random.uniform(0.0, MOMENT_S))
        kind = self.kill_any(self.coordinator, "coordinator")
        if kind == "coordinator":
            self.end_coordinator()
        self.take_journal()
        self.check(f"kill {number} ({kind})")

    def disturb_whole(self, number: int) -> None:
        """Start a whole run, kill something at a random moment, and see that it ends."""
        freezes = self.clock.freezes
        command = self.start_whole()
        # A command that finds no scheduler says so and ends: nothing is killed before it has one.
        self.clock.wait(lambda: self.has_scheduler(command), ENDS_S)
        moment = self.random.uniform(1.0, LATEST_SHARE * self.budget_s)
        if self.clock.wait(lambda: command.poll() is not None, moment):
            kind = "nothing"
            self.report.ended += 1
        else:
            kind = self.kill_any(command, "place")
        self.report.whole += 1
        if not self.clock.wait(lambda: command.poll() is not None, ENDS_S):
            command.kill()
            self.fault(f"kill {number} ({kind}): the whole run did not end")
        if command.wait() and self.clock.freezes > freezes:
            said = self.place_log.read_text(errors="replace").strip()[-300:]
            print(
                f"kill {number} ({kind}): the farm was frozen; repeated after: {said}", flush=True
            )
            command = self.start_whole()
            self.clock.wait(lambda: command.poll() is not None, ENDS_S)
        if command.wait() and kind != "place":
            said = self.place_log.read_text(errors="replace").strip()[-300:]
            self.fault(f"kill {number} ({kind}): status {command.returncode}: {said}")

    def has_scheduler(self, command: subprocess.Popen[bytes]) -> bool:
        """Whether a command is connected with the farm, or has ended."""
        if command.poll() is not None:
            return True
        with contextlib.suppress(psutil.Error):
            return any(
                one.raddr and one.raddr.port == self.farm.port and one.status == "ESTABLISHED"
                for one in psutil.Process(command.pid).net_connections("tcp")
            )
        return False

    def kill_any(self, command: subprocess.Popen[bytes], called: str) -> str:
        """Kill one process of a kind drawn among those that there are; the kind's name."""
        kinds: dict[str, list[int]] = {
            called: [command.pid],
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
                    found = child.name()
                    if found.startswith("collage-"):
                        kinds.setdefault(CHILDREN.get(found, found), []).append(child.pid)
        kind = self.random.choice(sorted(kinds))
        victim = self.random.choice(kinds[kind])
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        self.report.kinds[kind] += 1
        at = time.strftime("%H:%M:%S")
        print(f"{at} kill {sum(self.report.kinds.values())}: {kind} {victim}", flush=True)
        if kind == "scheduler":
            self.farm.processes["serve"].wait()
            self.farm.serve()
        if kind == "supervisor":
            for name in self.names:
                if self.farm.processes[f"join-{name}"].pid == victim:
                    self.farm.processes[f"join-{name}"].wait()
                    self.farm.join(name)
        return kind

    # ------------------------------------------------------------------ checks

    def fault(self, text: str) -> None:
        """Note a fault, and print it at once."""
        self.report.faults.append(text)
        print(f"FAULT {text}", flush=True)

    def has_news(self) -> bool:
        """Whether a cost has arrived since the journal was last read."""
        return self.take_journal() > 0

    def take_journal(self) -> int:
        """Read what the coordinator has noted; how many costs have arrived."""
        with self.journal.open("rb") as stream:
            stream.seek(self.read)
            content = stream.read()
        whole = content[: content.rfind(b"\n") + 1]
        self.read += len(whole)
        costs = 0
        for line in whole.decode().splitlines():
            what, *words = line.split(" ")
            if what == "cost":
                costs += 1
                self.known.add(words[0])
            elif what == "lost":
                self.report.given_up += 1
            elif what == "round":
                self.report.rounds += 1
            elif what == "FAULT":
                self.fault(" ".join(words))
        self.report.costs += costs
        return costs

    def check(self, when: str) -> None:
        """Look for costs that were lost, counted twice, or that no machine measured."""
        store = self.cache / "measurements.db"
        if not store.exists():
            if self.known:
                self.fault(f"{when}: the store is gone")
            return
        with contextlib.closing(sqlite3.connect(store, timeout=60)) as connection:
            verdict = connection.execute("pragma integrity_check").fetchone()[0]
            there = connection.execute(
                "select count(*) from sqlite_master where name = 'measurements'"
            ).fetchone()[0]
            rows = (
                connection.execute("select key, cost from measurements").fetchall() if there else []
            )
        if verdict != "ok":
            self.fault(f"{when}: the store is {verdict}")
        keys = [key for key, _ in rows]
        if len(keys) != len(set(keys)):
            self.fault(f"{when}: {len(keys) - len(set(keys))} costs were counted twice")
        if not self.known <= set(keys):
            self.fault(f"{when}: {len(self.known - set(keys))} costs were lost")
        nameless = [key for key, cost in rows if '"machine"' not in cost]
        if nameless:
            self.fault(f"{when}: {len(nameless)} costs name no machine")
        self.known |= set(keys)

    # ------------------------------------------------------------------ the campaign

    def run(self, count: int, seconds: float) -> Report:
        """Kill so often, or for so long; then a run that nobody disturbs must end well."""
        for number in range(count):
            if self.clock.seconds > seconds:
                break
            self.kill_one(number)
            if number % 10 == 9:
                print(f"after {self.clock.seconds:.0f} s: {self.report}", flush=True)
        self.end_coordinator()
        self.take_journal()
        last = self.start_whole()
        if not self.clock.wait(lambda: last.poll() is not None, ENDS_S):
            last.kill()
        if last.wait():
            said = self.place_log.read_text(errors="replace").strip()[-300:]
            self.fault(f"the run after all kills: status {last.returncode}: {said}")
        self.check("the run after all kills")
        return self.report


def main() -> int:
    """Do a campaign and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=36_000.0, help="stop after so long")
    parser.add_argument("--whole-every", type=int, default=WHOLE_EVERY)
    parser.add_argument("--keep", type=Path, help="folder for logs and stores, which is kept")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.keep
        if folder is None:
            temporary = tempfile.TemporaryDirectory(prefix="collage-farm-kills-")
            folder = Path(stack.enter_context(temporary))
        folder.mkdir(parents=True, exist_ok=True)
        campaign = FarmCampaign(folder.resolve(), options.seed, options.whole_every)
        try:
            report = campaign.run(options.count, options.seconds)
        except KeyboardInterrupt:
            report = campaign.report
            print("interrupted; until then:", flush=True)
        finally:
            campaign.close()
    print(report)
    return 1 if report.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
