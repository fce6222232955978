"""Which of its two children the engine gives a job to, and whose job a cancel ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from collage_engine.records import protocol as p
from collage_engine.records.answers import RunUpdate
from collage_engine.records.graph import ModelRecord
from collage_engine.records.placement import Baseline, Placement, Run
from collage_engine.records.settings import RunSettings
from collage_engine.service import engine as engine_module
from collage_engine.service.engine import Engine
from collage_engine.service.run_client import Ticket
from collage_engine.support.errors import ArtifactError, UsageError
from tests.support.graphs import record_of
from tests.support.runs import run_record


class FakeClient:
    """Remembers what it was asked."""

    def __init__(self, name: str) -> None:
        self.name, self.busy = name, False
        self.jobs: list[str] = []
        self.cancelled: list[Ticket | None] = []
        self.kept: list[Ticket | None] = []

    def job(self, job: p.Job[Any], **_: Any) -> Any:
        self.jobs.append(job.request.method)
        model = ModelRecord(path="m.onnx", sha256="", nodes=0, weights_bytes=0, onnx_nodes=0)
        graph = record_of()
        return model, graph

    def cancel(self, ticket: Ticket | None = None) -> bool:
        self.cancelled.append(ticket)
        return self.busy

    def keep(self, ticket: Ticket | None = None) -> bool:
        self.kept.append(ticket)
        return self.busy

    def close(self) -> None:
        pass


@pytest.fixture
def engine(monkeypatch) -> Any:
    monkeypatch.setattr(engine_module, "PipelineClient", FakeClient)
    return Engine()


@pytest.fixture
def opened(engine) -> Any:
    """A document that is open in the engine."""
    return engine.document(engine.request(p.ModelOpen(path="m.onnx")).document)


def test_a_model_opens_beside_a_run(engine) -> None:
    engine.request(p.ModelOpen(path="m.onnx"))
    engine._pipeline.busy = True
    engine.request(p.ModelOpen(path="m.onnx"))
    assert (engine._pipeline.jobs, engine._side.jobs) == (["model.open"], ["model.open"])


def test_a_cancel_ends_the_run_of_its_document_and_no_other_job(engine, opened) -> None:
    engine.request(p.RunCancel(document=opened.handle))
    assert engine._pipeline.cancelled == [], "it has no run"
    running = opened.running = Ticket()
    engine.request(p.RunCancel(document=opened.handle))
    assert engine._pipeline.cancelled == [running]


def test_a_stop_that_keeps_the_best_is_no_cancel(engine, opened) -> None:
    running = opened.running = Ticket()
    engine.request(p.RunCancel(document=opened.handle, keep=True))
    assert engine._pipeline.kept == [running] and engine._pipeline.cancelled == []


def test_ctrl_c_while_no_run_is_under_way_cancels(engine) -> None:
    engine._side.busy = True
    assert engine.keep() and engine._pipeline.kept == []
    assert engine._side.cancelled == [None]


def test_a_name_that_is_no_text_is_refused(engine) -> None:
    with pytest.raises(UsageError, match=r"not UTF-8 text: .*caf"):
        engine.request(p.ModelOpen(path="caf\udce9.onnx"))


def test_a_closed_document_is_gone(engine) -> None:
    opened = engine.request(p.ModelOpen(content=b"bytes", name="m.onnx"))
    engine.request(p.DocumentClose(document=opened.document))
    with pytest.raises(UsageError, match="no open document"):
        engine.document(opened.document)


def test_closing_a_document_stops_its_run(engine, opened) -> None:
    running = opened.running = Ticket()
    engine.request(p.DocumentClose(document=opened.handle))
    assert engine._pipeline.cancelled == [running]


def test_the_best_answer_so_far_is_exported_by_the_id_of_the_run(opened) -> None:
    with pytest.raises(UsageError, match="there is no run 'r1'"):
        opened.run("r1")
    opened.provisional = a_run("r1", provisional=True)
    assert opened.run("r1") is opened.provisional
    opened.document.runs.append(a_run("r1"))
    assert not opened.run("r1").provisional, "the finished run takes its place"


def test_a_run_whose_artifact_cannot_be_written_is_kept(engine, opened, monkeypatch) -> None:

    def job(job: p.Job[p.RunStart], *, on_event: Callable[[object], None], **_: Any) -> None:
        on_event(RunUpdate(candidates=[]))
        on_event(RunUpdate(candidates=[], run=a_run("r1")))
        raise ArtifactError("there is no room for it")

    monkeypatch.setattr(engine._pipeline, "job", job)
    monkeypatch.setattr(type(opened), "model_path", lambda self: "m.onnx")  # there is no file
    with pytest.raises(ArtifactError, match="no room"):
        settings = RunSettings(threads=3)
        engine.run(p.RunStart(document=opened.handle, settings=settings, out="out"))
    assert [run.id for run in opened.document.runs] == ["r1"]
    assert opened.document.settings.threads == 3


def test_a_quick_confirmation_compares_with_the_last_run_of_its_kind(opened) -> None:
    other = RunSettings(threads=4)
    opened.document.runs += [a_run("r1"), a_run("r2"), a_run("r3", settings=other)]
    assert opened.last_measured_run(RunSettings()).id == "r2"
    assert opened.last_measured_run(other).id == "r3"
    assert opened.last_measured_run(RunSettings(precision="bfloat16")) is None


def test_what_a_quick_confirmation_did_not_time_is_known_from_an_earlier_run(opened) -> None:

    def timed(**us: float | None) -> list[Baseline]:
        return [Baseline(name=n, kind="whole-model", measured_us=t) for n, t in us.items()]

    opened.document.runs += [
        a_run("r1", baselines=timed(tvm=3.0, onednn=9.0)),
        a_run("r2", baselines=timed(tvm=4.0, onednn=None)),
        a_run("r3", baselines=timed(tvm=None, onednn=8.0)),
    ]
    found = opened.last_measured_run(RunSettings())
    assert found.id == "r3"
    assert {base.name: base.measured_us for base in found.baselines} == {"tvm": 4.0, "onednn": 8.0}


def a_run(name: str, settings: RunSettings | None = None, **more: Any) -> Run:
    """A run whose placement was timed."""
    return run_record(
        id=name,
        placement=Placement(partitions=(), estimated_us=None, measured_us=5.0),
        settings=msgspec.to_builtins(settings or RunSettings()),
        **more,
    )
