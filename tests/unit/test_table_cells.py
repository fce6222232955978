"""Text from files in tables that spreadsheets open, and in the log."""

from __future__ import annotations

import csv
import io
import logging

import pytest

from collage_engine.machine.logs import PrintableFormatter
from collage_engine.records.csv_table import csv_table, plain_cell

TITLE = "\x1b]0;PWNED\x07"


def test_the_log_shows_no_escape_sequence():
    record = logging.LogRecord("x", logging.INFO, "", 0, "node %s", (TITLE,), None)
    assert "\x1b" not in PrintableFormatter("%(message)s").format(record)


@pytest.mark.parametrize(
    "text", ["=cmd|' /C calc'!A0", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\n=1", "＝1+1"]
)
def test_a_cell_that_a_spreadsheet_would_run_is_text(text):
    assert plain_cell(text)[0] == "'"


@pytest.mark.parametrize("text", ["", "conv+add", "-1.5", "+3", "a=b"])
def test_other_cells_stay_as_they_are(text):
    assert plain_cell(text) == text


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_no_separator_of_a_spreadsheet_makes_a_cell_out_of_a_part_of_a_name(separator):
    names = ["conv;=1+1", "conv\t=1+1", 'conv";"=1+1', "conv,=1+1", "conv\n=1+1", "conv; +1+1"]
    for first in (True, False):
        cells = [[name, -1.5] if first else [-1.5, name] for name in names]
        text = csv_table(["a", "b"], cells)
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            assert not any(cell.lstrip(' "').startswith(("=", "+")) for cell in row), row


def test_a_table_says_what_it_was_given():
    rows = [["conv; relu", 1.5, None], ["a,b\nc", -2, "-1.5"]]
    read = list(csv.reader(io.StringIO(csv_table(["n", "x", "y"], rows), newline="")))
    assert read == [["n", "x", "y"], ["conv; relu", "1.5", ""], ["a,b\nc", "-2", "-1.5"]]


def test_a_text_of_separators_takes_no_longer_than_its_length():
    # Looking on from each of them to the end took hours for a megabyte.
    for blank in ("\n", "\t", ";\n", ' "'):
        text = ";" + blank * (1 << 20)
        assert plain_cell(text + "a").removeprefix("'") == text + "a"
    assert plain_cell('a\n\t "=1') == "a\n'\t' \"=1"
