"""Logs every process of the engine to one rotating file beside the measurement store.

Modules log with the standard library, ``logging.getLogger(__name__)``. A face (the command line,
the service) calls ``configure`` once. Child processes of ``machine.worker`` get the same settings
from their parent: they write to the same file, and what shall appear on standard error travels over
their message pipe to the process that has one, because a child's own standard error is kept for the
reason of a crash. A program that only imports the engine gets no file and no output.

Records that the user sees anyway, such as the stages of a run, carry ``extra=records.event.SHOWN``
and go to the file only.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from collage_engine.machine.folders import cache_folder
from collage_engine.records.errors import CollageError
from collage_engine.records.locks import locked
from collage_engine.records.text import printable

ROOT = "collage_engine"
"""Name of the logger above those of all modules."""
FOLDER = "logs"
FILE_NAME = "collage.log"
MOST_BYTES = 2_000_000
"""Size in bytes from which on the file becomes ``collage.log.1`` and a new one begins; chosen: some
thousand runs' child processes, and still small enough to attach to a report of a defect."""
FORMAT = "%(asctime)s %(levelname)-7s %(process_name)s[%(process)d] %(name)s: %(message)s"

NOTHING = logging.CRITICAL + 1
"""A level above all others, for whoever shows no record."""

Forward = Callable[[tuple[str, int, str]], None]
"""Passes a record (logger's name, level, text) to the parent process."""

logging.getLogger(ROOT).addHandler(logging.NullHandler())
_installed: list[logging.Handler] = []


@dataclass(frozen=True)
class LogSettings:
    """The settings of the log that a process hands to its children, as plain values.

    Attributes:
        path: The log file; empty where there is none.
        level: Lowest level that standard error shows; ``NOTHING`` shows nothing.
    """

    path: str = ""
    level: int = NOTHING


_settings = LogSettings()


class PrintableFormatter(logging.Formatter):
    """Writes records so that no text from a file reaches a terminal as an escape sequence."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        return printable(super().format(record), keep_lines=True)


class SharedFileHandler(logging.handlers.WatchedFileHandler):
    """Appends to a file that several processes write to, and starts a new one when it is large.

    Every record is one ``write`` to a file opened for appending, so lines do not mix. Whoever
    finds the file too large renames it under a lock; the others notice at their next record.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace", delay=True)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, unless it came from a child, which has written it itself."""
        if getattr(record, "forwarded", False):
            return
        # The file is opened here, again where it was renamed: its folder may be read-only by now.
        with contextlib.suppress(OSError):
            super().emit(record)
            if self.stream is not None and self.stream.tell() > MOST_BYTES:
                self._rotate()

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop what cannot be written (a full disk): logging must not fail the work."""

    def _rotate(self) -> None:
        with locked(self._path.with_suffix(".lock")):
            if self._path.stat().st_size <= MOST_BYTES:
                return  # another process was first
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))


class _ForwardHandler(logging.Handler):
    """A handler that passes records to the parent process."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self._forward = forward

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._forward((record.name, record.levelno, self.format(record)))


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
        file.open("a").close()
        path = file
    _install(LogSettings(path=str(path or ""), level=level), name)
    if level < NOTHING:
        shown = logging.StreamHandler(sys.stderr)
        shown.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
        _add(shown, level)
    return path


def inherit(settings: LogSettings, forward: Forward, name: str) -> None:
    """Log this child process, under a name, as its parent does."""
    _install(settings, name)
    if settings.level < NOTHING:
        _add(_ForwardHandler(forward), settings.level)


def for_children() -> LogSettings:
    """Return the settings that a child process inherits."""
    return _settings


def take_forwarded(record: tuple[str, int, str]) -> None:
    """Show a child's record, or pass it on to the process that can."""
    name, level, text = record
    logger = logging.getLogger(name)
    if logger.isEnabledFor(level):
        made = logger.makeRecord(name, level, "", 0, text, (), None, extra={"forwarded": True})
        logger.handle(made)


def _install(settings: LogSettings, name: str) -> None:
    global _settings
    logger = logging.getLogger(ROOT)
    for handler in _installed:
        logger.removeHandler(handler)
        handler.close()
    _installed.clear()
    _settings = settings
    logger.setLevel(min(logging.INFO, settings.level))
    logger.propagate = False  # libraries put handlers of their own on the root logger
    if settings.path:
        file = SharedFileHandler(Path(settings.path))
        file.setFormatter(PrintableFormatter(FORMAT, defaults={"process_name": name}))
        file.setLevel(logging.INFO)
        logger.addHandler(file)
        _installed.append(file)


def _add(handler: logging.Handler, level: int) -> None:
    handler.setLevel(level)
    handler.addFilter(lambda record: not getattr(record, "shown", False))
    logging.getLogger(ROOT).addHandler(handler)
    _installed.append(handler)
