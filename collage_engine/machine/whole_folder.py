"""Folders written whole or not at all: filled beside their place, then renamed.

A crash leaves ``.NAME.*.partial`` and ``.NAME.*.old``, which ``tidy`` removes.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path


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
