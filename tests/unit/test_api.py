"""The public Python interface on a session that was saved earlier; nothing here needs TVM."""

from __future__ import annotations

import csv
import io
import re
import sys
import types
from pathlib import Path
from xml.etree import ElementTree

import pytest

import collage_engine
from collage_engine import api
from collage_engine.records.placement import noise_us
from collage_engine.store.session_file import load_session as read_session
from collage_engine.support.errors import ArtifactError, UsageError
from tests.support.command import python

SESSION = Path(__file__).resolve().parents[1] / "data" / "mnist.collage"
"""Of a run on MNIST: 103 candidates, TVM and ONNX Runtime, with TVM alone as the only runtime."""


@pytest.fixture
def session():
    with api.load_session(SESSION) as opened:
        yield opened


def test_nodes_go_by_number_and_by_their_onnx_names(session):
    assert session.operators(0) == session.operators("0") == [0]
    assert session.operators("convolution28") == [0]
    with pytest.raises(UsageError, match=r"there is no node 99: operators are 0…10"):
        session.operators(99)
    with pytest.raises(UsageError, match="near are Convolution28"):
        session.explain("Convolution2")


def test_an_explanation_names_the_chosen_candidate(session):
    answer = session.explain("Convolution28")
    assert answer.words and answer.chosen in {c.id for c in answer.candidates}
    exported = {part.candidate for part in session.runs[-1].placement.partitions}
    assert answer.chosen in exported, "what is explained is what the run exported"
    noise = noise_us(session.runs[-1].placement)
    assert min(p.us for p in answer.prices.values() if p.us is not None) >= -noise


def test_pins_are_replaced_and_checked(session):
    session.pin("Conv*=tvm", "Plus214=!onnxruntime")
    assert [(pin.kind, pin.toolchain) for pin in session.pins] == [
        ("on", "tvm"),
        ("never", "onnxruntime"),
    ]
    with pytest.raises(UsageError, match="there is no toolchain 'abacus'"):
        session.pin("Conv*=abacus")
    session.pin()
    assert session.pins == ()


def test_a_placed_model_is_what_its_run_is(session):
    placed = api.PlacedModel(session, session.run())
    run = session.run()
    assert placed.latency_us == run.placement.measured_us
    assert placed.partitions == run.placement.partitions
    assert placed.baselines == tuple(run.baselines)
    assert str(placed.explain("Convolution28")).splitlines() == list(
        session.explain("Convolution28").words
    )
    assert "mnist.onnx" in repr(placed) and len(repr(placed)) < 250
    graph = placed.to_networkx()
    assert {graph.nodes[n]["toolchain"] for n in graph if "toolchain" in graph.nodes[n]} == {
        part.instance for part in placed.partitions
    }


def test_a_notebook_shows_the_graph_and_the_tables_offline(session):
    placed = api.PlacedModel(session, session.run())
    page = placed._repr_html_()
    ElementTree.fromstring(page.replace("&nbsp;", " "))  # each element is closed
    assert "<svg" in page and not re.search(r"(src|href)=|url\((?!#)|@import|<script|<html", page)
    report = session.report("html").decode()
    for table in re.findall(r"<table>.*?</table>", page, re.S):
        assert table in report, "it is the report's"
    assert all(node in page for node in ("Convolution28", "Plus214"))


def test_a_frame_has_the_rows_of_the_csv_report(session, monkeypatch):
    placed = api.PlacedModel(session, session.run())
    monkeypatch.setitem(sys.modules, "pandas", None)  # it is not installed
    for kind in ("csv", "latencies", "runs"):
        rows = placed.to_frame(kind)
        written = list(csv.DictReader(io.StringIO(session.report(kind).decode())))
        assert len(rows) == len(written) and rows[0].keys() == written[0].keys()
    names = {name for row in placed.to_frame() for name in row["onnx_nodes"].split()}
    assert {"Convolution28", "Plus214"} <= names
    asked = types.SimpleNamespace(DataFrame=lambda rows: (rows, list(rows[0])))
    monkeypatch.setitem(sys.modules, "pandas", asked)
    rows, columns = placed.to_frame("latencies")
    assert columns[:2] == ["run", "placement"] and len(rows) == len(placed.baselines) + 1
    with pytest.raises(UsageError, match="there is no table 'html'"):
        placed.to_frame("html")


