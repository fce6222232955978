"""Reads and writes whole files, locks them between processes, and finds those that ship.

A file is written beside its name and renamed. Links are followed first, so that the link stays and
what it points to is replaced. Only regular files are read and written: opening a pipe may wait for
ever, and reading some devices changes them.

The kernel lets go of a lock when its process ends, however it ends; the file itself stays.

``np.savez`` takes no array called ``file`` and numpy cannot name bfloat16: such arrays are
written as raw 2-byte items, and their true type comes from elsewhere (the manifest).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import stat
import tempfile
import time
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from collage_engine.support.errors import CollageError, UsageError
from collage_engine.support.time_limits import JOB_S

if TYPE_CHECKING:
    import numpy as np

LARGEST_TEXT = 1 << 28
"""Bytes of the largest document that is read at once, and of the largest row of a table, 256 MiB;
chosen: some fifty times the largest seen."""
LARGEST_TABLE = 4 * LARGEST_TEXT
"""Bytes of the largest file that is read row by row, 1 GiB: several of the largest rows."""
_UNFINISHED_BYTES = 18
"""Bytes by which an unfinished file's name is longer than the file's (``atomic_file``)."""


# -- writing ---------------------------------------------------------------------------


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Give the block a new, empty file to fill, and put its content at ``path`` at the end.

    The new file lies beside the file that it replaces, so that the rename stays on one file system.
    It is as open to other users as that file, or as the user's other files. If the block raises,
    the new file is removed and whatever was at ``path`` is untouched. What a process that was
    killed left beside is removed by a later writer of the same file.

    Args:
        path: The file's final name; its folder exists.

    Yields:
        The path of the empty file that the block fills (or overwrites).

    Raises:
        OSError: What is there is no regular file; the folder does not exist or cannot be written;
            or the disk is full.

    Example:
        >>> with atomic_file("report.csv") as new:
        ...     new.write_text("toolchain,median_us")
    """
    target = _target(path)
    remove_unfinished(target)
    new = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield new
        with contextlib.suppress(FileNotFoundError):
            os.chmod(new, target.stat().st_mode & 0o777)
        os.replace(new, target)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def write_atomically(path: str | Path, content: bytes | str) -> None:
    """Write a whole file at once, text as UTF-8; raises OSError as ``atomic_file`` does."""
    with atomic_file(path) as new:
        new.write_bytes(content.encode() if isinstance(content, str) else content)


def check_writable(path: str | Path) -> None:
    """Find out before any work whether ``atomic_file`` could write to ``path``.

    Raises:
        UsageError: It could not; the sentence names the path.
    """
    try:
        target = _target(path)
        folder = target.parent
        if not folder.is_dir():
            named = folder if Path(path).parent.is_dir() else Path(path).parent
            raise OSError(errno.ENOENT, f"there is no folder {named}")
        why = why_not_writable(folder)
        if why is not None:
            raise OSError(errno.EACCES, f"{why} in the folder {folder}")
        if len(os.fsencode(target.name)) + _UNFINISHED_BYTES > os.pathconf(folder, "PC_NAME_MAX"):
            raise OSError(errno.ENAMETOOLONG, "its name is too long")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def why_not_writable(folder: Path) -> str | None:
    """Return in a few words why no file can be made in a folder; None where one can.

    A file without a name is made there for a moment, since rights alone do not tell: to root all
    of them are granted, also in ``/sys`` and ``/proc``.
    """
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except PermissionError:
        return "no permission"
    except OSError as error:
        return f"no file can be made ({error.strerror or error})"


def remove_unfinished(target: Path) -> None:
    """Remove what writers of ``target`` that were killed left beside it."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        with contextlib.suppress(OSError):
            if time.time() - left.lstat().st_mtime > JOB_S:
                left.unlink()


def _target(path: str | Path) -> Path:
    """Return the file behind all links, which need not be there yet."""
    target = Path(os.path.realpath(path))
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        _must_be_regular(target.stat().st_mode, path)
    return target


# -- reading ---------------------------------------------------------------------------


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading; links are followed.

    Raises:
        OSError: It is absent, no regular file, or cannot be read.
    """
    _must_be_regular(os.stat(path).st_mode, path)
    return open(path, "rb")


def read_file(path: str | Path, most_bytes: int) -> bytes:
    """Read a whole regular file of at most so many bytes.

    Raises:
        OSError: As ``open_regular`` does, or it is larger.
    """
    with open_regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20} MiB", str(path))
        return stream.read()


def _must_be_regular(mode: int, path: str | Path) -> None:
    if stat.S_ISREG(mode):
        return
    kind = "folder" if stat.S_ISDIR(mode) else "pipe, socket or device"
    raise OSError(errno.EINVAL, f"it is a {kind}, not a regular file", str(path))


def link_file(file: Path, target: Path) -> None:
    """Make a file known under another name: by a hard link, by a symbolic one across devices."""
    if target.exists():
        return
    with contextlib.suppress(OSError):
        os.link(file, target)
        return
    target.symlink_to(file)


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


def resource(name: str) -> Path:
    """Path of ``resources/<name>``, in an installed wheel or in a source checkout."""
    package = Path(__file__).resolve().parents[1]
    for root in (package / "_resources", package.parent / "resources"):
        path = root / name
        if path.exists():
            return path
    raise CollageError(f"the installation lacks its resource {name}: install the package again")


MOST_BYTES = 255
"""Bytes of the longest name of a file (NAME_MAX in Linux's limits.h)."""


def user_path(text: str) -> Path:
    """Return the path that a request names, with ``~`` for a home folder.

    Raises:
        UsageError: It is empty, holds what no path can, or names a user that does not exist.
    """
    if not text.strip():
        raise UsageError("the path is empty: name a file")
    if "\0" in text:
        raise UsageError(f"{text!r} is no path: it holds a character that no path can")
    if any(len(part.encode(errors="replace")) > MOST_BYTES for part in Path(text).parts):
        raise UsageError(f"{text[:80]!r}… is no path: a name in it is longer than {MOST_BYTES}")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{text!r}: {error}") from error


def file_name(text: str) -> str:
    """Return the last part of a name, for a file of ours.

    Raises:
        UsageError: No file can have it.
    """
    name = Path(text).name
    if not name or name in (".", "..") or "\0" in name:
        raise UsageError(f"{text!r} is no name of a file")
    if len(name.encode(errors="replace")) > MOST_BYTES:
        raise UsageError(f"{name[:80]!r}… is no name of a file: it is longer than {MOST_BYTES}")
    return name


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[int, int]]:
    """Write arrays to a file without compression; equal arrays give equal bytes.

    Args:
        path: The file.
        arrays: The arrays by name, in the order in which they are written.

    Returns:
        Where the values of each array begin in the file, and how many bytes they are.
    """
    import numpy as np  # takes 0.1 s, and most of those who import this module write no arrays

    places = {}
    with path.open("wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(name + ".npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(entry, "w", force_zip64=True) as stream:
                np.lib.format.write_array(
                    stream,
                    np.ascontiguousarray(array).reshape(array.shape),
                    allow_pickle=False,
                )
                places[name] = file.tell() - array.nbytes, array.nbytes
    return places
