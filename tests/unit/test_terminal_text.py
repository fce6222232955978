"""What comes out of a file never moves a terminal's cursor, sets its title or forges a line."""

from __future__ import annotations

import pytest

from collage_engine.cli.main import main
from collage_engine.cli.screen import Columns, as_text, complain, say
from collage_engine.records.text import printable

HOSTILE = "conv\x1b]0;PWNED\x07\x9b31m\u202eevil\x7f"


def controls(text: str) -> set[str]:
    return {c for c in text if ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or c == "\u202e"}


def test_every_control_character_is_written_as_an_escape() -> None:
    assert printable(HOSTILE) == r"conv\x1b]0;PWNED\x07\x9b31m\u202eevil\x7f"
    assert printable("a\nb\tc") == r"a\x0ab\x09c"
    assert printable("a\nb\tc", keep_lines=True) == "a\nb\tc"
    assert printable("häßlich µs → 模型 😀") == "häßlich µs → 模型 😀"


def test_a_half_surrogate_can_be_written_afterwards() -> None:
    assert printable("a\udc80b").encode() == rb"a\udc80b"


def test_what_the_command_line_prints_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"node {HOSTILE}\nsecond line")
    complain(f"collage: {HOSTILE}")
    table = Columns("name", cut=("name",))
    table.add(f"{HOSTILE}\nforged")
    shown = capsys.readouterr()
    for text in (shown.out, shown.err, as_text(table.table, 200)):
        assert controls(text) == {"\n"} and "PWNED" in text
    assert len(as_text(table.table, 200).splitlines()) == 2


@pytest.mark.parametrize(
    "arguments",
    [[HOSTILE], ["explain", "a", "b", HOSTILE], ["place", "m", "-o", "o", "--budget", HOSTILE]],
)
def test_names_of_files_in_a_wrong_command_are_printable(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    said = capsys.readouterr().err
    assert controls(said) == {"\n"} and "PWNED" in said
