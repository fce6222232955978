"""Members of a farm in network namespaces of their own, as on machines of their own (Linux, root).

Each namespace has one interface, whose other end hangs on a bridge of this machine; the scheduler
listens on the bridge's address. ``python -m tests.support.farm_networks MODEL.onnx`` places a model
on two such members over TLS, and prints what ``collage farm status`` says meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.farm_cluster import ROOT, FarmProcesses

NETWORK = "10.213.0"
"""The first three numbers of all addresses; chosen: hardly anybody uses them."""


def ip(*words: str) -> None:
    """Run ``ip``."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def possible() -> bool:
    """Whether namespaces can be made here."""
    if shutil.which("ip") is None or shutil.which("nsenter") is None or os.geteuid() != 0:
        return False
    name = f"collage-try-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True)
    if done.returncode == 0:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return done.returncode == 0


class Networks:
    """A bridge and a namespace for each name; ``close`` removes them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.mark = f"{os.getpid() % 100_000}"
        self.bridge = f"clb{self.mark}"
        self.address = f"{NETWORK}.1"
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", f"{self.address}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        for number, name in enumerate(self.names):
            space, outer, inner = self.space(name), self.cable(name), f"cli{number}{self.mark}"
            ip("netns", "add", space)
            ip("link", "add", outer, "type", "veth", "peer", "name", inner)
            ip("link", "set", inner, "netns", space)
            ip("link", "set", outer, "master", self.bridge, "up")
            ip("-n", space, "addr", "add", f"{NETWORK}.{number + 2}/24", "dev", inner)
            ip("-n", space, "link", "set", inner, "up")
            ip("-n", space, "link", "set", "lo", "up")

    def space(self, name: str) -> str:
        """A member's namespace."""
        return f"collage-{name}-{self.mark}"

    def cable(self, name: str) -> str:
        """The end of a member's interface that is on the bridge."""
        return f"clo{self.names.index(name)}{self.mark}"

    @property
    def prefixes(self) -> dict[str, list[str]]:
        """By name, what starts a command in its namespace; files and processors are the same."""
        return {
            name: ["nsenter", f"--net=/var/run/netns/{self.space(name)}"] for name in self.names
        }

    def listening(self, name: str) -> list[str]:
        """The addresses on which anything listens in a member's namespace."""
        shown = subprocess.run(
            [*self.prefixes[name], "ss", "--tcp", "--listening", "--numeric", "--no-header"],
            capture_output=True,
            text=True,
            check=True,
        )
        return [line.split()[3] for line in shown.stdout.splitlines()]

    def cut(self, name: str) -> None:
        """Cut a member off."""
        ip("link", "set", self.cable(name), "down")

    def mend(self, name: str) -> None:
        """Connect it again."""
        ip("link", "set", self.cable(name), "up")

    def close(self) -> None:
        """Remove everything."""
        for name in self.names:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", self.space(name))
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("link", "del", self.bridge)


def main() -> int:
    """Place a model on two members in namespaces of their own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--toolchains", default="tvm,onednn,onnxruntime")
    options = parser.parse_args()
    networks = Networks(["one", "two"])
    with tempfile.TemporaryDirectory(prefix="collage-networks-") as folder:
        farm = FarmProcesses(
            Path(folder),
            networks.names,
            host=networks.address,
            shares=len(os.sched_getaffinity(0)) < 2,
            prefixes=networks.prefixes,
        )
        collage = [sys.executable, "-m", "collage_engine"]
        words = ["place", options.model, "-o", f"{folder}/out", "--farm", farm.address]
        words += ["--budget", options.budget, "--toolchains", options.toolchains, "--threads", "1"]
        try:
            began = time.monotonic()
            placing = subprocess.Popen([*collage, *words], cwd=ROOT, env=farm.environment)
            while placing.poll() is None:
                time.sleep(15)
                print(f"--- after {time.monotonic() - began:.0f} s", flush=True)
                status = [*collage, "farm", "status", farm.address]
                subprocess.run(status, cwd=ROOT, env=farm.environment | {"COLUMNS": "150"})
            for name in networks.names:
                print(f"{name} listens on {', '.join(networks.listening(name))}", flush=True)
            return placing.returncode
        finally:
            farm.close()
            networks.close()


if __name__ == "__main__":
    raise SystemExit(main())
