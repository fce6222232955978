"""Names of files in requests: what no file can be called is refused with a sentence."""

from __future__ import annotations

from pathlib import Path

from collage_engine.support.errors import UsageError

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