def test_what_was_changed_is_saved(session, tmp_path):
    session.pin("Conv*=tvm")
    session.save(tmp_path / "copy.collage")
    again = read_session(tmp_path / "copy.collage")
    assert [pin.text for pin in again.pins] == ["Conv*=tvm"]
    assert tuple(again.runs) == session.runs


def test_what_needs_the_model_says_that_it_is_gone(session, tmp_path):
    with pytest.raises(UsageError, match=r"the model mnist\.onnx of this session is not on this"):
        session.place(out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not session.cancel()


def test_a_folder_that_is_no_artifact_is_not_overwritten(session, tmp_path):
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(ArtifactError, match="holds no artifact"):
        session.export(tmp_path)


def test_going_on_with_a_file_that_is_no_session_of_the_model(session, tmp_path):
    session.continue_from(tmp_path / "none.collage")
    with pytest.raises(UsageError, match="is a folder"):
        session.continue_from(tmp_path)
    with pytest.raises(UsageError, match="there is no folder"):
        session.continue_from(tmp_path / "none" / "s.collage")
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(UsageError, match="would overwrite a file"):
        session.continue_from(tmp_path / "letters.txt")
    before = session.runs
    session.continue_from(SESSION)
    assert session.runs == before


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.place({"budget_s": 5}),
        lambda s: s.candidates("tvm"),
        lambda s: s.pin(5),
        lambda s: s.save(None),
        lambda s: s.continue_from(7),
        lambda s: s.report("pdf"),
        lambda s: s.run(1),
        lambda s: s.explain(None),
        lambda s: s.of_shape({"batch": "4"}),
        lambda _: api.open_model(b"no model"),
        lambda _: api.open_model("m.onnx", shapes={"x": "1,3"}),
        lambda _: api.load_session(None),
        lambda _: api.load("no folder"),
        lambda _: api.place("m.onnx", budget="2"),
        lambda _: api.place("m.onnx", inputs={"x": object()}),
        lambda _: api.place("m.onnx", pins="fc=tvm"),
        lambda _: api.place("m.onnx", precision="bf8"),
        lambda _: api.place("no.onnx", progress=False),
        lambda _: api.place_shapes("m.onnx", {"batch": 4}),
        lambda _: api.place_shapes("m.onnx", (api.ShapeChoice(dims={"n": 1}),), pins="a=tvm"),
        lambda _: api.place_shapes("m.onnx", (api.ShapeChoice(dims={"n": 1}),), {"budget_s": 5}),
    ],
)
def test_what_cannot_be_asked_gets_a_sentence_and_changes_nothing(
    session, tmp_path, monkeypatch, call
):
    monkeypatch.chdir(tmp_path)
    before = session.pins
    with pytest.raises(api.CollageError) as error:
        call(session)
    assert "\n" not in str(error.value) and "--pin" not in str(error.value)
    assert session.pins == before and not list(tmp_path.iterdir())


def test_after_it_is_closed_a_session_says_so_and_can_still_be_looked_at(session, tmp_path):
    session.close()
    for call in (
        session.place,
        lambda: session.candidates(api.RunSettings()),
        lambda: session.pin("Plus214=tvm"),
        lambda: session.save(tmp_path / "s.collage"),
        lambda: session.export(tmp_path / "out"),
    ):
        with pytest.raises(UsageError, match="the session is closed"):
            call()
    assert session.run().winner == "tvm" and session.explain("Plus214").words
    assert not session.cancel()


def test_importing_it_loads_no_toolchain_and_every_public_name_has_a_docstring():
    heavy = "tvm tvm_ffi onnx onnxruntime openvino numpy scipy sqlite_utils PySide6 jinja2 rich"
    code = (
        "import sys; import collage_engine as collage; collage.place, collage.load;"
        f"print([m for m in {heavy.split()} if m in sys.modules])"
    )
    done = python(code, check=True)
    assert done.stdout.strip() == "[]"
    assert all(getattr(api, name).__doc__ for name in api.__all__)
    public = [
        value
        for of in (api.Session, api.PlacedModel)
        for name, value in vars(of).items()
        if not name.startswith("_")
    ]
    assert all(value.__doc__ for value in public)
    assert {"place", "load", "PlacedModel", "CollageError"} <= set(dir(collage_engine))
    assert collage_engine.place is api.place
    with pytest.raises(AttributeError, match="no attribute 'plaice'"):
        collage_engine.plaice  # noqa: B018
