"""Prints with a terminal's width for people, and in whole lines for programs."""

from __future__ import annotations

import contextlib
import io
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from collage_engine.support.text import printable
from collage_engine.wording.sentences import ENDING

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


def say_that_it_ends() -> None:
    """Tell on standard error that a run ends with its best placement."""
    ERR.print(ENDING, style="yellow")


def complain(text: str) -> None:
    """Print a paragraph on standard error, treated like that of :func:`say`."""
    print(printable(text, keep_lines=True), file=sys.stderr)


def show(table: Table) -> None:
    """Print a table on standard output, as wide as the terminal or as it needs to be."""
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
    else:
        sys.stdout.write(as_text(table, WIDE))


def as_text(table: Table, width: int) -> str:
    """Return a table as plain lines, without colours and without blanks at their ends."""
    console = Console(highlight=False, width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    return "".join(line.rstrip() + "\n" for line in captured.get().splitlines())


class Columns:
    """Lays out the rows of a table without lines.

    Where the terminal is too narrow, the columns in ``cut`` lose the end of their text to an
    ellipsis; the others keep theirs.
    """

    def __init__(
        self, *titles: str, right: tuple[str, ...] = (), cut: tuple[str, ...] = ()
    ) -> None:
        self.table = Table(box=None, pad_edge=False, header_style="bold")
        self._cut = [title in cut for title in titles]
        for title in titles:
            self.table.add_column(
                title, justify="right" if title in right else "left", no_wrap=title not in cut
            )

    def add(self, *cells: str, style: str | None = None) -> None:
        """Add one row; brackets in cells are no markup, controls are shown."""
        texts = [
            Text(printable(c), no_wrap=cut, overflow="ellipsis")
            for c, cut in zip(cells, self._cut, strict=True)
        ]
        self.table.add_row(*texts, style=style)
