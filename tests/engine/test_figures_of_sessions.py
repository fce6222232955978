"""A session's figures may be any numbers: each is refused when it is read, or shown in reports."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collage_engine.records.errors import SessionError
from collage_engine.records.report_format import ReportFormat
from collage_engine.report.report import render
from collage_engine.session.file import load_session
from tests.support.full_documents import full_session

NUMBERS = (0, -1, 1e300)
"""What a figure is replaced with: it divides by zero, is never negative, overflows."""
KINDS: tuple[ReportFormat, ...] = ("html", "shapes")
FIELDS = (
    "residual",
    "memory",
    "tuning",
    "limits",
    "accuracy",
    "unmeasured",
    "deployments",
    "shapes",
    "sharing",
    "figures of the run",
)
"""Fields of a run that only some runs have; ``tests/fuzz`` changes all the others, too."""


def figures(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a number in a JSON value; of equal rows, those of the first one."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(value, dict | list):
            is_another_row = isinstance(data, list) and key > 0 and isinstance(value, dict)
            if not is_another_row:
                yield from figures(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield data, key


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("full") / "s.collage"
    path.write_bytes(full_session())
    return path


def run_record(path: Path) -> dict[str, Any]:
    with sqlite3.connect(path) as connection:
        (text,) = connection.execute("select json from runs order by rowid desc").fetchone()
    connection.close()
    record: dict[str, Any] = json.loads(text)
    return record


def write_run(path: Path, record: dict[str, Any]) -> None:
    with sqlite3.connect(path) as connection:
        query = "update runs set json = ? where rowid = (select max(rowid) from runs)"
        connection.execute(query, (json.dumps(record),))
    connection.close()


@pytest.mark.parametrize("field", FIELDS)
def test_each_figure_is_refused_or_shown(session: Path, field: str) -> None:
    whole = run_record(session)
    inside = whole.get(field, {})
    if field == "figures of the run":
        numbers = (int, float)
        places = [(whole, k) for k, v in whole.items() if isinstance(v, numbers) and v is not True]
    else:
        places = list(figures(inside))
    assert places
    wrong = []
    for holder, key in places:
        before = holder[key]
        for number in NUMBERS:
            holder[key] = type(before)(number) if math.isfinite(number) else number
            write_run(session, whole)
            try:
                document = load_session(session)
                for kind in KINDS:
                    render(document, kind)
            except SessionError:
                pass
            except Exception as error:
                wrong.append(f"{key} = {number}: {error!r}")
        holder[key] = before
    write_run(session, whole)
    assert not wrong, "\n".join(wrong)
