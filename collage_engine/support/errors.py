"""The errors that a user can meet, and one line out of what a library or a child said.

Libraries report failures as many lines (C++ traces, logs, advice to their developers). A user gets
one line of it; which one, the place that calls the library knows.
"""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Literal

from collage_engine.support.text import NAMED, printable


class CollageError(Exception):
    """The work failed. ``str(error)`` is one sentence: what, where, and what to do."""

    exit_status = 1


class UsageError(CollageError):
    """The request itself is wrong: an unknown option, file, node or toolchain."""

    exit_status = 2


class InvalidValue(UsageError, ValueError):
    """A value has a type or size that what it is for cannot have.

    It is a ``ValueError`` too, so that msgspec reports it as it reports every other fault of a
    message or file that it reads, with the place.
    """


class ModelError(CollageError):
    """The model file cannot be read, or holds something the engine cannot import."""


class ToolchainError(CollageError):
    """A toolchain cannot take a function (its sentence becomes the candidate's reason)."""


class ToolchainFault(ToolchainError):
    """A toolchain raised what it may not raise, or gave an answer that is none.

    Attributes:
        toolchain: Its name.
    """

    def __init__(self, message: str, toolchain: str = "") -> None:
        super().__init__(message)
        self.toolchain = toolchain


class UnsupportedError(ToolchainError):
    """The toolchain knows that it cannot take this operator, type or layout."""


class MeasureError(CollageError):
    """A measurement could not be made or stored."""


class WrongNumbersError(MeasureError):
    """What a candidate computes differs from the true values of this model."""


class InfeasibleError(CollageError):
    """No placement satisfies the pins; ``details`` is the ``Infeasible`` record as builtins."""

    def __init__(self, message: str, details: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.details = details or {}


class SessionError(CollageError):
    """A session file cannot be opened or written."""


class ArtifactError(CollageError):
    """An artifact folder cannot be written, or does not match its manifest."""


class ProtocolError(CollageError):
    """The other side of the service speaks another version, or no JSON-RPC at all."""


class Cancelled(CollageError):
    """The user stopped the work; what was measured is kept."""

    exit_status = 130


class FarmError(CollageError):
    """A farm cannot be reached or used, or has lost the machines that the work needs."""


_LOG = logging.getLogger(__name__)

MOST_OF_A_NAME = 80
"""Characters of a name out of a file that a sentence shows, at most: the columns of a terminal
where nobody widens it. The names that exporters make (paths of modules) are shorter."""
MOST_CHARACTERS = NAMED * MOST_OF_A_NAME
"""Length of a reason in characters, at most: it may hold as many names as sentences name."""
SENTENCE_CHARACTERS = NAMED * MOST_CHARACTERS
"""Characters of a message about a file, at most: it may give as many reasons."""


def displayable(name: str) -> str:
    """Return a name out of a file for a sentence: on one line, without escapes, not too long."""
    plain = printable(name[: 2 * MOST_OF_A_NAME])
    if len(name) <= MOST_OF_A_NAME and len(plain) <= 2 * MOST_OF_A_NAME:
        return plain
    half = MOST_OF_A_NAME // 2
    return f"{plain[:half]}…{printable(name[-half:])[-half:]}"


def one_sentence(text: str) -> str:
    """Return a message that may hold names out of a file as one line of bearable length."""
    return truncated(printable(" ".join(text.split())))


def truncated(text: str, most: int = SENTENCE_CHARACTERS) -> str:
    """Return a sentence that may quote a file, with its middle left out where it is too long.

    >>> truncated("x" * 10_000).count("x") < SENTENCE_CHARACTERS
    True
    """
    end = most // 4
    return text if len(text) <= most else f"{text[: most - end - 3]} … {text[-end:]}"


def first_line(text: str, otherwise: str = "") -> str:
    """Return the first line of a text that is not blank, without blanks around it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), otherwise)


def last_line(text: str) -> str:
    """Return the last line of a text that is not blank, without blanks around it."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def short_reason(error: BaseException, *, line: Literal["first", "last"] = "last") -> str:
    """Say in one line why something failed.

    Args:
        error: What was raised. The sentence of an error of our own is given whole.
        line: Which line of a library's message says what happened: libraries that write a trace
            say it last, libraries that write advice say it first.

    Returns:
        The line, cut to ``MOST_CHARACTERS``; the exception's type where it has no message.
    """
    text = str(error).strip()
    if isinstance(error, CollageError) and text:
        return text
    said = first_line(text) if line == "first" else last_line(text)
    return said[:MOST_CHARACTERS] or type(error).__name__


def fault_reason(error: BaseException) -> str:
    """Say in one line what code of others raised, and where: ``KeyError: 'x' (a/b.py, line 4)``.

    The whole traceback goes to the log, which ``-v`` shows.

    Args:
        error: What was raised. The sentence of an error of our own is given whole, and says where
            by itself.
    """
    text, name = str(error).strip(), type(error).__name__
    if isinstance(error, CollageError) and text:
        return text
    _LOG.info("%s", name, exc_info=error)
    said = last_line(text).removeprefix(name).lstrip(": ")[:MOST_CHARACTERS]
    inner = traceback.extract_tb(error.__traceback__)[1:]  # the first is where it was caught
    files = [f for f in inner if not f.filename.startswith("<") and "/importlib/" not in f.filename]
    where = f" ({place_in_file(files[-1].filename, files[-1].lineno)})" if files else ""
    return (f"{name}: {said}" if said else name) + where


def place_in_file(file: str, line: int | str | None) -> str:
    """Return a place in a file as a sentence names it: ``folder/file.py, line 4``."""
    return f"{'/'.join(Path(file).parts[-2:])}, line {line}"


def compiler_reason(log: str, otherwise: str = "no message") -> str:
    """Return what a compiler's log says is wrong: its first error, or its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    marked = (line for mark in ("error:", "error") for line in lines if mark in line)
    return next(marked, lines[-1] if lines else otherwise)
