"""Reports of a session whose texts are markup, formulas and escape sequences show them as text."""

from __future__ import annotations

import csv
import io
import json
import re
import typing
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from collage_engine.drawing.report import render
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.graph import GraphRecord
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Run
from collage_engine.records.settings import ReportFormat
from collage_engine.records.toolchain import ToolchainState
from collage_engine.store.document import Document
from collage_engine.store.session_file import load_session
from collage_engine.support.typed import convert
from collage_engine.wording import titles
from tests.support.full_documents import full_session

MARKUP = "\"'></script><img src=x onerror=alert(1)><b>&amp;"
CONTROLS = "a\x1b]0;title\x07\x9b31m\u202e\uffff\nb"
FORMULA = "=cmd|' /C calc'!A0"


def texts(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a text in a JSON value."""
    for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
        if isinstance(value, dict | list):
            yield from texts(value)
        elif isinstance(value, str):
            yield data, key


def with_texts(path: Path, text: str) -> tuple[Document, int]:
    """The session with every text replaced that may be any; and how many these are."""
    path.write_bytes(full_session())
    document = load_session(path)
    records = {
        "runs": (list[Run], document.runs),
        "candidates": (list[CandidateRecord], document.candidates[:8]),
        "pins": (list[Pin], document.pins),
        "toolchains": (list[ToolchainState], document.toolchains),
        "graph": (GraphRecord, document.graph),
    }
    replaced = 0
    for name, (kind, value) in records.items():
        record = json.loads(msgspec.json.encode(value))
        for holder, key in texts(record):
            before = holder[key]
            holder[key] = text
            try:
                convert(record, kind, json=True)
                replaced += 1
            except msgspec.ValidationError:
                holder[key] = before
        setattr(document, name, convert(record, kind, json=True))
    return document, replaced


class Tags(HTMLParser):
    """Gathers the tags with the names of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[tuple[str, tuple[str, ...]]] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add((tag, tuple(name for name, _ in attrs)))


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what reports learn of toolchains from other tests."""
    monkeypatch.setattr(titles, "_learned", dict(titles._learned))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Document:
    document, replaced = with_texts(tmp_path_factory.mktemp("html") / "s.collage", MARKUP)
    assert replaced > 100
    return document


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Document:
    path = tmp_path_factory.mktemp("honest") / "s.collage"
    path.write_bytes(full_session())
    return load_session(path)


def test_markup_in_a_session_is_text_in_its_page(hostile: Document, honest: Document) -> None:
    page = render(hostile, "html").decode()
    assert "onerror=alert(1)" in page  # it is shown
    strange = Tags(page).found - Tags(render(honest, "html").decode()).found
    assert not {tag for tag, _ in strange} & {"img", "b", "script"}, strange
    assert not any(name.startswith("on") for _, names in strange for name in names)
    assert MARKUP not in page


@pytest.mark.parametrize("kind", ["svg", "graphml"])
def test_markup_in_a_session_is_text_in_its_picture_and_graph(
    hostile: Document, kind: ReportFormat
) -> None:
    elements = list(ElementTree.fromstring(render(hostile, kind)).iter())
    tags = {each.tag.rpartition("}")[2] for each in elements}
    assert not tags & {"img", "b", "script", "foreignObject"}
    assert not any(name.startswith("on") for each in elements for name in each.attrib)


def test_formulas_in_a_session_are_text_in_its_tables(tmp_path: Path) -> None:
    document, _ = with_texts(tmp_path / "s.collage", FORMULA)
    seen = 0
    for kind in ("csv", "shapes", "latencies", "runs"):
        table = render(document, kind).decode()
        for row in csv.reader(io.StringIO(table)):
            seen += sum(FORMULA in cell for cell in row)
            assert not any(cell.startswith(("=", "+", "@", "\t", "\r")) for cell in row), row
    assert seen


def test_control_characters_in_a_session_reach_no_reader_of_its_reports(tmp_path: Path) -> None:
    document, _ = with_texts(tmp_path / "s.collage", CONTROLS)
    for kind in typing.get_args(ReportFormat):
        report = render(document, kind).decode()
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e\uffff]", report), kind
        # No node of the session is a partition by itself, and it has one shape: nothing is named.
        assert kind in ("shapes", "explorer") or "31m" in report, kind
        if kind in ("svg", "graphml"):
            ElementTree.fromstring(report)
    data = json.loads(render(document, "json"))
    assert CONTROLS in [holder[key] for holder, key in texts(data)]
