"""Text from files as terminals, tables and sentences may show it.

The author of a file chooses the names in models, sessions and problems. A terminal obeys control
characters in them: it would set its title, move its cursor or show another text than is there.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 controls, DEL, C1 controls
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks and overrides of the writing direction
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff"  # halves of surrogate pairs, which no encoding can write
    "\ufffe\uffff]"  # no characters, and nothing that XML may hold
)


def printable(text: str, *, keep_lines: bool = False) -> str:
    r"""Return a text with every control character written as an escape, like ``\x1b``.

    Args:
        text: The text, which may come from a file that nobody trusts.
        keep_lines: Whether ends of lines and tabs stay what they are: the caller wrote them. A
            single name has none, and could forge a line of output with one.

    >>> printable("conv\x1b]0;title\x07")
    'conv\\x1b]0;title\\x07'
    """

    def escaped(match: re.Match[str]) -> str:
        character = match.group()
        if keep_lines and character in "\n\t":
            return character
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _CONTROL.sub(escaped, text)


def printable_json(text: str) -> str:
    r"""Return a JSON document with every control character inside its texts as a JSON escape.

    >>> print(printable_json('{"a": "\x9b31m"}'))
    {"a": "\u009b31m"}
    """
    return _CONTROL.sub(
        lambda found: found[0] if found[0] in "\n\t" else f"\\u{ord(found[0]):04x}", text
    )


NAMED = 4
"""Things that a sentence or a label names one by one; the others are counted. Chosen: with the
counted ones they fit a line."""


def counted(number: int, noun: str) -> str:
    """Return ``1 partition``, ``2,358 partitions``, for nouns whose plural takes an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Sequence[str], noun: str = "") -> str:
    """Return the first ``NAMED`` names, and how many more there are: ``a, b, c, d and 2 more``.

    Args:
        names: All names.
        noun: What they are names of, for ``and 2 more nodes``; its plural takes an s.
    """
    text, left = ", ".join(names[:NAMED]), len(names) - NAMED
    more = counted(left, f"more {noun}") if noun else f"{left:,} more"
    return f"{text} and {more}" if left > 0 else text


_FORMULA = re.compile('(^|[;\t\n])(?=["\\s]{0,9}[=+\\-@＝＋－＠])|^(?=[\t\n])')
"""Where spreadsheets would take a formula to begin (OWASP, "CSV Injection"): at the beginning of a
cell, or after what those of many languages take for the end of one, and whatever quotes and blanks
follow. Those of East Asian languages read the wide forms of the signs too."""


def csv_table(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    r"""Return a table as CSV: a line with the titles, then one line for each row.

    >>> csv_table(["name", "us"], [["a;=1+1", 2.5], ["=1+1", None]])
    "name,us\r\na;'=1+1,2.5\r\n'=1+1,\r\n"
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(head)
    for row in rows:
        writer.writerow([plain_cell(cell) if isinstance(cell, str) else cell for cell in row])
    return buffer.getvalue()


def plain_cell(text: str) -> str:
    """Return the text of a table's cell so that no spreadsheet takes it for a formula.

    An apostrophe goes before what begins like one, which spreadsheets read as "this is text".
    Plain numbers, also negative ones, stay as they are. Control characters are shown as escapes.
    """
    text = printable(text, keep_lines=True)
    try:
        float(text)
    except ValueError:
        return _FORMULA.sub(r"\1'", text)
    return text
