"""Folders: where things are kept between runs, scratch, and those that are written whole.

Scratch folders go away with their owner, however it ends. The owner holds a lock on a file in its
folder for as long as it lives; the kernel lets go of it even when the process is killed. Whoever
makes the next scratch folder removes those of the dead.

Folders that are written whole or not at all are filled beside their place, then renamed. A crash
leaves ``.NAME.*.partial`` and ``.NAME.*.old``, which ``tidy`` removes.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from collage_engine.records.errors import CollageError
from collage_engine.records.locks import HeldLock
from collage_engine.records.time_limits import ANSWER_S


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


def write_whole(place: Path, fill: Callable[[Path], None]) -> None:
    """Have ``fill`` fill a new folder and put it at ``place``, whatever is there.

    Args:
        place: The folder's final name; where it is a link to a folder, that one is replaced.
        fill: Writes the content into the empty folder that it is given.

    Raises:
        OSError: It cannot be written; what was at ``place`` is still there.
    """
    place = real(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.parent / f".{place.name}.{uuid.uuid4().hex[:8]}.partial"
    new.mkdir()  # as open to others as the user's other folders; mkdtemp's are private
    old = new.with_suffix(".old")
    try:
        fill(new)
        while not _swap(new, place, old):
            pass  # each turn is another writer that has come to its end in between
    except BaseException:
        with contextlib.suppress(OSError):
            old.rmdir()  # it is empty, unless what was there could not be moved back
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _swap(new: Path, place: Path, old: Path) -> bool:
    """Move what is at ``place`` into ``old``, ``new`` to ``place``, and remove ``old``.

    Returns:
        Whether ``new`` is there now; if not, another writer was quicker, whose folder is there.
    """
    with contextlib.suppress(FileNotFoundError):  # nothing is there, or a writer just moved it
        if place.exists():
            old.mkdir()
            place.rename(old / place.name)
    overtaken = False
    try:
        new.rename(place)
    except OSError as error:
        overtaken = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
        if not overtaken:
            before = old / place.name
            if before.exists():
                before.rename(place)
            raise
    shutil.rmtree(old, ignore_errors=True)
    return not overtaken


def real(place: Path) -> Path:
    """Return the folder itself where ``place`` is a link to it, because the link stays."""
    return place.resolve() if place.exists() else place.absolute()


def why_not_replaceable(place: Path) -> str | None:
    """Return in a few words why a folder that is there cannot be renamed; None where it can."""
    place = real(place)
    if os.path.ismount(place):
        return "it is mounted by itself: name a folder inside it"
    if not os.access(place.parent, os.W_OK | os.X_OK):
        return f"no permission to replace it in {place.parent}: name a folder inside it"
    return None


def tidy(place: Path) -> None:
    """Remove what a killed writer left; what it had moved away and not replaced comes back."""
    place = real(place)
    for suffix in (".partial", ".old"):
        for folder in place.parent.glob(f".{glob.escape(place.name)}.*{suffix}"):
            before = folder / place.name
            if suffix == ".old" and before.exists() and not place.exists():
                before.rename(place)
            shutil.rmtree(folder, ignore_errors=True)
