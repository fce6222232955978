"""Values whose size depends on the data stay inside one operator, and may leave the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from collage_engine.lowering.build import build_cover
from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.reference import TrueValues
from collage_engine.lowering.reference import run_onnx as evaluate
from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.records.toolchain import Target
from collage_engine.toolchains import registry
from tests import zoo
from tests.support.artifact_cases import artifact_of, compile_loader, cover_in_turn
from tests.support.model_runs import run_onnx


@pytest.fixture(scope="module")
def detector() -> ImportedModel:
    return import_onnx(zoo.build("detector"), "detector.onnx", evaluate=evaluate)


def names(model: ImportedModel) -> list[str]:
    return [model.graph.nodes[i].op for i in model.graph.operators]


def test_who_makes_and_who_reads_an_open_value_are_one_operator(detector: ImportedModel) -> None:
    opaque = [name for name in names(detector) if name.startswith("onnx:")]
    assert opaque == ["onnx:NonMaxSuppression+Slice+Squeeze+Gather", "onnx:NonZero"]
    inside = {value.index for value in detector.graph.values if value.type.is_open}
    read = {i for node in detector.graph.nodes for i in node.inputs}
    assert inside and not inside & read
    kinds = [str(kind) for _, kind in detector.outputs]
    assert kinds == ["float32[1,?,4]", "int64[3,?]", "float32[1,4]"]


def test_each_run_has_its_own_size(detector: ImportedModel, tmp_path: Path) -> None:
    instance = registry.get("onnxruntime").instances(Target(), "float32")[0]
    function = function_of(detector, instance, range(len(detector.graph.operators)), "f")
    assert function.returns
    sizes = set()
    with Compiled(function) as compiled:
        for seed in range(3):
            values = TrueValues.record(detector, detector.random_inputs(seed), tmp_path / str(seed))
            found = compiled.run([np.array(v) for v in values.inputs_of(function)])
            for array, wanted in zip(found, values.outputs_of(function), strict=True):
                np.testing.assert_allclose(array, wanted, rtol=1e-4, atol=1e-4)
                sizes.add(array.shape)
        assert compiled.timer([np.array(v) for v in values.inputs_of(function)])(2) > 0
    assert len(sizes) > 3


def test_a_placement_of_several_toolchains_returns_them(detector: ImportedModel) -> None:
    from tvm import relax, runtime

    owners = ["onnxruntime" if name.startswith("onnx:") else "tvm" for name in names(detector)]
    cover = cover_in_turn(detector, owners)
    machine = relax.VirtualMachine(build_cover(detector, cover).executable, runtime.cpu())
    inputs = detector.random_inputs(5)
    found = machine["main"](*[runtime.tensor(v) for v in inputs.values()])
    for tensor, wanted in zip(found, run_onnx(zoo.build("detector"), inputs), strict=True):
        assert tensor.numpy().shape == wanted.shape
        np.testing.assert_allclose(tensor.numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_both_loaders_return_each_runs_own_size(detector: ImportedModel, tmp_path: Path) -> None:
    folder = artifact_of(detector, cover_in_turn(detector, ["onnxruntime"]), tmp_path)
    python = [sys.executable, str(folder / "loader" / "run_artifact.py")]
    for loader in (python, [str(compile_loader())]):
        done = subprocess.run([*loader, str(folder)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "agrees with the sample" in done.stdout
