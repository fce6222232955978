"""Session files: everything comes back, other versions are told, nothing is half-written."""

from __future__ import annotations

import contextlib
import sqlite3

import msgspec
import pytest

from collage_engine.records.candidate import CandidateRecord, Cost, Refusal, invalid
from collage_engine.records.graph import ModelRecord
from collage_engine.records.pin import Pin
from collage_engine.records.placement import CandidateCounts, Placement
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.versions import SESSION_FORMAT
from collage_engine.service.open_document import OpenDocument
from collage_engine.store.document import Document
from collage_engine.store.session_file import load_session, save_session
from collage_engine.support.errors import SessionError
from tests.support.graphs import GraphBuilder
from tests.support.runs import partition, run_record


def a_document() -> Document:
    b = GraphBuilder((1, 4))
    relu = b.call("nn.relu", b.parameter("x"), name="relu", a=[1, 2.5, "z"])
    b.nodes[relu] = msgspec.structs.replace(b.nodes[relu], onnx_nodes=("relu",))
    graph = msgspec.structs.replace(b.build(relu).record, output_names=("y",))
    instance = ToolchainInstance(toolchain="onednn", config=(("k", "v"),), threads=2)
    placement = Placement(
        partitions=(partition(0, config={"k": "v"}, onnx_nodes=("relu",), us=3.0),),
        estimated_us=4.0,
        measured_us=5.0,
        additive_error_us=1.0,
    )
    run = run_record(
        name="first",
        model={"nodes": 1},
        threads=2,
        candidates=CandidateCounts(enumerated=2),
        placement=placement,
        max_abs_error=0.0,
        max_rel_error=0.0,
        seconds={"total": 1.0},
    )
    measured = Cost(state="measured", median_us=3.0)
    return Document(
        model=ModelRecord(path="m.onnx", sha256="00", nodes=1),
        graph=graph,
        candidates=[
            CandidateRecord(id=id, instance=instance, nodes=(0,), label="", key=id, cost=cost)
            for id, cost in (("c", measured), ("d", invalid("wrong numbers")))
        ],
        without_candidates={"onednn": {0: Refusal("judged", "take", "no such operator", "oneDNN")}},
        pins=[Pin(kind="on", nodes=(0,), toolchain="onednn", text="relu=onednn")],
        runs=[run],
        settings=RunSettings(threads=2, toolchains=("onednn",)),
        constants={"launch": 0.4},
    )


@pytest.mark.parametrize("name", ["a.collage", "model #2?.collage", "ré%20sumé.collage"])
def test_everything_comes_back(tmp_path, name):
    path = tmp_path / name
    save_session(a_document(), path)
    loaded = load_session(path)
    assert loaded == a_document()
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_what_cannot_be_written_as_text_leaves_no_file(tmp_path):
    document = a_document()
    document.model = msgspec.structs.replace(document.model, path="caf\udce9.onnx")
    with pytest.raises(SessionError, match="cannot write the session"):
        save_session(document, tmp_path / "a.collage")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("version", [SESSION_FORMAT + 1, SESSION_FORMAT - 1, 0])
def test_another_version_is_said_so(tmp_path, version):
    path = tmp_path / "a.collage"
    save_session(a_document(), path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"pragma user_version = {version}")
        db.commit()
    with pytest.raises(SessionError, match=f"no session of format {SESSION_FORMAT}"):
        load_session(path)


def test_runs_go_by_id_name_number_and_last():
    document = Document(model=a_document().model, graph=a_document().graph)
    (kept,) = a_document().runs[:1]
    first = msgspec.structs.replace(kept, id="ra", name="")
    second = msgspec.structs.replace(kept, id="rb", name="3")
    third = msgspec.structs.replace(kept, id="rc", name="")
    document.runs = [first, second, third]
    names = ["ra 1", "rb 3", "rc last"]
    for run, said in zip(document.runs, names, strict=True):
        assert all(document.run(name) is run for name in said.split())
    assert document.run("Run 1") is first and document.run("run 2") is second
    for name in ("0", "4", "run", "Run", "rd", "²"):
        assert document.run(name) is None, name
    assert [document.title(run) for run in document.runs] == ["Run 1", "3", "Run 3"]


def test_a_cost_finds_its_candidate_in_every_list_that_a_run_brings():
    opened = OpenDocument("d1", a_document())
    kept = opened.document.candidates[0]
    for us in (3.0, 4.0):
        one = msgspec.structs.replace(kept, id="one")
        opened.document.candidates = [one, kept] if us == 3.0 else [kept, one]
        opened.put_cost("one", Cost(state="measured", median_us=us))
        opened.put_cost("none", Cost(state="measured", median_us=us))
        assert opened.candidate("one").cost.us == us and opened.candidate(kept.id) == kept
