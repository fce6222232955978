"""The public Python interface from a model to an artifact, with TVM alone."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

from collage_engine import api
from collage_engine.model.importer import import_model
from collage_engine.records.event import Stage
from tests import zoo
from tests.support.artifact_cases import artifact_of, cover_in_turn
from tests.support.caches import fresh_cache
from tests.support.command import python
from tests.support.full_documents import two_shapes
from tests.support.notebook_page import END, run_notebook
from tests.zoo.net import Net


@pytest.mark.slow
def test_from_a_model_to_an_artifact(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(fresh_cache(tmp_path / "cache")))
    settings = api.RunSettings(
        toolchains=("tvm",), budget_s=10, threads=1, in_place=False, confirmation="quick"
    )
    model = tmp_path / "tiny.onnx"
    model.write_bytes(zoo.build("tiny").SerializeToString())
    stages: list[str] = []

    def listen(event: object) -> None:
        """A listener that fails loses no run."""
        if isinstance(event, Stage) and event.done:
            stages.append(event.stage)
        raise ValueError("the bar is broken")

    with api.open_model(model, listener=listen) as session:
        candidates = session.candidates(settings)
        assert candidates and all(c.cost.state == "unknown" for c in candidates)
        session.pin("exp=tvm")
        run = session.place(settings, out=tmp_path / "artifact")
        assert run.placement is not None and run.placement.measured_us
        assert {"measure", "search", "confirm", "export"} <= set(stages)
        assert session.runs == (run,)
        with api.open_model(zoo.build("tiny")) as in_memory:
            assert in_memory.graph == session.graph
        assert session.explain("exp").words
        session.save(tmp_path / "tiny.collage")
    assert api.run_artifact(tmp_path / "artifact")["max_rel_error"] < 1e-4
    with api.load_session(tmp_path / "tiny.collage") as session:
        session.export(tmp_path / "again")
    assert api.run_artifact(tmp_path / "again", benchmark=True)["median_us"] > 0


def test_a_budget_that_is_over_before_an_answer_ends_with_the_first_one(tmp_path):
    settings = api.RunSettings(toolchains=("tvm",), budget_s=0.1, threads=1)
    with api.open_model(zoo.build("tiny")) as session:
        run = session.place(settings, out=tmp_path / "artifact", spent_s=0.1)
        assert run.placement is not None and run.placement.measured_us
        assert any("the budget was over before any placement" in text for text in run.warnings)
        assert sum(b.measured_us is not None for b in run.baselines) == 1, "it goes on for no more"
    assert api.run_artifact(tmp_path / "artifact")["max_rel_error"] < 1e-4


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_notebook_runs_from_the_first_cell_to_the_last(tmp_path):
    page, said = run_notebook(tmp_path, fresh_cache(tmp_path / "cache"))
    assert page.count(END) > 5, "each cell is followed by what it shows"
    shown = html.unescape(page)
    assert "<svg" in page and "Value(name='Input3', shape=(1, 1, 28, 28)" in shown
    assert "values cross from one toolchain to another" in shown
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    assert "Best so far" in said, "progress is shown"


CALLS = """
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import collage_engine as collage

model = collage.load(sys.argv[1])
x, y = np.full((2, 3), 3, np.float32), np.full((2, 3), 5, np.float32)
feeds = {"x": x, "y:0": y}
assert [tuple(v) for v in model.inputs] == [(name, (2, 3), "float32") for name in feeds]
assert [v.name for v in model.outputs] == ["sum", "the product"]
for outputs in (model(x, y), model(feeds), model(**feeds), model(x, **{"y:0": y})):
    total, product = outputs
    assert (total == 8).all() and (product == 15).all()
    assert outputs["sum"] is total and outputs["the product"] is product
assert [each.tolist() for each in model.run(None, feeds)] == [total.tolist(), product.tolist()]
(only,) = model.run(["the product"], feeds)
assert (only == 15).all()
# Numbers of another type, as long as nothing is lost, and what a caller does with an output.
for same in (y.tolist(), y.astype(np.int64), y.astype(np.float64), y[:, ::-1]):
    assert (model(x, same)["sum"] == 8).all()
kept = model(x, y)["sum"]
kept[...] = 0
assert (model(x, y)["sum"] == 8).all() and (kept == 0).all()
with ThreadPoolExecutor(4) as pool:
    squares = pool.map(lambda n: (n, model(x * n, y * n)["the product"]), range(200))
    assert all((product == 15 * n * n).all() for n, product in squares)


def refused(*arrays, kind=ValueError, **named):
    try:
        model(*arrays, **named)
    except kind as error:
        print(error)
    else:
        raise AssertionError("it was taken")


refused(x)
refused({**feeds, "z": x})
refused(x, y, x)
refused(x, y, x=x)
refused(x, y.astype(np.float64) + 1e-12)
refused(x, y[:1])
try:
    model(x, y)["difference"]
except KeyError as error:
    print(error)
"""
REFUSED = """\
input 'y:0' is missing
the model has no input 'z'; it has x, y:0
3 inputs are given; the model has 2
input 'x' is given twice
input 'y:0' must be float32[2, 3], not float64[2, 3]
input 'y:0' must be float32[2, 3], not float32[1, 3]
"there is no output 'difference'; there are sum, the product"
"""


def test_a_loaded_artifact_is_called_in_every_familiar_way(tmp_path):
    net = Net("two", opset=13, seed=1)
    x, y = net.input("x", [2, 3]), net.input("y:0", [2, 3])
    net.output(net.op("Add", x, y, outputs=["sum"]))
    net.output(net.op("Mul", x, y, outputs=["the product"]))
    (tmp_path / "m.onnx").write_bytes(net.model().SerializeToString())
    model = import_model(tmp_path / "m.onnx")
    folder = artifact_of(model, cover_in_turn(model, ["tvm"]), tmp_path)
    said = python(CALLS, folder, cwd=ROOT)
    assert said.returncode == 0, said.stderr
    assert said.stdout == REFUSED


def test_inputs_of_several_shapes_say_which_sizes_differ(tmp_path):
    code = (
        "import sys, numpy as np, collage_engine as collage; model = collage.load(sys.argv[1]);"
        "print(model.inputs[0].shape, model.outputs[0].shape);"
        "print([model(np.ones((n, 16), np.float32))[0].shape for n in (1, 2, 3)]);"
        "model(picture=np.ones((1, 16), np.float32))"
    )
    folder = two_shapes(tmp_path / "two")
    said = python(code, folder, cwd=ROOT)
    assert said.stdout == "(None, 16) (None, 5)\n[(1, 5), (2, 5), (3, 5)]\n"
    assert "the model has no input 'picture'; it has image" in said.stderr
