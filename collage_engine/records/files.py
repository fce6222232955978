"""Writes files whole or not at all, writes through to devices and pipes, reads safely.

A regular file is written beside its name and renamed. Links are followed first, so that the link
stays and what it points to is replaced. What is no regular file (a terminal, ``/dev/null``, a pipe,
``/dev/stdout``) is never renamed over: its content is written through to it at the end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import select
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

PIPE_WAIT_S = 10.0
"""Seconds to wait until somebody opens the other end of a named pipe, or writes to it; chosen: a
person who starts two commands in turn is not late."""
YOUNG_S = 60.0
"""Seconds after its creation in which the file of a writer may not have been locked yet; chosen."""
UNKNOWN_OWNER_S = 86400.0
"""Seconds after which an unfinished file is removed where locks do not tell whether its writer
lives (a network disk); chosen: no file takes a day to write."""
MOST_LINKS = 40
"""Links that are followed before the name counts as a circle; Linux's own limit (path_resolution,
section 7 of the manual)."""
_UNFINISHED_BYTES = 18
"""Bytes by which an unfinished file's name is longer than the file's (``atomic_file``)."""
READ_BYTES = 1 << 20
"""Bytes that are read from a pipe at a time; chosen."""


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Give the block a new, empty file to fill, and put its content at ``path`` at the end.

    The new file lies beside the file that it replaces, so that the rename stays on one file system.
    It is as open to other users as that file, or as the user's other files. If the block raises,
    the new file is removed and whatever was at ``path`` is untouched. What a process that was
    killed left beside is removed by the next writer of the same file.

    Args:
        path: The file's final name; its folder exists. Where it names a device, a pipe or one of
            this process's own descriptors (``/dev/stdout``), the content is written through to it.

    Yields:
        The path of the empty file that the block fills (or overwrites).

    Raises:
        OSError: The folder does not exist or cannot be written, the disk is full, or nobody reads
            from the pipe.

    Example:
        >>> with atomic_file("report.csv") as new:
        ...     new.write_text("toolchain,median_us")
    """
    target = destination(path)
    if is_special(target):
        with tempfile.TemporaryDirectory(prefix="collage-through-") as folder:
            new = Path(folder) / (Path(path).name or "file")
            new.touch()
            yield new
            _write_through(new, target)
        return
    assert isinstance(target, Path)
    remove_unfinished(target)
    new = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    held = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield new
        with contextlib.suppress(FileNotFoundError):
            os.chmod(new, target.stat().st_mode & 0o777)
        os.replace(new, target)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    finally:
        os.close(held)


def write_atomically(path: str | Path, content: bytes | str) -> None:
    """Write a whole file at once, text as UTF-8; raises OSError as ``atomic_file`` does."""
    with atomic_file(path) as new:
        new.write_bytes(content.encode() if isinstance(content, str) else content)


def destination(path: str | Path) -> Path | int:
    """Return where writing leads: the file behind all links, or a descriptor of this process.

    ``/dev/stdout`` and ``/dev/fd/63`` are descriptors: whoever opened them again by name would
    write from the beginning of the file that they belong to.

    Raises:
        OSError: The links form a circle.
    """
    place = os.path.abspath(path)
    for _ in range(MOST_LINKS):
        folder, name = os.path.split(place)
        folder = os.path.realpath(folder)
        place = os.path.join(folder, name)
        if folder == f"/proc/{os.getpid()}/fd" and name.isdecimal():
            return int(name)
        if not os.path.islink(place):
            return Path(place)
        place = os.path.join(folder, os.readlink(place))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def is_special(target: Path | int) -> bool:
    """Tell whether a destination is written through to, being neither file nor folder."""
    if isinstance(target, int):
        return True
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def is_standard_output(path: str | Path) -> bool:
    """Tell whether writing to ``path`` is writing to this process's standard output."""
    try:
        return destination(path) == 1
    except OSError:
        return False


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


def check_writable(path: str | Path) -> None:
    """Find out before any work whether ``atomic_file`` could write to ``path``.

    What an earlier writer that was killed left beside the file is removed.

    Raises:
        OSError: It could not; the error names the path.
    """
    target = destination(path)
    if isinstance(target, int):
        if fcntl.fcntl(target, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "it is open for reading only", str(path))
        return
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if is_special(target):
        if stat.S_ISSOCK(target.stat().st_mode):
            raise OSError(errno.ENXIO, "it is a socket", str(path))
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "no permission to write to it", str(path))
        return
    folder = target.parent
    if not folder.is_dir():
        named = folder if Path(path).parent.is_dir() else Path(path).parent
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {named}", str(path))
    why = why_not_writable(folder)
    if why is not None:
        raise PermissionError(errno.EACCES, f"{why} in the folder {folder}", str(path))
    if len(os.fsencode(target.name)) + _UNFINISHED_BYTES > os.pathconf(folder, "PC_NAME_MAX"):
        raise OSError(errno.ENAMETOOLONG, "its name is too long", str(path))
    if target.exists():
        _check_replaceable(target, path)
    remove_unfinished(target)


