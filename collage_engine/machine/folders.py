"""Folders: where things are kept between runs, scratch, and those that are written whole.

Scratch folders go away with their owner, however it ends. The owner holds a lock on its folder for
as long as it lives; the kernel lets go of it even when the process is killed. What makes the
next scratch folder removes those of the dead.

Folders that are written whole or not at all are filled beside their place, then renamed. A crash
leaves ``.NAME.*.partial`` and ``.NAME.*.old``, which ``tidy`` removes.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from collage_engine.support.errors import CollageError
from collage_engine.support.files import hold_lock
from collage_engine.support.time_limits import ANSWER_S


def cache_folder() -> Path:
    """Return the cache folder of this project: $COLLAGE_CACHE_DIR, else the system's choice.

    Raises CollageError where neither says anything (no home).
    """
    chosen = os.environ.get("COLLAGE_CACHE_DIR")
    import platformdirs

    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        return Path(platformdirs.user_cache_dir("collage"))
    except RuntimeError as error:  # no HOME, and no such user
        raise CollageError(
            f"there is no folder to keep measurements in ({error}): set COLLAGE_CACHE_DIR to one"
        ) from error


PREFIX = "collage-process-"


class Scratch:
    """A folder for one process and its children; everything in it is lost at ``close``.

    Args:
        beside: The folder that it is made in, hidden; None: the system's for temporary files.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, beside: Path | None = None) -> None:
        if beside is not None:
            beside.mkdir(parents=True, exist_ok=True)
        remove_orphans(beside)
        prefix = PREFIX if beside is None else f".{PREFIX}"
        self._root = Path(tempfile.mkdtemp(prefix=prefix, dir=beside))
        self._lock: int | None = None
        with contextlib.suppress(OSError):  # without locks nobody can tell that the owner is dead
            self._lock = hold_lock(self._root)
        self.path = self._root / "tmp"
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
                os.close(self._lock)
                self._lock = None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_orphans(beside: Path | None = None) -> None:
    """Remove the scratch folders whose owners are dead, of those made in the same folder."""
    parent = Path(tempfile.gettempdir()) if beside is None else beside
    with contextlib.suppress(OSError):
        for folder in parent.glob(f"{PREFIX if beside is None else '.' + PREFIX}*"):
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime < ANSWER_S:
                    continue  # its owner may be about to lock it
                lock = hold_lock(folder, wait=False)  # BlockingIOError: its owner lives
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def replace_atomically(folder: Path, fill: Callable[[Path], None]) -> None:
    """Have ``fill`` fill a new folder and put it at ``folder``, whatever is there.

    Args:
        folder: The folder's final name; where it is a link to a folder, that one is replaced.
        fill: Writes the content into the empty folder that it is given.

    Raises:
        OSError: It cannot be written; what was at ``folder`` is still there.
    """
    folder = resolve(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}.partial"
    old = new.with_suffix(".old")
    new.mkdir()  # as open to others as the user's other folders; mkdtemp's are private
    try:
        fill(new)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)


def resolve(path: Path) -> Path:
    """Return the folder itself where ``path`` is a link to it, because the link stays."""
    return path.resolve() if path.exists() else path.absolute()


def remove_leftovers(place: Path) -> None:
    """Remove what a killed writer left; what it had moved away and not replaced comes back."""
    place = resolve(place)
    left = f".{glob.escape(place.name)}.????????"
    for old in place.parent.glob(f"{left}.old"):
        if not place.exists():
            old.rename(place)
    for folder in [*place.parent.glob(f"{left}.old"), *place.parent.glob(f"{left}.partial")]:
        shutil.rmtree(folder, ignore_errors=True)
