"""Logs every process of the engine to one rotating file beside the measurement store.

Modules log with the standard library, ``logging.getLogger(__name__)``. A face (the command line,
the service) calls ``configure`` once. Child processes of ``machine.worker`` get the same settings
from their parent: they write to the same file, and to the same standard error where records shall
appear on it, by a descriptor of their own, because a child's own standard error is kept for the
reason of a crash. A program that only imports the engine gets no file and no output.

Records that the user sees anyway, such as the stages of a run, carry ``extra=records.event.SHOWN``
and go to the file only.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
from dataclasses import dataclass
from pathlib import Path

from collage_engine.machine.folders import cache_folder
from collage_engine.support.errors import CollageError
from collage_engine.support.text import printable

ROOT = "collage_engine"
"""Name of the logger above those of all modules."""
FOLDER = "logs"
FILE_NAME = "collage.log"
MOST_BYTES = 2_000_000
"""Size in bytes from which on the file becomes ``collage.log.1`` at the next start of a program;
chosen: some thousand runs' child processes, and small enough to attach to a report of a defect."""
FORMAT = "%(asctime)s %(levelname)-7s %(process_name)s[%(process)d] %(name)s: %(message)s"

NOTHING = logging.CRITICAL + 1
"""A level above all others, at which no record is shown."""

logging.getLogger(ROOT).addHandler(logging.NullHandler())
_installed: list[logging.Handler] = []


@dataclass(frozen=True)
class LogSettings:
    """The settings of the log that a process hands to its children, as plain values.

    Attributes:
        path: The log file; empty where there is none.
        level: Lowest level that standard error shows; ``NOTHING`` shows nothing.
        shown_by: The descriptor of the standard error that shows them; -1: there is none.
    """

    path: str = ""
    level: int = NOTHING
    shown_by: int = -1


_settings = LogSettings()


class PrintableFormatter(logging.Formatter):
    """Writes records so that no text from a file reaches a terminal as an escape sequence."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        return printable(super().format(record), keep_lines=True)


class SharedFileHandler(logging.handlers.WatchedFileHandler):
    """Appends to a file that several processes write to, and that any of them may rename.

    Every record is one ``write`` to a file opened for appending, so lines do not mix. What cannot
    be written (a full disk, a folder that is read-only by now) is dropped: logging must not fail
    the work.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        with contextlib.suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop a record."""


def configure(verbosity: int = 0, name: str = "collage", *, quietly: int = NOTHING) -> Path | None:
    """Log this process, and the children that it starts from now on.

    Args:
        name: What the log calls this process.
        verbosity: How often the user asked for more on standard error: 1 shows what happens, 2
            and above shows details.
        quietly: Lowest level that standard error shows at verbosity 0.

    Returns:
        The log file, or None where no folder can be written.
    """
    level = {0: quietly, 1: logging.INFO}.get(verbosity, logging.DEBUG)
    path: Path | None = None
    with contextlib.suppress(OSError, CollageError):
        folder = cache_folder() / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / FILE_NAME
        if file.exists() and file.stat().st_size > MOST_BYTES:
            file.replace(folder / f"{FILE_NAME}.1")
        file.open("a").close()
        path = file
    shown_by = os.dup(2) if level < NOTHING else -1
    inherit(LogSettings(path=str(path or ""), level=level, shown_by=shown_by), name)
    return path


def for_children() -> LogSettings:
    """Return the settings that a child process inherits."""
    return _settings


def inherit(settings: LogSettings, name: str) -> None:
    """Log this process, under a name, by the settings of its parent."""
    global _settings
    logger = logging.getLogger(ROOT)
    for handler in _installed:
        logger.removeHandler(handler)
        handler.close()
    _installed.clear()
    _settings = settings
    logger.setLevel(min(logging.INFO, settings.level))
    logger.propagate = False  # libraries put handlers of their own on the root logger
    handlers: list[logging.Handler] = []
    if settings.path:
        file = SharedFileHandler(
            Path(settings.path), encoding="utf-8", errors="backslashreplace", delay=True
        )
        file.setFormatter(PrintableFormatter(FORMAT, defaults={"process_name": name}))
        file.setLevel(logging.INFO)
        handlers.append(file)
    if settings.level < NOTHING:
        stream = os.fdopen(settings.shown_by, "w", errors="backslashreplace", closefd=False)
        shown = logging.StreamHandler(stream)
        shown.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
        shown.setLevel(settings.level)
        shown.addFilter(lambda record: not getattr(record, "shown", False))
        handlers.append(shown)
    for handler in handlers:
        logger.addHandler(handler)
        _installed.append(handler)
