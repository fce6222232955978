"""A folder that nobody can write to, not even root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder read-only during a block: by its mode, and for root by a mount of its own."""
    if os.geteuid() != 0:
        mode = folder.stat().st_mode
        folder.chmod(0o555)
        try:
            yield
        finally:
            folder.chmod(mode)
        return
    done = subprocess.run(["mount", "--bind", folder, folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("a read-only folder for root needs the right to mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
