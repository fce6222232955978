"""Text from files on terminals and in tables."""

from __future__ import annotations

import logging

import pytest

from collage_engine.cli import screen
from collage_engine.cli.main import main
from collage_engine.machine.logs import PrintableFormatter
from collage_engine.records.printable import plain_cell, printable

TITLE = "\x1b]0;PWNED\x07"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("conv1 → äöü µs\t1\n2", "conv1 → äöü µs\t1\n2"),
        (TITLE, r"\x1b]0;PWNED\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("a\rb", r"a\rb"),
        ("\u202eevil", r"\u202eevil"),
        ("\ud800", r"\ud800"),
    ],
)
def test_no_character_that_a_terminal_obeys_is_shown(text, shown):
    assert printable(text) == shown


def test_no_way_to_print_lets_an_escape_sequence_through(capsys):
    screen.say(f"node {TITLE}")
    table = screen.Columns("name")
    table.add(f"cell {TITLE}")
    screen.show(table.table)
    screen.complain(f"error {TITLE}")
    caught = capsys.readouterr()
    assert "\x1b" not in caught.out + caught.err
    assert caught.out.count("PWNED") == 2 and caught.err.count("PWNED") == 1


def test_the_sentence_about_a_file_shows_no_escape_sequence_of_its_name(capsys, tmp_path):
    assert main(["report", str(tmp_path / f"{TITLE}.collage"), "-o", str(tmp_path / "r.csv")])
    caught = capsys.readouterr()
    assert "PWNED" in caught.err and "\x1b" not in caught.err


def test_the_log_shows_no_escape_sequence():
    record = logging.LogRecord("x", logging.INFO, "", 0, "node %s", (TITLE,), None)
    assert "\x1b" not in PrintableFormatter("%(message)s").format(record)


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_cell_that_a_spreadsheet_would_run_is_text(text):
    assert plain_cell(text) == "'" + text


@pytest.mark.parametrize("text", ["", "conv+add", "-1.5", "+3", "a=b"])
def test_other_cells_stay_as_they_are(text):
    assert plain_cell(text) == text
