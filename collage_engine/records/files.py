"""Files that appear whole or not at all: written beside their name, then renamed."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Give the block a new, empty file to fill, and rename it to ``path`` when the block ends.

    The new file lies beside ``path``, so that the rename stays on one file system. It is as open to
    other users as the file it replaces, or as the user's other files. If the block raises, the new
    file is removed and whatever was at ``path`` is untouched. A process that is killed leaves a
    hidden file ``.NAME.*.partial`` behind.

    Args:
        path: The file's final name; its folder exists.

    Yields:
        The path of the empty file that the block fills (or overwrites).

    Raises:
        OSError: The folder does not exist or cannot be written, or the disk is full.

    Example:
        >>> with atomic_file("report.csv") as new:
        ...     new.write_text("toolchain,median_us")
    """
    path = Path(path)
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield new
        with contextlib.suppress(FileNotFoundError):
            os.chmod(new, path.stat().st_mode & 0o777)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def write_atomically(path: str | Path, content: bytes | str) -> None:
    """Write a whole file at once, text as UTF-8; raises OSError as ``atomic_file`` does."""
    with atomic_file(path) as new:
        new.write_bytes(content.encode() if isinstance(content, str) else content)
