"""Folders written whole or not at all: filled beside their place, then renamed.

A place that cannot be renamed (a mount point; a folder whose parent is not ours to write) is filled
in a folder inside, and the entries change places one by one. A crash leaves ``.NAME.*.partial`` and
``.NAME.*.old``, which ``tidy`` removes.
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

_NOT_FROM_OUTSIDE = {errno.EBUSY, errno.EXDEV, errno.EPERM, errno.EACCES, errno.EROFS}
"""Errors of renaming a place of which only the inside may be changed, for example a mount point."""


def write_whole(place: Path, fill: Callable[[Path], None], last: str) -> None:
    """Have ``fill`` fill a new folder and put it at ``place``, whatever is there.

    Args:
        place: The folder's final name.
        fill: Writes the content into the empty folder that it is given.
        last: The entry without which the folder counts for nothing; it arrives after all others.

    Raises:
        OSError: It cannot be written; what was at ``place`` is still there.
    """
    place = real(place)
    if place.exists() and only_inside(place):
        _write(place, place, fill, last)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write(place, place.parent, fill, last)
    except OSError as error:
        if error.errno not in _NOT_FROM_OUTSIDE or not place.is_dir():
            raise
        _write(place, place, fill, last)


def real(place: Path) -> Path:
    """Return the folder itself where ``place`` is a link to it, because the link stays."""
    return place.resolve() if place.exists() else place.absolute()


def only_inside(place: Path) -> bool:
    """Return whether a folder that exists can be filled, and neither renamed nor replaced."""
    return os.path.ismount(place) or not os.access(place.parent, os.W_OK | os.X_OK)


def leftovers(place: Path) -> list[Path]:
    """List what writers that were killed left beside ``place`` and inside it."""
    place = real(place)
    found: list[Path] = []
    for folder in (place.parent, place):
        for suffix in (".partial", ".old"):
            found += folder.glob(f".{glob.escape(place.name)}.*{suffix}")
    return found


def tidy(place: Path) -> None:
    """Remove what a killed writer left; what it had moved away and not replaced comes back."""
    place = real(place)
    for folder in leftovers(place):
        before = folder / place.name
        if folder.suffix == ".old" and before.exists() and not place.exists():
            before.rename(place)
        shutil.rmtree(folder, ignore_errors=True)


def _write(place: Path, room: Path, fill: Callable[[Path], None], last: str) -> None:
    """Fill a folder in ``room`` (the place's parent, or the place) and put it in place."""
    new = room / f".{place.name}.{uuid.uuid4().hex[:8]}.partial"
    new.mkdir()  # as open to others as the user's other folders; mkdtemp's are private
    old: Path | None = None
    try:
        fill(new)
        old = new.with_suffix(".old")
        old.mkdir()
        if room == place:
            _exchange(place, new, old, last)
        else:
            _replace(place, new, old)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        if old is not None:
            # It is empty, unless what was there could not be moved back: that is kept.
            with contextlib.suppress(OSError):
                old.rmdir()
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _replace(place: Path, new: Path, old: Path) -> None:
    if not place.exists():
        new.rename(place)
        return
    place.rename(old / place.name)
    try:
        new.rename(place)
    except OSError:
        (old / place.name).rename(place)
        raise


def _exchange(place: Path, new: Path, old: Path, last: str) -> None:
    """Move the place's entries to ``old`` and those of ``new`` to the place, or all back again."""
    before = [entry.name for entry in place.iterdir() if entry not in (new, old)]
    arriving = [entry.name for entry in new.iterdir()]
    moved: list[tuple[Path, Path]] = []
    # True sorts after False: what counts leaves first and arrives last.
    away = [(place / n, old / n) for n in sorted(before, key=lambda n: n != last)]
    here = [(new / n, place / n) for n in sorted(arriving, key=lambda n: n == last)]
    try:
        for source, target in away + here:
            source.rename(target)
            moved.append((source, target))
    except OSError:
        for source, target in reversed(moved):
            target.rename(source)
        raise
