"""Starts a real farm on this machine: a scheduler and members in processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.caches import fresh_cache

ROOT = Path(__file__).resolve().parents[2]
START_S = 600.0
"""Seconds for a process to start on a busy machine; chosen."""
PROBE = "from collage_engine.toolchains.registry import probe_all; probe_all()"
"""Finds out which toolchains there are, and keeps it in the cache folder's memory."""


class FarmProcesses:
    """``collage farm serve`` and some ``collage farm join``, with a cache folder of their own.

    Args:
        folder: For the cache folder and logs.
        members: Names of the machines, one for each of this machine's processors at most.
        host: What the scheduler listens on.
        tls: Whether connections are encrypted.
        shares: Whether all members may use the same processor, each with a temporary folder of its
            own, so that no lock keeps them apart: for tests that look at no times.
        drift: Share of drift from which on a member pauses; None: the farm's own.
        environments: Variables of single members, by name.
        prefixes: Commands that start single members elsewhere, such as in a namespace, by name.
    """

    def __init__(
        self,
        folder: Path,
        members: Sequence[str],
        host: str = "127.0.0.1",
        tls: bool = True,
        shares: bool = False,
        drift: float | None = 9.0,
        environments: Mapping[str, Mapping[str, str]] | None = None,
        prefixes: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.folder = folder
        self.cache = fresh_cache(folder / "cache")
        self.environment = os.environ | {
            "COLLAGE_CACHE_DIR": str(self.cache),
            "COLLAGE_BUILD_DIR": os.environ.get("COLLAGE_BUILD_DIR", str(folder / "native")),
            "TMPDIR": str(folder / "tmp"),
        }
        (folder / "tmp").mkdir(exist_ok=True)
        self.host, self.tls, self.shares, self.drift = host, tls, shares, drift
        self.environments, self.prefixes = dict(environments or {}), prefixes or {}
        self.port = 0
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.serve()
        allowed = sorted(os.sched_getaffinity(0))
        self.processors = {
            name: allowed[0 if shares else number] for number, name in enumerate(members)
        }
        self._probe_once(members)
        for name in members:
            self.join(name)

    def _probe_once(self, members: Sequence[str]) -> None:
        """Look once for what members of one processor and one environment would each look for."""
        paths = Counter(self.environments.get(name, {}).get("PYTHONPATH") for name in members)
        for path in [path for path, count in paths.items() if count > 1]:
            subprocess.run(
                [sys.executable, "-c", PROBE],
                cwd=ROOT,
                env=self.environment | ({} if path is None else {"PYTHONPATH": path}),
                preexec_fn=lambda: os.sched_setaffinity(0, {self.processors[members[0]]}),
                check=True,
            )

    def _start(
        self,
        name: str,
        *words: str,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(
                [*prefix, sys.executable, "-m", "collage_engine", "farm", *words],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=self.environment | dict(environment or {}),
                start_new_session=True,
            )
        self.processes[name] = started
        return started

    def serve(self) -> None:
        """Start the scheduler; again on the same port, after the first time."""
        log = self.folder / "serve.log"
        log.unlink(missing_ok=True)
        words = ["serve", "--host", self.host, "--port", str(self.port)]
        started = self._start("serve", *words, *([] if self.tls else ["--no-tls"]))
        ends = time.monotonic() + START_S
        while " is served" not in (text := log.read_text() if log.exists() else ""):
            assert started.poll() is None and time.monotonic() < ends, text
            time.sleep(0.05)
        self.address = text.split()[2]
        self.port = int(self.address.rpartition(":")[2])

    def join(self, name: str) -> None:
        """Start a member on its processor; again, after its supervisor has died."""
        words = ["join", self.address, "--name", name]
        words += [] if self.drift is None else ["--drift", str(self.drift)]
        words += ["--processors", str(self.processors[name])]
        own = self.folder / f"tmp-{name}"
        if self.shares:
            own.mkdir(exist_ok=True)
        if not (self.cache / f"farm-member-{name}").exists():
            fresh_cache(self.cache / f"farm-member-{name}")
        environment = {"TMPDIR": str(own)} if self.shares else {}
        environment |= self.environments.get(name, {})
        prefix = self.prefixes.get(name, ())
        self._start(f"join-{name}", *words, environment=environment, prefix=prefix)

    def everybody(self, name: str) -> list[psutil.Process]:
        """Returns a member's worker and all processes below it."""
        worker = self.worker(name)
        return [worker, *worker.children(recursive=True)] if worker is not None else []

    def worker(self, name: str) -> psutil.Process | None:
        """Returns the worker's process of a member."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.processes[f"join-{name}"].pid).children():
                if "worker_process" in " ".join(child.cmdline()):
                    return child
        return None

    def everything(self) -> list[psutil.Process]:
        """Returns all processes of the farm."""
        found = []
        for process in self.processes.values():
            with contextlib.suppress(psutil.Error):
                top = psutil.Process(process.pid)
                found += [top, *top.children(recursive=True)]
        return found

    def close(self) -> None:
        """End everything."""
        for process in self.everything():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
                process.kill()
        for started in self.processes.values():
            started.wait()
