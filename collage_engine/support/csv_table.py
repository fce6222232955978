"""Tables as CSV that spreadsheets may open, whatever the files held that the texts come from."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from collage_engine.support.text import printable

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
