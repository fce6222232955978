"""``collage diagnose``: real runtimes' own profiles, by ONNX node, kept in a session.

What the desktop's page of code shows of a candidate, for each kind of toolchain.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest

from collage_engine.api import load_session
from collage_engine.candidates.open_model import OpenModel
from collage_engine.cli.main import main
from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.records.answers import InsideAnswer
from collage_engine.records.toolchain import Target
from collage_engine.run.inspect_candidate import inspect
from collage_engine.toolchains import registry
from tests import zoo
from tests.support.artifact_cases import MNIST
from tests.support.covers import candidate_on
from tests.support.written import written


@pytest.fixture(scope="module")
def half_falls_back(tmp_path_factory) -> Path:
    """A model with three operators for which OpenVINO has reference kernels only."""
    model = written(
        """(float[1,16,32,32] x) => (float[1,16,32,32] y) {
            [first] a = Conv<pads=[1, 1, 1, 1]>(x, w)
            [sinh] b = Sinh(a)
            [second] c = Conv<pads=[1, 1, 1, 1]>(b, w)
            [relu] d = Relu(c)
            [lrn] e = LRN<size=3>(d)
            [sum] y = CumSum(e, axis)
        }""",
        {"w": np.full((16, 16, 3, 3), 0.01, np.float32), "axis": np.int64(2)},
    )
    path: Path = tmp_path_factory.mktemp("half") / "half.onnx"
    onnx.save(model, path)
    return path


def test_it_says_what_fell_back_and_what_that_cost(half_falls_back, capsys):
    command = ["diagnose", str(half_falls_back), "--runtime", "openvino", "--threads", "1"]
    assert main([*command, "--no-place", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {name: row for row in found["nodes"] for name in row["onnx_nodes"]}
    assert set(rows) == {"first", "sinh", "second", "relu", "lrn", "sum"}
    for name in ("sinh", "lrn", "sum"):
        assert rows[name]["state"] == "fell back" and rows[name]["device"].startswith("ref")
        assert rows[name]["us"] > 0 and rows[name]["onnx_nodes"] == [name]
    for name in ("first", "second"):
        assert rows[name]["state"] == "ran" and rows[name]["us"] > 0
    assert rows["relu"] == rows["second"], "it was fused"
    inserted = sum(each["us"] for each in found["inserted"])
    times = sum(row["us"] or 0 for row in found["nodes"])
    assert found["layers_us"] == pytest.approx(times + inserted)
    assert found["placement_us"] is None


def test_weights_that_are_listed_as_inputs_are_said_with_a_command_that_helps(tmp_path, capsys):
    weight = {"w": np.float32([1, 2, 3])}
    model = written("(float[2,3] x, float[3] w) => (y) { y = Mul(x, w) }", weight, opset=17)
    onnx.save(model, tmp_path / "m.onnx")

    def warnings(file: str) -> list[str]:
        path = str(tmp_path / file)
        assert main(["diagnose", path, "--runtime", "onnxruntime", "--no-place", "--json"]) == 0
        return json.loads(capsys.readouterr().out)["warnings"]

    (said,) = warnings("m.onnx")
    assert "--keep-inputs NAME" in said
    command = shlex.split(said[said.index("python -c") :])
    subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=True)
    assert warnings("constants.onnx") == []
    graph = onnx.load(tmp_path / "constants.onnx").graph
    assert [value.name for value in graph.input] == ["x"] and len(graph.initializer) == 1


def test_a_profile_is_a_run_that_is_compared_with_a_placement(tmp_path, capsys):
    session = tmp_path / "m.collage"
    command = ["diagnose", str(MNIST), "--threads", "1", "--session", str(session)]
    place = ("--runtime", "onnxruntime", "--toolchains", "onnxruntime,tvm", "--budget", "15s")
    assert main([*command, *place, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["toolchain"] == "onnxruntime" and found["alone_us"] > 0
    assert found["placement_us"] <= found["alone_us"] * 1.05
    conv = next(row for row in found["nodes"] if "Convolution28" in row["onnx_nodes"])
    assert {"Convolution28", "Plus30", "ReLU32"} == set(conv["onnx_nodes"])
    assert conv["placed_on"]
    assert main([*command, "--runtime", "openvino", "--no-place"]) == 0
    assert "OpenVINO" in capsys.readouterr().out
    loaded = load_session(session)
    try:
        assert [run.of_profile for run in loaded.runs] == [True, False, True]
        assert loaded.explain("Convolution28", loaded.runs[0].id).words
        assert loaded.document.run("ONNX Runtime's profile") is loaded.runs[0]
        assert loaded.compare("1", "2").by_toolchain["onnxruntime"][0] > 1
        for kind in ("html", "csv", "json", "svg", "graphml", "explorer"):
            assert loaded.report(kind, loaded.runs[0].id)
    finally:
        loaded.close()


def test_a_file_of_another_tool_is_compared_with_a_run_without_the_model(tmp_path, capsys):
    """The stored session's model is on another machine."""
    report = tmp_path / "benchmark_detailed_counters_report.csv"
    rows = ("Convolution28", "Pooling66", "Convolution110", "Pooling160", "Times212")
    report.write_text(
        "layerName;execStatus;layerType;execType;realTime (ms);cpuTime (ms)\n"
        + "".join(f"{name};EXECUTED;Any;jit_f32;0.010;0.010\n" for name in rows)
    )
    session = Path(__file__).parents[1] / "data" / "mnist.collage"
    for sides in (("last", report), (report, "last")):
        assert main(["compare", str(session), *map(str, sides), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["by_toolchain"]["openvino"][sides.index(report)] == len(rows)
        assert len(found["nodes"]) > len(rows)
    assert main(["compare", str(session), "last", str(tmp_path / "absent")]) == 2


@pytest.mark.parametrize(
    ("wrong", "status", "words"),
    [
        ([], 2, "--runtime"),
        (["--runtime", "tvm"], 2, "no profiling of its own"),
        (["--runtime", "nothing"], 2, "unknown toolchain"),
        (["--profile", "absent.json"], 2, "cannot be read"),
        (["--profile", str(MNIST)], 2, "is no"),
    ],
)
def test_what_cannot_be_diagnosed_is_refused(wrong, status, words, capsys):
    assert main(["diagnose", str(MNIST), "--no-place", *wrong]) == status
    captured = capsys.readouterr()
    assert words in captured.err and not captured.out


@pytest.fixture(scope="module")
def mnist() -> ImportedModel:
    return import_onnx(zoo.build("mnist"), "mnist.onnx")


def inside(model: ImportedModel, toolchain: str, operators: Any) -> InsideAnswer:
    instance = registry.get(toolchain).instances(Target(), "float32")[0]
    candidate = candidate_on(instance, operators)
    opened = cast(OpenModel, SimpleNamespace(model=model))
    return inspect(opened, candidate, None)


def test_tvm_shows_its_kernels_and_their_code(mnist: ImportedModel) -> None:
    found = inside(mnist, "tvm", range(len(mnist.graph.operators)))
    assert found.reason is None and found.relax and found.tir
    assert found.tir.count("prim_func") == len(found.plan)
    assert any("conv2d" in step["op"] and step["algorithm"] for step in found.plan)


@pytest.mark.parametrize("toolchain", ["onednn", "openvino"])
def test_libraries_show_the_algorithm_and_layout_of_each_step(
    mnist: ImportedModel, toolchain: str
) -> None:
    found = inside(mnist, toolchain, range(len(mnist.graph.operators)))
    assert found.tir is None
    steps = [step for step in found.plan if step["op"].lower().startswith("conv")]
    assert len(steps) == 2 and all(step["algorithm"] and step["layout"] for step in steps)


def test_a_blas_shows_its_call(mnist: ImportedModel) -> None:
    found = inside(mnist, "openblas", [len(mnist.graph.operators) - 2])
    assert [step["op"] for step in found.plan] == ["sgemm"]
