"""Text from files in tables that spreadsheets open, and in the log."""

from __future__ import annotations

import logging

import pytest

from collage_engine.machine.logs import PrintableFormatter
from collage_engine.records.text import plain_cell

TITLE = "\x1b]0;PWNED\x07"


def test_the_log_shows_no_escape_sequence():
    record = logging.LogRecord("x", logging.INFO, "", 0, "node %s", (TITLE,), None)
    assert "\x1b" not in PrintableFormatter("%(message)s").format(record)


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_cell_that_a_spreadsheet_would_run_is_text(text):
    assert plain_cell(text) == "'" + text


@pytest.mark.parametrize("text", ["", "conv+add", "-1.5", "+3", "a=b"])
def test_other_cells_stay_as_they_are(text):
    assert plain_cell(text) == text
