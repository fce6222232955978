"""Reading files that others made: only regular ones, so that nothing is waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class SpecialFileError(OSError):
    """The path names a pipe, a socket, a device or a folder; ``strerror`` says which."""


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading; links are followed.

    A pipe, a socket or a device is refused before it is opened: opening may wait for ever, and
    reading some devices changes them.

    Raises:
        SpecialFileError: It is no regular file.
        OSError: It is absent or cannot be read.
    """
    _must_be_regular(os.stat(path).st_mode, path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    stream = os.fdopen(descriptor, "rb")
    try:
        # It may have been replaced since it was looked at.
        _must_be_regular(os.fstat(descriptor).st_mode, path)
    except BaseException:
        stream.close()
        raise
    return stream


def read_regular(path: str | Path, most: int) -> bytes:
    """Read a whole regular file of at most so many bytes.

    Raises:
        OSError: As ``open_regular`` does, or it is larger.
    """
    with open_regular(path) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return data


def _must_be_regular(mode: int, path: str | Path) -> None:
    if stat.S_ISREG(mode):
        return
    kind = _KINDS.get(stat.S_IFMT(mode), "a special file")
    raise SpecialFileError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
