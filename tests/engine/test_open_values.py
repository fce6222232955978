"""Values whose size depends on the data stay inside one operator, and may leave the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from collage_engine.lowering.build import build_cover
from collage_engine.lowering.compile import compile_function
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.reference import TrueValues
from collage_engine.lowering.reference import run_onnx as evaluate
from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.records.toolchain import Target
from collage_engine.support.errors import ModelError, UsageError
from collage_engine.toolchains import registry
from tests import zoo
from tests.support.artifact_cases import artifact_of, compile_loader, cover_in_turn
from tests.support.model_runs import run_onnx
from tests.support.written import written
from tests.zoo.net import Net


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
    instance = registry.get("onnxruntime").instances(Target.cpu(1), "float32")[0]
    function = function_of(detector, instance, range(len(detector.graph.operators)), "f")
    assert function.returns
    sizes = set()
    with compile_function(function) as compiled:
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


def test_an_input_without_elements_is_taken_where_the_user_says_so() -> None:
    model = written("(float[2,0] x) => (float[n] y) { y = ReduceSum<keepdims=0>(x) }", opset=17)
    with pytest.raises(ModelError, match=r"--shape x=2,1"):
        import_onnx(model, "m.onnx")
    imported = import_onnx(model, "m.onnx", {"x": (2, 0)}, evaluate=evaluate)
    assert imported.inputs[0][1].elements == 0
    with pytest.raises(UsageError, match="dimension 0 of the input 'x' is fixed to 2"):
        import_onnx(model, "m.onnx", {"x": (0, 2)})


def test_a_sequence_of_constants_stays_a_sequence() -> None:
    """Their evaluation gives a list, which must not become a tensor of one more dimension."""
    net = Net("constants", opset=17)
    parts = [net.const(np.full((2, 3), k, np.float32)) for k in (5, 7)]
    many = net.op("SequenceConstruct", *parts)
    which = net.input("which", [], "int64")
    net.output(net.op("SequenceAt", many, which), shape=[2, 3])
    model = import_onnx(net.model(), evaluate=evaluate)
    for k, wanted in ((0, 5), (1, 7)):
        (found,) = evaluate(model.onnx, {"which": np.int64(k)})
        np.testing.assert_array_equal(found, np.full((2, 3), wanted, np.float32))
