"""Tables as CSV that spreadsheets may open, whatever the files held that the texts come from."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from collage_engine.records.text import printable

_SIGNS = "=+\\-@＝＋－＠"
_FORMULA = re.compile(f"[{_SIGNS}\t\n]")
"""How a cell begins that spreadsheets take for a formula (OWASP, "CSV Injection"); those of East
Asian languages read the wide forms of the signs too."""
_SIGN = re.compile(f"[{_SIGNS}]")
_RUN = re.compile(r';["\s]*+|["\s]++')
"""Separators, quotes and blanks that lie side by side. Each run is looked at once, so that a text
of nothing else takes no longer than its length."""
_SEPARATOR = re.compile("[;\t\n]")
"""Where a formula would begin if a spreadsheet took a semicolon, a tab or the end of a line inside
a text for the end of a cell. Those of many languages separate cells by semicolons, and for them the
quotes of a cell that is not the first of its line are no quotes."""


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
        text = _RUN.sub(_without_formula, text)
        return "'" + text if _FORMULA.match(text) else text
    return text


def _without_formula(run: re.Match[str]) -> str:
    """Return a run with an apostrophe after each of its separators, if a sign follows it."""
    if _SIGN.match(run.string, run.end()):
        return _SEPARATOR.sub(r"\g<0>'", run[0])
    return run[0]
