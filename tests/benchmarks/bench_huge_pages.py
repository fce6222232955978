"""What huge pages gain an artifact, and what they cost: loaded by its loader, with and without.

    python -m tests.benchmarks.bench_huge_pages ARTIFACT … [--sessions 5] [--rounds 16]

Two processes a session, one with ``COLLAGE_HUGE_PAGES=0``, in turns, process CPU time. Where in
memory a process comes to lie moves its time by several percent: the ratio is the median of the
sessions' medians, with the least and the largest beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.peers_run import Peer
from tests.benchmarks.peers_stats import paired_ratio

SWITCH = "COLLAGE_HUGE_PAGES"

COST = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("loader", sys.argv[1])
loader = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loader)
model = loader.load(sys.argv[2])
kinds = model.kinds("inputs")
model(loader.read_npz(sys.argv[2] + "/sample_input.npz", kinds))
status = dict(line.split(":") for line in open("/proc/self/status"))
print(json.dumps([model.huge_pages.bytes, model.huge_pages.seconds,
                  *(int(status[name].split()[0]) for name in ("VmRSS", "VmHWM"))]))
"""
LOADER = Path(__file__).parents[2] / "collage_engine" / "artifact" / "loader" / "run_artifact.py"


def cost(folder: Path, switch: str) -> list[float]:
    """Bytes moved, seconds that took, resident size after two runs and its peak in KiB."""
    done = subprocess.run(
        [sys.executable, "-c", COST, str(LOADER), str(folder)],
        env={**os.environ, SWITCH: switch},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[float] = json.loads(done.stdout)
    return found


def session(spec: dict[str, Any], scratch: Path, rounds: int) -> tuple[float, float, float]:
    """Median ms without and with, and the median of the paired ratios less 1."""
    peers: list[Peer] = []
    taken: list[list[float]] = [[], []]
    try:
        for switch in ("0", "1"):
            os.environ[SWITCH] = switch
            peers.append(Peer(spec, scratch))
        for number in range(rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                taken[which].append(peers[which].round(0.02, 0.1)[1])
    finally:
        for peer in peers:
            peer.close()
    ratio = paired_ratio(taken[1], taken[0])
    assert ratio is not None
    without, with_them = (statistics.median(times) / 1e3 for times in taken)
    return without, with_them, ratio.middle - 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifacts", nargs="+", type=Path)
    parser.add_argument("--sessions", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=16)
    options = parser.parse_args()
    print(
        "| artifact | without, ms | with, ms | difference (least, largest) | moved, MB "
        "| in, ms | resident, MB | peak, MB |\n|---|---|---|---|---|---|---|---|"
    )
    for folder in options.artifacts:
        manifest = json.loads((folder / "manifest.json").read_text())
        spec = {
            "kind": "artifact",
            "folder": str(folder),
            "threads": manifest["threads"],
            "inputs": str(folder / "sample_input.npz"),
            "outputs": str(folder / "sample_output.npz"),
            "output_names": [about["name"] for about in manifest["outputs"]],
        }
        with tempfile.TemporaryDirectory() as scratch:
            sat = [session(spec, Path(scratch), options.rounds) for _ in range(options.sessions)]
        without, with_them, gains = zip(*sat, strict=True)
        before, after = cost(folder, "0"), cost(folder, "1")
        print(
            f"| {folder.name} | {statistics.median(without):.2f} "
            f"| {statistics.median(with_them):.2f} | {statistics.median(gains):+.1%} "
            f"({min(gains):+.1%}, {max(gains):+.1%}) | {after[0] / 1e6:.1f} "
            f"| {after[1] * 1e3:.0f} | {before[2] / 1e3:.0f} → {after[2] / 1e3:.0f} "
            f"| {before[3] / 1e3:.0f} → {after[3] / 1e3:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
