"""Recovery copies: one session file a document, and a note of what it is a copy of.

A copy is removed when its document is saved or closed properly; what is left at the next start
was lost in a crash and is offered back.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QStandardPaths


def recovery_folder() -> Path:
    named = os.environ.get("COLLAGE_EXPLORER_RECOVERY")
    if named:
        return Path(named)
    base = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.GenericStateLocation)
    return Path(base or Path.home()) / "collage-explorer" / "recovery"


@dataclass(frozen=True)
class Copy:
    """``session`` holds the document; ``source`` is the file it was opened from."""

    session: Path
    source: str
    saved_as: str

    @property
    def note(self) -> Path:
        return self.session.with_suffix(".json")


def new_copy(source: str, saved_as: str) -> Copy:
    """A name for a document's recovery copy; its note is written at once."""
    folder = recovery_folder()
    folder.mkdir(parents=True, exist_ok=True)
    copy = Copy(folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}.collage", source, saved_as)
    beside = copy.note.with_suffix(".tmp")
    beside.write_text(json.dumps({"source": source, "saved_as": saved_as, "process": os.getpid()}))
    beside.replace(copy.note)
    return copy


def discard(copy: Copy | None) -> None:
    if copy is None:
        return
    for path in (copy.session, copy.note, *copy.session.parent.glob(copy.session.name + "-*")):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def left_behind() -> list[Copy]:
    """Copies whose window is gone without having removed them."""
    folder = recovery_folder()
    found = []
    for note in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            data = json.loads(note.read_text())
            copy = Copy(note.with_suffix(".collage"), data["source"], data.get("saved_as", ""))
            process = int(data["process"])
        except (ValueError, KeyError, TypeError, OSError):
            continue
        if process != os.getpid() and _alive(process):
            continue
        if process == os.getpid():
            continue
        if copy.session.exists():
            found.append(copy)
        else:
            discard(copy)
    return found


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
