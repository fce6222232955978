"""Short reasons: one line out of what a library, a compiler or a child process said.

Libraries report failures as many lines (C++ traces, logs, advice to their developers). A user gets
one line of it; which one, the place that calls the library knows.
"""

from __future__ import annotations

from typing import Literal

from collage_engine.records.errors import CollageError

MOST_CHARACTERS = 300
"""Length of a reason in characters, at most; chosen so that it fits into two lines of a terminal
150 columns wide."""


def first_line(text: str, otherwise: str = "") -> str:
    """The first line of a text that is not blank, without blanks around it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), otherwise)


def last_line(text: str, otherwise: str = "") -> str:
    """The last line of a text that is not blank, without blanks around it."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), otherwise)


def short_reason(
    error: BaseException, *, line: Literal["first", "last"] = "last", with_type: bool = False
) -> str:
    """Say in one line why something failed.

    Args:
        error: What was raised. The sentence of an error of our own is given whole.
        line: Which line of a library's message says what happened: libraries that write a trace
            say it last, libraries that write advice say it first.
        with_type: Put the exception's type before a library's line, as in ``ValueError: …``.

    Returns:
        The line, cut to ``MOST_CHARACTERS``; the exception's type where it has no message.
    """
    text, name = str(error).strip(), type(error).__name__
    if isinstance(error, CollageError) and text:
        return text
    said = first_line(text) if line == "first" else last_line(text)
    if with_type and said:
        said = said.removeprefix(name).lstrip(": ")
        return f"{name}: {said[:MOST_CHARACTERS]}" if said else name
    return said[:MOST_CHARACTERS] or name


def compiler_reason(log: str, otherwise: str = "no message") -> str:
    """The line of a compiler's log that says what is wrong: the first error, or the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    marked = (line for mark in ("error:", "error") for line in lines if mark in line)
    return next(marked, lines[-1] if lines else otherwise)
