"""JSON read as types, by several threads at a type's first use."""

import subprocess
import sys
from typing import Literal

import msgspec
import pytest

from collage_engine.records.typed import convert, decode

RACE = """
import sys, threading
import msgspec
from collage_engine.records.typed import convert, decode

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
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Point(msgspec.Struct):
    x: int
    raw: bytes = b""


def test_values_of_a_kind():
    assert decode('{"x": 1}', Point) == Point(1)
    assert decode(b'[{"x": 1}, null]', list[Point | None]) == [Point(1), None]
    assert decode("[1, 2.5]") == [1, 2.5]
    assert convert({"x": 2}, Point) == Point(2)


def test_bytes_are_text_in_what_was_json():
    assert convert({"x": 2, "raw": "AA=="}, Point, json=True).raw == b"\0"
    assert convert({"x": 2, "raw": b"\0"}, Point).raw == b"\0"


def test_keys_that_are_numbers_are_text_in_what_was_json():
    """A partition names the formats that it gives by the values' indices."""
    assert convert({"1": "nhwc"}, dict[int, str], json=True) == {1: "nhwc"}
    with pytest.raises(msgspec.ValidationError):
        convert({"1": "nhwc"}, dict[int, str])


def test_what_is_none_is_told():
    with pytest.raises(msgspec.ValidationError, match=r"\$.x"):
        decode('{"x": "1"}', Point)
    with pytest.raises(msgspec.ValidationError, match=r"\$.x"):
        convert({"x": "1"}, Point)
    with pytest.raises(msgspec.DecodeError):
        decode("{", Point)
    with pytest.raises(msgspec.DecodeError, match="not UTF-8"):
        decode(b'"\xff"', str)
    with pytest.raises(msgspec.DecodeError, match="nested too deeply"):
        decode(b"[" * 100_000)


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
