"""No command waits without end for a named pipe that nobody writes to, wherever it reads a file.

All commands run at once, since each of them waits for ten seconds: what is tested is that they end,
with one sentence that names the pipe.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from collage_engine.artifact.loader.run_artifact import MANIFEST

ROOT = Path(__file__).resolve().parents[2]
MNIST = str(ROOT / "resources" / "models" / "mnist.onnx")
OLD = ROOT / "tests" / "data" / "old_versions"
SESSION = str(OLD / "session_1.collage")
ARTIFACT = str(OLD / "artifact_1")
PROBLEM = str(ROOT / "resources" / "search" / "example.json")
HANGS_S = 400.0
"""Seconds after which a command counts as one that hangs; a busy machine starts all of them in
some minutes."""

SOON_OVER = ("--budget", "3s", "--threads", "1", "--toolchains", "onnxruntime")
"""Of a run that comes to its end, since sessions are written there."""

COMMANDS = {
    "place a model": ["place", "PIPE", "-o", "OUT"],
    "place with a session": ["place", MNIST, "-o", "OUT", "--session", "PIPE", *SOON_OVER],
    "place with inputs": ["place", MNIST, "-o", "OUT", "--inputs", "PIPE"],
    "place a placement": ["place", MNIST, "-o", "OUT", "--placement", "PIPE"],
    "place a list of shapes": ["place", MNIST, "-o", "OUT", "--shapes", "PIPE"],
    "place on a farm": ["place", MNIST, "-o", "OUT", "--farm", "PIPE"],
    "candidates": ["candidates", "PIPE"],
    "explain": ["explain", "PIPE", "0"],
    "compare": ["compare", "PIPE", "1", "last"],
    "report": ["report", "PIPE", "-o", "OUT.html"],
    "report with other runtimes": ["report", SESSION, "-o", "OUT.html", "--peers", "PIPE"],
    "export": ["export", "PIPE", "-o", "OUT"],
    "export with a key": ["export", SESSION, "-o", "OUT", "--sign", "PIPE"],
    "export to verify": ["export", "-o", ARTIFACT, "--verify", "PIPE"],
    "run": ["run", "FOLDER"],
    "run to verify": ["run", ARTIFACT, "--verify", "PIPE"],
    "search": ["search", "PIPE"],
    "search to check": ["search", PROBLEM, "--check", "PIPE"],
    "store import": ["store", "import", "PIPE"],
    "farm join": ["farm", "join", "PIPE"],
    "farm join with a certificate": [
        "farm",
        "join",
        "tls://127.0.0.1:1",
        "--certificate",
        "PIPE",
    ],
    "farm status": ["farm", "status", "PIPE"],
    "farm stop": ["farm", "stop", "PIPE"],
}

USUAL = (
    "place a model",
    "place with a session",
    "place on a farm",
    "candidates",
    "report",
    "export",
    "run",
    "search",
)
"""One command for each way of reading a file; ``COLLAGE_LONG_TESTS=1`` runs all of them."""
if not os.environ.get("COLLAGE_LONG_TESTS"):
    COMMANDS = {name: COMMANDS[name] for name in USUAL}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Every command, running, each with a pipe of its own.

    A command that reads from a pipe would be the reader that another one, which writes to the same
    pipe, looks for.
    """
    folder = tmp_path_factory.mktemp("pipes")
    artifact = folder / "artifact"
    shutil.copytree(ARTIFACT, artifact)
    (artifact / MANIFEST).unlink()
    os.mkfifo(artifact / MANIFEST)
    running = {}
    for number, (name, words) in enumerate(COMMANDS.items()):
        pipe = folder / f"waiting{number}"
        os.mkfifo(pipe)
        names = {"PIPE": str(pipe), "FOLDER": str(artifact), "OUT": str(folder / f"out{number}")}
        names["OUT.html"] = f"{names['OUT']}.html"
        running[name] = subprocess.Popen(
            [sys.executable, "-m", "collage_engine", *(names.get(word, word) for word in words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
    yield running
    for process in running.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.timeout(HANGS_S + 60)
def test_a_command_does_not_wait_for_a_pipe(
    started: dict[str, subprocess.Popen[str]], name: str
) -> None:
    process = started[name]
    _, said = process.communicate(timeout=HANGS_S)
    assert process.returncode in (1, 2), said
    last = said.strip().splitlines()[-1]
    assert "waiting" in last or MANIFEST in last, said
    assert "Traceback" not in said and "a defect" not in said
