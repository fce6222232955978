"""Prints with a terminal's width for people, and in whole lines for programs."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Collection, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from collage_engine.support.text import printable

WIDE = sys.maxsize
"""Columns of a line that goes into a file or a pipe, where no line is wrapped or cut."""
MOST_ROWS = 24
"""Rows of a list that is cut at the most: those of a terminal where nobody says how many there are
(``shutil.get_terminal_size``)."""

ERR = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else WIDE)


def prepare() -> None:
    """Let a terminal that knows no µ or → show something else instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(ValueError, OSError):
                stream.reconfigure(errors="replace")


def say(text: str = "", *, style: str | None = None) -> None:
    """Print a paragraph on standard output: brackets in names are no markup, controls are shown.

    Args:
        text: The paragraph. It may have several lines; no other control character in it reaches
            the terminal.
        style: How rich styles it on a terminal.
    """
    text = printable(text, keep_lines=True)
    if sys.stdout.isatty():
        Console(highlight=False).print(text, style=style, markup=False)
    else:
        sys.stdout.write(text + "\n")


def complain(text: str) -> None:
    """Print a paragraph on standard error, treated like that of :func:`say`."""
    print(printable(text, keep_lines=True), file=sys.stderr)


def show(
    rows: Sequence[Mapping[str, str]], right: Collection[str] = (), cut: Collection[str] = ()
) -> None:
    """Print the table of some rows, if there are any, as wide as the terminal or as it needs."""
    if rows and sys.stdout.isatty():
        Console(highlight=False).print(table(rows, right, cut))
    elif rows:
        sys.stdout.write(as_text(table(rows, right, cut), WIDE))


def as_text(table: Table, width: int) -> str:
    """Return a table as plain lines, without colours and without blanks at their ends."""
    console = Console(highlight=False, width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    return "".join(line.rstrip() + "\n" for line in captured.get().splitlines())


def table(
    rows: Sequence[Mapping[str, str]], right: Collection[str] = (), cut: Collection[str] = ()
) -> Table:
    """Lay out rows without lines; a row that begins with → is bold on a terminal.

    Args:
        rows: Cells by the titles of their columns: brackets in them are no markup, controls are
            shown.
        right: The columns whose cells lie to the right.
        cut: The columns that lose the end of their text to an ellipsis where the terminal is too
            narrow; the others keep theirs.
    """
    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in rows[0]:
        made.add_column(
            title, justify="right" if title in right else "left", no_wrap=title not in cut
        )
    for row in rows:
        cells = [
            Text(printable(cell), no_wrap=title in cut, overflow="ellipsis")
            for title, cell in row.items()
        ]
        made.add_row(*cells, style="bold" if row.get("") == "→" else None)
    return made
