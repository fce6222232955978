"""What a session's file already holds, found out before a run that will be saved to it."""

from __future__ import annotations

from pathlib import Path

from collage_engine.records.errors import SessionError, UsageError
from collage_engine.records.files import check_writable
from collage_engine.session.document import Document
from collage_engine.session.file import load_session


def earlier_session(path: str | Path) -> Document | None:
    """Return what a session's file already holds.

    It is None where there is no such file, or an empty one.

    Raises:
        UsageError: Writing there would lose what is no session of this version.
    """
    target = Path(path)
    try:
        if target.is_dir():
            raise UsageError(f"the session {path} is a folder")
        check_writable(target)
        if not target.exists() or not target.stat().st_size:
            return None
    except OSError as error:
        raise UsageError(f"the session {path} cannot be written: {error.strerror}") from error
    try:
        return load_session(target)
    except SessionError as error:
        raise UsageError(f"the session would overwrite a file: {error}") from error
