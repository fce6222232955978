"""Reading what another store exported: all of it is checked before any of it is taken."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from collage_engine.records.checks import cost_fault
from collage_engine.records.errors import MeasureError
from collage_engine.records.files import LARGEST_TABLE, MOST_ROWS, read_file
from collage_engine.records.reasons import shown
from collage_engine.records.typed import decode
from collage_engine.records.versions import STORE_EXPORT
from collage_engine.store.measurement import Measurement


def read_export(source: Path) -> Iterator[Measurement]:
    """Yield the measurements of an exported file.

    Raises:
        MeasureError: The file cannot be read, is no export, is of another format, or holds
            something that no measurement can be; the sentence names the line.
    """
    try:
        lines = io.BytesIO(read_file(source, LARGEST_TABLE))
    except OSError as error:
        raise MeasureError(f"{source} cannot be read: {error.strerror}") from error
    try:
        version = json.loads(next(lines))["collage_store"]
    except (ValueError, StopIteration, TypeError, KeyError, RecursionError):
        raise MeasureError(f"{source} is no export of a measurement store") from None
    if version != STORE_EXPORT or type(version) is not int:
        raise MeasureError(
            f"{source} has format {shown(repr(version))}; this version reads format "
            f"{STORE_EXPORT} only"
        )
    for number, line in enumerate(lines, start=2):
        if number - 1 > MOST_ROWS:
            raise MeasureError(f"{source} has more than {MOST_ROWS:,} measurements")
        try:
            measurement = decode(line, Measurement)
        except msgspec.MsgspecError as error:
            raise MeasureError(f"{source}, line {number}: {error}") from None
        wrong = _fault(measurement)
        if wrong:
            raise MeasureError(f"{source}, line {number}: {wrong}")
        yield measurement


def _fault(measurement: Measurement) -> str | None:
    """Return why a measurement cannot be taken; None: it can."""
    if not measurement.key:
        return "it has no key"
    if measurement.cost.state == "unknown":
        return "its cost is not known"
    return cost_fault(measurement.cost)
