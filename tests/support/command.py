"""The command line, run as a user runs it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def collage(
    command: str,
    *more: object,
    cache: Path | None = None,
    timeout: float | None = 280,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run ``collage`` from the project's folder.

    Args:
        command: Its arguments, as a shell splits them.
        more: Further arguments as they are.
        cache: The cache folder; None: that of the tests.
        timeout: Seconds after which it counts as hanging.
        environment: Further variables.
    """
    caches = {"COLLAGE_CACHE_DIR": str(cache)} if cache is not None else {}
    return subprocess.run(
        [sys.executable, "-m", "collage_engine", *shlex.split(command), *map(str, more)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=timeout,
        env={**os.environ, **caches, **environment},
    )


def started(
    *arguments: object, cache: Path, cwd: Path = ROOT, **options: Any
) -> subprocess.Popen[str]:
    """Start ``collage``, for tests that do something while it runs.

    Args:
        arguments: Its arguments.
        cache: The cache folder.
        cwd: The folder that it is started in.
        options: Of ``subprocess.Popen``.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "collage_engine", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLLAGE_CACHE_DIR": str(cache)},
        **options,
    )


def python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python of its own.

    Args:
        code: Its text, which may be indented.
        arguments: What it finds in ``sys.argv``.
        options: Of ``subprocess.run``.
    """
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    about: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 280, **options}
    return subprocess.run(command, **about)
