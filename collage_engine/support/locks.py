"""Locks between processes, held on files and folders.

The kernel lets go of a lock when its process ends, however it ends; the file itself stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def hold_lock(path: str | Path, *, wait: bool = True) -> int:
    """Take the lock on a file, which is made if need be, or on a folder.

    Args:
        path: The file or folder.
        wait: Whether to wait for another process or thread to let go.

    Returns:
        The descriptor that holds the lock until it is closed, or the process ends.

    Raises:
        BlockingIOError: Another holder has it, and ``wait`` is False.
        OSError: The file cannot be made, or its file system has no locks.
    """
    how = os.O_RDONLY if Path(path).is_dir() else os.O_RDWR | os.O_CREAT
    held = os.open(path, how, 0o666)
    try:
        fcntl.flock(held, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(held)
        raise
    return held


@contextlib.contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Hold the lock on a file or folder during a block; waits for other processes and threads.

    Where the file system has no locks the block goes on without one.
    """
    held: int | None = None
    with contextlib.suppress(OSError):
        held = hold_lock(path)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def is_locked(path: str | Path) -> bool:
    """Tell whether a living process holds the lock on a file; False where there is no such file."""
    if not Path(path).exists():
        return False
    try:
        os.close(hold_lock(path, wait=False))
    except BlockingIOError:
        return True
    return False
