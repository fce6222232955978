"""Starts a Python that has apache-tvm and numpy, and nothing of this project."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "ml-dtypes", "typing-extensions", "psutil")


def bare_site(folder: Path) -> Path:
    """Makes a folder with links to the top-level entries of those packages only."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        distribution = metadata.distribution(package)
        for name in {f.parts[0] for f in distribution.files or () if f.parts[0] != ".."}:
            source = Path(str(distribution.locate_file(name)))
            place = folder / name
            if source.exists() and not place.exists() and name != "__pycache__":
                place.symlink_to(source)
    return folder


def run_bare(site: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs ``python -S`` with only ``site`` on its path, and a clean environment."""
    environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )
