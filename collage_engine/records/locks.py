"""Locks between processes, held on files.

The kernel lets go of a lock when its process ends, however it ends; the file itself stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class HeldLock:
    """A lock on a file that is held from construction to ``release``, or to the process's end.

    Args:
        path: The file; it is made if need be.
        wait: Whether to wait for another holder to let go.

    Raises:
        BlockingIOError: Another holder has it, and ``wait`` is False.
        OSError: The file cannot be made, or its file system has no locks.
    """

    def __init__(self, path: str | Path, *, wait: bool = True) -> None:
        # Here, since it takes a tenth of a second and most processes hold no lock.
        from filelock import FileLock, Timeout

        self.path = Path(path)
        # No soft lock instead: a file that merely exists would outlive a process that is killed.
        self._lock = FileLock(self.path, thread_local=False, fallback_to_soft=False)
        try:
            self._lock.acquire(timeout=-1 if wait else 0)
        except Timeout as error:
            raise BlockingIOError(f"{self.path} is locked by another process") from error

    @property
    def held(self) -> bool:
        """Tell whether ``release`` was not called yet."""
        return self._lock.is_locked

    def release(self) -> None:
        """Let go of the lock; the file stays."""
        self._lock.release()


@contextlib.contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Hold the lock on a file during a block; waits for other processes and threads."""
    lock = HeldLock(path)
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def folder_locked(folder: str | Path) -> Iterator[None]:
    """Hold a lock on a folder itself during a block, so that no file is left behind for it.

    It waits for other processes and threads that lock the folder. Where the file system has no
    locks the block goes on without one.
    """
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def is_locked(path: str | Path) -> bool:
    """Tell whether a living process holds the lock on a file; False where there is no such file."""
    if not Path(path).exists():
        return False
    try:
        HeldLock(path, wait=False).release()
    except BlockingIOError:
        return True
    return False
