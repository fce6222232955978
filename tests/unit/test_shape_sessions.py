"""Sessions of several shapes are found fit before the first run, continued, and kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from collage_engine.deployment import shapes as several
from collage_engine.deployment.shapes import place_shapes, session_path
from collage_engine.records.errors import SessionError, UsageError
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import ShapeChoice
from collage_engine.service.open_document import OpenDocument
from collage_engine.session.file import load_session, save_session
from tests.unit.test_session import a_document

CHOICES = tuple(ShapeChoice(dims={"batch": batch}) for batch in (1, 4))


class FakeEngine:
    """Opens the same small document for each shape, and does runs at once."""

    def __init__(self) -> None:
        self.opened: dict[str, OpenDocument] = {}
        self.runs = 0

    def distinct_input_shapes(
        self, path: Any, choices: Any
    ) -> tuple[dict[str, tuple[int, ...]], ...]:
        return tuple({"x": (choice.dims["batch"],)} for choice in choices)

    def model_open(self, params: Any) -> Any:
        handle = f"d{len(self.opened)}"
        document = a_document()
        document.model = msgspec.structs.replace(document.model, shapes=dict(params.shapes))
        document.runs.clear()
        self.opened[handle] = OpenDocument(handle, document)
        return SimpleNamespace(document=handle)

    def document(self, handle: str) -> OpenDocument:
        return self.opened[handle]

    def enumerate(self, handle: str, settings: RunSettings) -> list[Any]:
        assert handle in self.opened and not self.runs, "it is done before the first run"
        return []

    def run(self, handle: str, settings: RunSettings, out: str | None) -> Any:
        self.runs += 1
        run = msgspec.structs.replace(a_document().runs[0], id=f"n{self.runs}-{id(self)}")
        self.opened[handle].document.runs.append(run)
        return run

    def session_save(self, params: Any) -> None:
        self.opened[params.document].save(Path(params.path))


def placed(session: Path) -> tuple[FakeEngine, several.ShapesPlaced]:
    engine = FakeEngine()
    made: Any = engine
    return engine, place_shapes(made, "m.onnx", CHOICES, RunSettings(), session=session)


def test_a_second_placing_keeps_the_runs_of_the_first(tmp_path: Path) -> None:
    session = tmp_path / "s.collage"
    for count in (1, 2):
        _, found = placed(session)
        assert found.not_saved is None and len(found.sessions) == 2
        for choice in CHOICES:
            assert len(load_session(session_path(session, choice))[0].runs) == count


@pytest.mark.parametrize("what", ["another file", "another model", "no folder", "a long name"])
def test_what_cannot_be_a_session_is_found_before_the_first_run(tmp_path: Path, what: str) -> None:
    session = tmp_path / "s.collage"
    last = session_path(session, CHOICES[-1])
    if what == "another file":
        last.write_text("the only copy of a novel")
    elif what == "another model":
        document = a_document()
        document.model = msgspec.structs.replace(document.model, sha256="11")
        save_session(document, last)
    elif what == "no folder":
        session = tmp_path / "none" / "s.collage"
    else:
        session = tmp_path / ("s" * 240)
    engine: Any = FakeEngine()
    before = last.read_bytes() if last.exists() else None
    with pytest.raises(UsageError):
        place_shapes(engine, "m.onnx", CHOICES, RunSettings(), session=session)
    assert engine.runs == 0
    assert (last.read_bytes() if last.exists() else None) == before


def test_two_shapes_never_share_a_session(tmp_path: Path) -> None:
    alike = (ShapeChoice(dims={"a/b": 1}), ShapeChoice(dims={"a_b": 1}))
    engine: Any = SimpleNamespace(distinct_input_shapes=lambda *_: ({"x": (1,)}, {"y": (1,)}))
    with pytest.raises(UsageError, match="the same session"):
        place_shapes(engine, "m.onnx", alike, RunSettings(), session=tmp_path / "s.collage")


def test_a_session_that_cannot_be_written_afterwards_loses_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    def save(engine: FakeEngine, params: Any) -> None:
        if not written:
            written.append(params.path)
            raise SessionError("no space left")
        engine.opened[params.document].save(Path(params.path))

    monkeypatch.setattr(FakeEngine, "session_save", save)
    _, found = placed(tmp_path / "s.collage")
    assert len(found.runs) == 2 and str(found.not_saved) == "no space left"
    assert found.sessions == (session_path(tmp_path / "s.collage", CHOICES[1]),)
