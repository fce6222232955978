"""Makes scratch folders that go away with their owner, however it ends.

The owner holds a lock on a file in its folder for as long as it lives; the kernel lets go of it
even when the process is killed. Whoever makes the next scratch folder removes those of the dead.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

from collage_engine.records.locks import HeldLock
from collage_engine.records.time_limits import ANSWER_S

PREFIX = "collage-scratch-"
LOCK = "owner.lock"


class Scratch:
    """A folder for one process and its children; everything in it is lost at ``close``.

    Args:
        beside: The folder that it is made in, hidden; None: the system's for temporary files.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, beside: Path | None = None) -> None:
        remove_orphans(beside)
        prefix = PREFIX if beside is None else f".{PREFIX}"
        self._root = Path(tempfile.mkdtemp(prefix=prefix, dir=beside))
        self._lock: HeldLock | None = None
        with contextlib.suppress(OSError):  # without locks nobody can tell that the owner is dead
            self._lock = HeldLock(self._root / LOCK)
        self.path = self._root / "tmp"
        self.note = self._root / "note"
        """A file for a few words that outlive what uses the folder."""
        self.path.mkdir()
        self._changing = threading.Lock()

    def empty(self) -> None:
        """Remove the content, once the processes that used it have ended."""
        with self._changing:
            if not self._root.exists():
                return
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        with self._changing:
            shutil.rmtree(self._root, ignore_errors=True)
            if self._lock is not None:
                self._lock.release()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_orphans(beside: Path | None = None) -> None:
    """Remove the scratch folders whose owners are dead, of those made in the same folder."""
    place = Path(tempfile.gettempdir()) if beside is None else beside
    with contextlib.suppress(OSError):
        for folder in place.glob(f"{PREFIX if beside is None else '.' + PREFIX}*"):
            with contextlib.suppress(OSError):
                _remove_if_orphan(folder)


def _remove_if_orphan(folder: Path) -> None:
    status = folder.stat()
    if status.st_uid != os.getuid() or time.time() - status.st_mtime < ANSWER_S:
        return
    if not (folder / LOCK).exists():  # it died before it locked it, or while it was removed
        shutil.rmtree(folder, ignore_errors=True)
        return
    lock = HeldLock(folder / LOCK, wait=False)  # BlockingIOError: its owner lives
    shutil.rmtree(folder, ignore_errors=True)
    lock.release()
