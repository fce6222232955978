"""Writing files so that they are never seen half-written."""

from __future__ import annotations

import contextlib
import os


def write_atomically(path: str, content: bytes) -> None:
    """Write a file beside its place, then rename it.

    Args:
        path: The file; an existing one is replaced.
        content: All of its bytes.

    Raises:
        OSError: The file cannot be written; an existing one stays as it is.
    """
    beside = f"{path}.{os.getpid()}.tmp"
    try:
        with open(beside, "wb") as file:
            file.write(content)
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
