"""Text from files, made harmless where it is shown: on a terminal, and in a cell of a table."""

from __future__ import annotations

import unicodedata

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that spreadsheets take for a formula (OWASP, "CSV Injection")."""


def printable(text: str) -> str:
    r"""Return the text with every character that a terminal would obey written as an escape.

    Control characters (but for newline and tab), the characters that reverse the direction of
    writing, and halves of surrogate pairs appear as ``\x1b`` or ``\u202e``; all others stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each
        if each in "\n\t" or unicodedata.category(each) not in ("Cc", "Cf", "Cs")
        else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )


def plain_cell(text: str) -> str:
    """Return the text of a table's cell so that no spreadsheet takes it for a formula.

    An apostrophe goes before what begins like one, which spreadsheets read as "this is text".
    Plain numbers, also negative ones, stay as they are.
    """
    if not text.startswith(FORMULA_STARTS):
        return text
    try:
        float(text)
    except ValueError:
        return "'" + text
    return text
