"""Gives members of a farm network namespaces of their own, as on several machines (Linux, root).

Each namespace has one interface, whose other end hangs on a bridge of this machine; the scheduler
listens on the bridge's address. ``python -m tests.support.farm_networks MODEL.onnx`` places a model
on two such members over TLS, and prints what ``collage farm status`` says meanwhile. With
``--freeze 60`` or ``--cut 60`` the member that does the run is frozen, or cut off, after a minute,
and it is printed after how long the other one does it.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from collage_engine.cli.farm_command import print_status
from collage_engine.farm.farms import look_at
from collage_engine.records.errors import FarmError
from tests.support.farm_cluster import ROOT, FarmProcesses

LOOK_S = 1.0
"""Seconds between two looks at the farm; chosen."""
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
        """Returns the name of a member's network namespace."""
        return f"collage-{name}-{self.mark}"

    def cable(self, name: str) -> str:
        """Returns the name of the end of a member's interface that is on the bridge."""
        return f"clo{self.names.index(name)}{self.mark}"

    @property
    def prefixes(self) -> dict[str, list[str]]:
        """Returns, by name, what starts a command in a member's namespace.

        Files and processors are the same in all of them.
        """
        return {
            name: ["nsenter", f"--net=/var/run/netns/{self.space(name)}"] for name in self.names
        }

    def listening(self, name: str) -> list[str]:
        """Returns the addresses on which anything listens in a member's namespace."""
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


def watch(
    placing: subprocess.Popen[bytes],
    farm: FarmProcesses,
    networks: Networks,
    options: argparse.Namespace,
) -> None:
    """Print the farm's state until the placing has ended, and disturb a member if that is asked."""
    began = time.monotonic()
    at_s = options.freeze or options.cut or math.inf
    first, disturbed_s, shown_s = "", math.inf, 0.0
    while placing.poll() is None:
        time.sleep(LOOK_S)
        now_s = time.monotonic() - began
        try:
            known = look_at(farm.address)
        except FarmError as error:
            print(f"--- after {now_s:.0f} s: {error}", flush=True)
            continue
        if now_s - shown_s >= options.every:
            print(f"--- after {now_s:.0f} s", flush=True)
            print_status(known)
            shown_s = now_s
        doing = next((one.machine for one in known.placements if one.machine), "")
        if not first and doing and now_s >= at_s:
            first, disturbed_s = doing, now_s
            disturb(farm, networks, first, options.cut is not None)
            print(f"{first} is {'cut off' if options.cut is not None else 'frozen'}", flush=True)
        elif first and doing not in ("", first) and disturbed_s < math.inf:
            print(f"the run began on {doing} {now_s - disturbed_s:.0f} s later", flush=True)
            disturbed_s = math.inf


def disturb(farm: FarmProcesses, networks: Networks, name: str, cut: bool) -> None:
    """Cut a member off, or freeze its worker with everything below it."""
    if cut:
        networks.cut(name)
    else:
        for process in farm.everybody(name):
            process.send_signal(signal.SIGSTOP)


def main() -> int:
    """Place a model on two members in namespaces of their own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--toolchains", default="tvm,onednn,onnxruntime")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two prints")
    disturbed = parser.add_mutually_exclusive_group()
    disturbed.add_argument("--freeze", type=float, metavar="S", help="after so many seconds")
    disturbed.add_argument("--cut", type=float, metavar="S", help="after so many seconds")
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
            os.environ |= {"COLLAGE_CACHE_DIR": str(farm.cache), "COLUMNS": "150"}
            placing = subprocess.Popen([*collage, *words], cwd=ROOT, env=farm.environment)
            watch(placing, farm, networks, options)
            for name in networks.names:
                print(f"{name} listens on {', '.join(networks.listening(name))}", flush=True)
            return placing.returncode
        finally:
            farm.close()
            networks.close()


if __name__ == "__main__":
    raise SystemExit(main())
