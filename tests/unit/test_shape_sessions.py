"""A session of several shapes is found fit before the first run, and is continued and kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collage_engine.api import Session
from collage_engine.farm import several_runs as several
from collage_engine.farm.several_runs import place_shapes
from collage_engine.records import protocol as p
from collage_engine.records.answers import RunUpdate
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import ShapeChoice
from collage_engine.service.engine import HANDLERS, Engine
from collage_engine.service.open_document import OpenDocument
from collage_engine.store.document import Document
from collage_engine.store.session_file import load_session, save_session
from collage_engine.support.errors import ArtifactError, SessionError, UsageError
from tests.unit.test_session import a_document

BATCHES = (1, 4)


def document_for(batch: int) -> Document:
    """The small document, without runs, for one size of its input."""
    document = a_document()
    document.model = msgspec.structs.replace(document.model, shapes={"x": (batch,)})
    document.runs.clear()
    return document


def choices_of(*batches: int) -> tuple[ShapeChoice, ...]:
    return tuple(ShapeChoice(dims={"batch": batch}) for batch in batches)


class EngineWithoutChildren(Engine):
    """Opens the same small document for each shape, and does runs at once."""

    def __init__(self) -> None:
        super().__init__()
        self.budgets_s: list[float] = []

    def _side_job(self, job: p.Job[Any]) -> Any:
        if isinstance(job.request, p.ShapesResolve):
            return tuple({"x": (choice.dims["batch"],)} for choice in job.request.choices)
        if isinstance(job.request, p.ModelOpen):
            document = document_for(job.shapes["x"][0])
            return document.model, document.graph
        assert isinstance(job.request, p.Enumerate) and not self.budgets_s, "before the first run"
        return RunUpdate()

    def run(self, request: p.RunStart) -> Run:
        self.budgets_s.append(request.settings.budget_s)
        name = f"n{len(self.budgets_s)}-{id(self)}"
        run = msgspec.structs.replace(a_document().runs[0], id=name)
        self.document(request.document).document.runs.append(run)
        return run


@pytest.fixture(autouse=True)
def no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have documents work although there is no file of their model."""
    monkeypatch.setattr(OpenDocument, "model_path", lambda self: self.document.model.path)


@pytest.fixture
def engine() -> Iterator[EngineWithoutChildren]:
    with contextlib.closing(EngineWithoutChildren()) as made:
        yield made


def placed(session: Path, *batches: int) -> several.ShapesPlaced:
    with contextlib.closing(EngineWithoutChildren()) as engine:
        wanted = choices_of(*(batches or BATCHES))
        return place_shapes(engine, "m.onnx", wanted, RunSettings(), session=session)


def runs_in(session: Path) -> dict[str, int]:
    """Shape → the number of its runs that the file holds."""
    document = load_session(session)
    return {choice.text: len(each.runs) for choice, each in document.placed_shapes}


def test_an_artifact_that_cannot_be_written_loses_no_run(
    engine: EngineWithoutChildren, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise ArtifactError("no space left")

    monkeypatch.setattr(several, "call_in_child", lambda *_, **__: None)  # there is no file
    monkeypatch.setattr(several, "combine_artifacts", full)
    session = tmp_path / "s.collage"
    with pytest.raises(ArtifactError, match="no space left"):
        place_shapes(
            engine,
            "m.onnx",
            choices_of(*BATCHES),
            RunSettings(),
            session=session,
            out=tmp_path / "out",
        )
    assert runs_in(session) == {"batch=1": 1, "batch=4": 1}
    assert list(tmp_path.iterdir()) == [session]


def test_each_shape_gets_an_equal_share_of_what_is_left_of_the_budget(
    engine: EngineWithoutChildren,
) -> None:
    place_shapes(engine, "m.onnx", choices_of(1, 4), RunSettings(budget_s=1000))
    first, second = engine.budgets_s  # the runs themselves take no time here
    assert first == pytest.approx(500, abs=5) and second == pytest.approx(1000, abs=10)


def test_shapes_that_are_not_placed_again_stay_in_the_session(tmp_path: Path) -> None:
    session = tmp_path / "s.collage"
    placed(session, 1, 4)
    placed(session, 16, 4)
    assert runs_in(session) == {"batch=16": 1, "batch=4": 2, "batch=1": 1}


@pytest.mark.parametrize(
    ("batch", "choice", "runs"),
    [
        (4, None, {"batch=1": 1, "batch=4": 2}),
        (2, choices_of(2)[0], {"batch=2": 1, "batch=1": 1, "batch=4": 1}),  # as the user wrote it
    ],
)
def test_one_shape_joins_a_session_of_several(
    engine: EngineWithoutChildren,
    tmp_path: Path,
    batch: int,
    choice: ShapeChoice | None,
    runs: dict[str, int],
) -> None:
    path = tmp_path / "s.collage"
    placed(path)
    session = Session.of_model(engine, "m.onnx", {"x": (batch,)})
    session.continue_from(path, choice)
    session.place(RunSettings())
    session.save(path)
    assert runs_in(path) == runs


def test_several_shapes_go_on_where_a_session_of_one_ended(tmp_path: Path) -> None:
    session = tmp_path / "s.collage"
    one = document_for(4)
    one.runs = a_document().runs
    save_session(one, session)
    placed(session, 1, 4)
    assert runs_in(session) == {"batch=1": 1, "batch=4": len(one.runs) + 1}


def test_a_session_of_one_shape_does_not_become_that_of_another(
    engine: EngineWithoutChildren, tmp_path: Path
) -> None:
    session = tmp_path / "s.collage"
    save_session(document_for(4), session)
    with pytest.raises(UsageError, match="of other input sizes"):
        Session.of_model(engine, "m.onnx", {"x": (1,)}).continue_from(session)


def test_a_shape_of_a_session_is_chosen_by_its_dimensions(
    engine: EngineWithoutChildren, tmp_path: Path
) -> None:
    path = tmp_path / "s.collage"
    placed(path)
    session = Session.of_file(engine, path)
    assert session.shapes == choices_of(*BATCHES)
    assert session.of_shape({"batch": 4}).model.shapes == {"x": (4,)}
    with pytest.raises(UsageError, match="no shape with batch=2: it has batch=1, batch=4"):
        session.of_shape({"batch": 2})


@pytest.mark.parametrize("what", ["another file", "another model", "no folder", "a long name"])
def test_what_cannot_be_a_session_is_found_before_the_first_run(
    engine: EngineWithoutChildren, tmp_path: Path, what: str
) -> None:
    session = tmp_path / "s.collage"
    if what == "another file":
        session.write_text("the only copy of a novel")
    elif what == "another model":
        document = a_document()
        document.model = msgspec.structs.replace(document.model, sha256="11")
        save_session(document, session)
    elif what == "no folder":
        session = tmp_path / "none" / "s.collage"
    else:
        session = tmp_path / ("s" * 300)
    before = session.read_bytes() if what.startswith("another") else None
    with pytest.raises(UsageError):
        place_shapes(engine, "m.onnx", choices_of(1, 4), RunSettings(), session=session)
    assert not engine.budgets_s
    if what.startswith("another"):
        assert session.read_bytes() == before


def test_a_session_that_cannot_be_written_afterwards_loses_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(*_: object) -> None:
        raise SessionError("no space left")

    monkeypatch.setitem(HANDLERS, p.SessionSave, save)
    found = placed(tmp_path / "s.collage")
    assert len(found.runs) == 2 and str(found.not_saved) == "no space left"
    assert found.session is None
