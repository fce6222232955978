"""The public Python interface on a session that was saved earlier; nothing here needs TVM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from collage_engine import api
from collage_engine.records.errors import ArtifactError, SessionError, UsageError
from collage_engine.service.engine import Engine
from collage_engine.session.file import load_session as read_session

SESSION = Path(__file__).resolve().parents[1] / "data" / "mnist.collage"
"""Of a run on MNIST: 103 candidates, TVM and ONNX Runtime, with TVM alone as the only runtime."""


@pytest.fixture
def session():
    with api.load_session(SESSION) as opened:
        yield opened


def test_a_session_holds_what_its_file_holds(session):
    assert session.model.nodes == 11
    assert [run.winner for run in session.runs] == ["tvm"]
    assert session.run("last") is session.runs[0]
    assert [pin.text for pin in session.pins] == ["Plus214=tvm"]
    assert len(session.candidates()) == 103


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
    noise_us = session.runs[-1].placement.noise_us
    assert min(r for r in answer.regrets.values() if r is not None) >= -noise_us


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


def test_a_run_is_compared_with_itself(session):
    comparison = session.compare("last", "1")
    assert comparison.delta_us == 0.0
    assert {change.change for change in comparison.nodes} == {"same"}


def test_reports_are_bytes(session):
    assert session.report("csv").startswith(b"candidate,partition,toolchain")
    assert session.report("svg", "last").lstrip().startswith(b"<svg")
    with pytest.raises(UsageError, match="there is no run 'r2'"):
        session.report("json", "r2")


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


def test_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(SessionError, match="there is no session file"):
        api.load_session(tmp_path / "none.collage")
    with pytest.raises(UsageError, match=r"no\.onnx"):
        api.open_model(tmp_path / "no.onnx")


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.place({"budget_s": 5}),
        lambda s: s.place(out=5),
        lambda s: s.candidates("tvm"),
        lambda s: s.pin(5),
        lambda s: s.pin(["Plus214=tvm"]),
        lambda s: s.pin("not a pin"),
        lambda s: s.save(None),
        lambda s: s.export(None),
        lambda s: s.export("out", run=3),
        lambda s: s.export_shapes(b"out"),
        lambda s: s.continue_from(7),
        lambda s: s.report("pdf"),
        lambda s: s.report(["html"]),
        lambda s: s.report("html", run=1),
        lambda s: s.run(1),
        lambda s: s.explain(None),
        lambda s: s.compare(None, 1),
        lambda s: s.of_shape(5),
        lambda s: s.of_shape({"batch": "4"}),
        lambda _: api.open_model(5),
        lambda _: api.open_model(b"no model"),
        lambda _: api.open_model("m.onnx", shapes={"x": "1,3"}),
        lambda _: api.open_model("m.onnx", listener=5),
        lambda _: api.load_session(None),
        lambda _: api.run_artifact(None),
        lambda _: api.place_shapes("m.onnx", {"batch": 4}),
        lambda _: api.place_shapes(None, ()),
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


def test_a_listener_that_fails_is_logged_and_ends_nothing(caplog):
    def listen(event):
        raise ValueError("the bar is broken")

    told = Engine(lambda _, event: listen(event))
    try:
        assert told.toolchains(anew=True).toolchains
    finally:
        told.close()
    assert "the bar is broken" in caplog.text


def test_importing_it_loads_no_toolchain_and_every_public_name_has_a_docstring():
    heavy = "('tvm', 'tvm_ffi', 'onnx', 'onnxruntime', 'openvino', 'PySide6', 'jinja2', 'rich')"
    code = (
        "import sys; from collage_engine import api;"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert all(getattr(api, name).__doc__ for name in api.__all__)
    public = [value for name, value in vars(api.Session).items() if not name.startswith("_")]
    assert all(value.__doc__ for value in public)
