"""JSON read as types, by several threads at a type's first use.

What a user gives that no run can have is refused by every door, with a sentence.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
import pytest

from collage_engine import api
from collage_engine.cli.options import duration
from collage_engine.cli.parser import build_parser
from collage_engine.records import protocol as p
from collage_engine.support.errors import CollageError, InvalidValue
from collage_engine.support.time_limits import parse_duration
from collage_engine.support.typed import convert, decode
from tests.support.command import python

RACE = """
import sys, threading
import msgspec
from collage_engine.support.typed import convert, decode

sys.setswitchinterval(1e-6)
THREADS = 6

def read(go, kind, found):
    go.wait()
    found.append(decode(b'{"inner": [{"a": 1}], "by": {"x": {"a": 2}}}', kind))
    found.append(convert({"inner": [{"a": 1}], "by": {"x": {"a": 2}}}, kind))

for _ in range(40):
    fields = [(name, int, 0) for name in "abcdefgh"]
    inner = msgspec.defstruct("Inner", fields)
    other = msgspec.defstruct("Other", fields)
    outer = msgspec.defstruct("Outer", [("inner", list[inner]), ("by", dict[str, other])])
    go, found = threading.Barrier(THREADS), []
    threads = [threading.Thread(target=read, args=(go, outer, found)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [outer([inner(1)], {"x": other(2)})] * 2 * THREADS
"""
"""Without the lock, msgspec 0.22 crashes here in every process (SIGSEGV)."""


def test_threads_that_first_read_a_type_at_once():
    done = python(RACE)
    assert done.returncode == 0, done.stderr


def test_an_error_quotes_at_most_a_line_of_the_document():
    class Named(msgspec.Struct):
        state: Literal["a", "b"]

    long = "x" * 100_000
    for read in (
        lambda: decode(f'{{"state": "{long}"}}', Named),
        lambda: convert({"state": long}, Named),
    ):
        with pytest.raises(msgspec.ValidationError) as caught:
            read()
        text = str(caught.value)
        assert len(text) < 400 and text.startswith("Invalid enum value") and "$.state" in text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("10 min", 600), ("1.5h", 5400), ("1h 30 min", 5400), (".5s", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == duration(text) == seconds


WRONG_DURATIONS = ("", "2", "0s", "-5s", "5 days", "1h 30", "inf", "9" * 400 + "h")


@pytest.mark.parametrize("text", WRONG_DURATIONS)
@pytest.mark.parametrize("option", ["--budget", "--tune-budget"])
def test_wrong_durations_are_refused_by_the_command_line(
    text: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["place", "m.onnx", "-o", "out", f"{option}={text}"]
    if (option, text) == ("--tune-budget", "0s"):  # no tuning, which is also the default
        assert build_parser().parse_args(words).tune_budget_s == 0
        return
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(words)
    assert ended.value.code == 2 and option in capsys.readouterr().err


def test_a_number_without_a_unit_is_told_both_that_it_could_mean() -> None:
    for text in ("2", "1h 2"):
        with pytest.raises(InvalidValue, match="write 2s or 2m"):
            parse_duration(text)


WRONG_SETTINGS: list[dict[str, Any]] = [
    {"budget_s": 0},
    {"budget_s": math.nan},
    {"budget_s": "60"},
    {"threads": -4},
    {"streams": 0},
    {"tolerance": 1.0},
    {"toolchains": "tvm"},
    {"precision": "fp7"},
    {"shapes": {"x": "1,3"}},
    {"placements": ({"conv": 3},)},
]


@pytest.mark.parametrize("wrong", WRONG_SETTINGS, ids=str)
def test_settings_that_no_run_can_have_are_refused_at_construction(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(CollageError, match=name):
        api.RunSettings(**wrong)
    with pytest.raises(p.msgspec.ValidationError):  # the service answers with it
        convert({"document": "d", "settings": wrong}, p.RunStart, json=True)