def _check_replaceable(target: Path, path: str | Path) -> None:
    """Check that a file that is there may be renamed over; its folder can be written."""
    if _is_mounted(target):
        reason = "it is mounted by itself, so that it cannot be replaced; mount its folder"
        raise OSError(errno.EBUSY, reason, str(path))
    folder = target.parent.stat()
    owners = (0, folder.st_uid, target.stat().st_uid)
    if folder.st_mode & stat.S_ISVTX and os.geteuid() not in owners:
        reason = f"it is another user's, whose files nobody else may replace in {target.parent}"
        raise PermissionError(errno.EPERM, reason, str(path))


def _is_mounted(target: Path) -> bool:
    """Tell whether a file is a mount point, as containers are given single files.

    The fifth field of each line of ``mountinfo`` (proc_pid_mountinfo, section 5 of the manual) is a
    path, with four characters in octal.
    """
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return False
    wanted = os.fsencode(target)
    for plain in (b"\\", b" ", b"\t", b"\n"):
        wanted = wanted.replace(plain, b"\\%03o" % ord(plain))
    return any(line.split(b" ")[4] == wanted for line in lines)


def remove_unfinished(target: Path) -> None:
    """Remove what writers of ``target`` that were killed left beside it; the living keep theirs."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        with contextlib.suppress(OSError):
            _remove_if_abandoned(left)


def _remove_if_abandoned(left: Path) -> None:
    status = left.lstat()
    age = time.time() - status.st_mtime
    if not stat.S_ISREG(status.st_mode) or age < YOUNG_S:
        return
    held = os.open(left, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # its writer lives
    except OSError:
        if age < UNKNOWN_OWNER_S:
            return
    finally:
        os.close(held)
    left.unlink()


def _write_through(new: Path, target: Path | int) -> None:
    """Copy a file's content to a device, a pipe or a descriptor of this process."""
    sink = os.dup(target) if isinstance(target, int) else _open_special(target)
    with new.open("rb") as content, os.fdopen(sink, "wb") as stream:
        shutil.copyfileobj(content, stream)


def _open_special(target: Path) -> int:
    """Open a device or a named pipe for writing; waits a while for a reader of the pipe."""
    flags = os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK
    deadline = time.monotonic() + PIPE_WAIT_S
    while True:
        try:
            opened = os.open(target, flags)
            break
        except OSError as error:
            if error.errno != errno.ENXIO or not stat.S_ISFIFO(target.stat().st_mode):
                raise
            if time.monotonic() > deadline:
                reason = f"nobody has read from the pipe within {PIPE_WAIT_S:g} s"
                raise OSError(errno.ENXIO, reason, str(target)) from None
            time.sleep(0.05)
    os.set_blocking(opened, True)
    return opened


def read_file(path: str | Path, most_bytes: int) -> bytes:
    """Read a whole file that a user named, without ever waiting for ever.

    A pipe is read too, as long as somebody writes to it.

    Args:
        path: The file.
        most_bytes: How large it may be.

    Raises:
        OSError: It is a folder or absent, larger than ``most_bytes``, or a pipe that nobody
            writes to.
    """
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(opened, "rb", buffering=0) as stream:
        mode = os.fstat(opened).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        found = bytearray()
        while len(found) <= most_bytes:
            if not stat.S_ISREG(mode):
                _wait_for_content(opened, path)
            part = stream.read(READ_BYTES)
            if part is None:
                continue
            if not part:
                return bytes(found)
            found += part
    raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20} MiB", str(path))


def _wait_for_content(opened: int, path: str | Path) -> None:
    """Wait until a pipe has something to read, or its writer has closed it."""
    poll = select.poll()
    poll.register(opened, select.POLLIN)
    if not poll.poll(PIPE_WAIT_S * 1000):
        reason = f"nothing was written to the pipe for {PIPE_WAIT_S:g} s"
        raise TimeoutError(errno.ETIMEDOUT, reason, str(path))


def link_file(file: Path, place: Path) -> None:
    """Make a file known under another name: by a hard link, by a symbolic one across devices."""
    if place.exists():
        return
    with contextlib.suppress(OSError):
        os.link(file, place)
        return
    place.symlink_to(file)
