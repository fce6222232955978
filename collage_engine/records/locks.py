"""Locks between processes, held on files.

The kernel lets go of a lock when its process ends, however it ends; the file itself stays.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


class HeldLock:
    """A lock on a file that is held from construction to ``release``, or to the process's end.

    Args:
        path: The file; it is made if need be.
        wait: Whether to wait for another holder to let go.

    Raises:
        BlockingIOError: Another holder has it, and ``wait`` is False.
        OSError: The file cannot be made.
    """

    def __init__(self, path: str | Path, *, wait: bool = True) -> None:
        self.path = Path(path)
        self._file = self.path.open("a")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BaseException:
            self._file.close()
            raise

    @property
    def held(self) -> bool:
        """Whether ``release`` was not called yet."""
        return not self._file.closed

    def release(self) -> None:
        """Let go of the lock; the file stays."""
        self._file.close()


@contextlib.contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Hold the lock on a file during a block; waits for other processes and threads."""
    lock = HeldLock(path)
    try:
        yield
    finally:
        lock.release()


def is_locked(path: str | Path) -> bool:
    """Whether a living process holds the lock on a file; False where there is no such file."""
    if not Path(path).exists():
        return False
    try:
        HeldLock(path, wait=False).release()
    except BlockingIOError:
        return True
    return False
