"""Writes files whole or not at all, and reads the files that users name.

A file is written beside its name and renamed. Links are followed first, so that the link stays and
what it points to is replaced. Only regular files are read and written: opening a pipe may wait for
ever, and reading some devices changes them.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from collage_engine.support.time_limits import JOB_S

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
        OSError: It could not; the error names the path.
    """
    target = _target(path)
    folder = target.parent
    if not folder.is_dir():
        named = folder if Path(path).parent.is_dir() else Path(path).parent
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {named}", str(path))
    why = why_not_writable(folder)
    if why is not None:
        raise PermissionError(errno.EACCES, f"{why} in the folder {folder}", str(path))
    if len(os.fsencode(target.name)) + _UNFINISHED_BYTES > os.pathconf(folder, "PC_NAME_MAX"):
        raise OSError(errno.ENAMETOOLONG, "its name is too long", str(path))


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


def link_file(file: Path, place: Path) -> None:
    """Make a file known under another name: by a hard link, by a symbolic one across devices."""
    if place.exists():
        return
    with contextlib.suppress(OSError):
        os.link(file, place)
        return
    place.symlink_to(file)
