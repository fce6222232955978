"""Reads JSON and plain values as the types that they must be, from any thread.

msgspec describes a struct at its first use and, while Python works out the annotations, other
threads already see the half-finished description: two threads that first read one type at a time
crash the process (msgspec 0.22, SIGSEGV). So types are described here, under one lock, before
anything of them is read; reading itself needs none.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Annotated, Any, TypeVar, overload

import msgspec
from msgspec import Meta

from collage_engine.support.errors import MOST_CHARACTERS, InvalidValue
from collage_engine.support.time_limits import LONGEST_S

LARGEST_INTEGER = 2**63 - 1
"""Largest integer that SQLite keeps ("Datatypes in SQLite", section 2)."""
LONGEST_US = 1e6 * LONGEST_S
"""Microseconds above which no time is believed. Figures of other units have the same bound."""

Count = Annotated[int, Meta(ge=0, le=LARGEST_INTEGER)]
"""A number of things, or of bytes."""
Figure = Annotated[float, Meta(ge=0, lt=LONGEST_US)]
"""Microseconds, seconds, a rate or a share that can be shown and computed with."""
Positive = Annotated[float, Meta(gt=0, lt=LONGEST_US)]
"""The same of what was measured and takes some time."""


T = TypeVar("T")
Document = bytes | bytearray | memoryview | str | msgspec.Raw

_DESCRIBING = threading.Lock()


@overload
def decode(data: Document, kind: type[T]) -> T: ...
@overload
def decode(data: Document, kind: Any = Any) -> Any: ...
def decode(data: Document, kind: Any = Any) -> Any:
    """Decode a JSON document as a ``kind``.

    Raises:
        msgspec.ValidationError: The document holds another kind of value.
        msgspec.DecodeError: The data is no JSON.
    """
    try:
        return _decoder(kind).decode(data)
    except msgspec.ValidationError as error:
        raise _shortened(error) from error
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError("it is not UTF-8 text") from error
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error


@overload
def convert(value: Any, kind: type[T], *, json: bool = ...) -> T: ...
@overload
def convert(value: Any, kind: Any, *, json: bool = ...) -> Any: ...
def convert(value: Any, kind: Any, *, json: bool = False) -> Any:
    """Convert plain dicts, lists and scalars to a ``kind``; else msgspec.ValidationError.

    ``json``: it came out of JSON, where bytes, dates, the keys of dicts and the like are strings.
    """
    _decoder(kind)
    builtin = () if json else None
    try:
        return msgspec.convert(value, kind, builtin_types=builtin, str_keys=json)
    except msgspec.ValidationError as error:
        raise _shortened(error) from error


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A record that users construct themselves: its values have the types that it names.

    msgspec checks types where it reads a message or a file, but not where a program constructs a
    record. What may stand for another type, such as a list for a tuple, becomes that type.
    """

    def __post_init__(self) -> None:
        """Raise ``InvalidValue`` where a value has a wrong type."""
        for field in msgspec.structs.fields(type(self)):
            value = getattr(self, field.name)
            try:
                value = convert(value, field.type)
            except msgspec.ValidationError as error:
                raise InvalidValue(f"{type(self).__name__}: {field.name}: {error}") from error
            msgspec.structs.force_setattr(self, field.name, value)


def _shortened(error: msgspec.ValidationError) -> msgspec.ValidationError:
    """Return an error whose text quotes at most a line of the document, which nobody may trust."""
    text = str(error)
    if len(text) <= MOST_CHARACTERS:
        return error
    half = MOST_CHARACTERS // 2
    return msgspec.ValidationError(f"{text[:half]} … {text[-half:]}")


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    with _DESCRIBING:
        return msgspec.json.Decoder(kind)
