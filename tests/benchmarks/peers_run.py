"""The processes of the benchmark against other runtimes."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("peers_child.py")
TIMEOUT_S = 600.0


class PeerFailed(Exception):
    """A runtime that cannot take part, with the reason."""


class Peer:
    """A runtime in its own process, loaded and checked."""

    def __init__(self, spec: dict[str, Any], folder: Path) -> None:
        with tempfile.NamedTemporaryFile(
            "w", suffix=".json", dir=folder, delete=False
        ) as described:
            json.dump(spec, described)
        self._spec = Path(described.name)
        # Thread settings of ours are no business of another runtime.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OMP_", "GOMP_", "KMP_", "TVM_", "MKL_", "OPENBLAS_"))
        }
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), described.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        try:
            opened = self._answer()
        except PeerFailed:
            self.close()
            raise
        self.version = str(opened["version"])
        self.error = float(opened["error"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], TIMEOUT_S)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            status = self._process.poll()
            raise PeerFailed("it did not answer in time" if not ready else f"it ended ({status})")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            missing = "ModuleNotFoundError" in answer["failed"]
            raise PeerFailed(f"{'absent: ' if missing else ''}{answer['failed']}")
        return answer

    def round(self, warm_s: float, seconds: float, least: int = 3) -> tuple[float, float]:
        """Wall and CPU µs of the round's median calls."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"round {warm_s} {seconds} {least}\n")
        self._process.stdin.flush()
        taken = self._answer()
        return statistics.median(taken["wall"]) * 1e6, statistics.median(taken["cpu"]) * 1e6

    def close(self) -> None:
        self._spec.unlink(missing_ok=True)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def artifact_spec(folder: Path) -> dict[str, Any]:
    """How the child loads an artifact and checks it by its sample."""
    manifest = json.loads((folder / "manifest.json").read_text())
    return {
        "kind": "artifact",
        "folder": str(folder),
        "threads": manifest["threads"],
        "inputs": str(folder / "sample_input.npz"),
        "outputs": str(folder / "sample_output.npz"),
        "output_names": [about["name"] for about in manifest["outputs"]],
    }
