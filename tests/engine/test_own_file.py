"""A whole model runs from the user's own file where toolchains are given ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.reference import original_outputs, run_onnx
from collage_engine.model.importer import ImportedModel, import_model
from collage_engine.model.own_file import original_model
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains import registry
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
from tests.support.model_runs import check_accounting
from tests.support.toolchain_cases import (
    Net,
    available,
    default_instance,
    error,
    imported,
    reference,
    run,
    whole,
)
from tests.support.written import written


def normalised() -> ModelProto:
    """A normalisation that folds into nothing: clean-up writes it as a product and a sum."""
    net = Net()
    x = net.input(1, 4, 6, 6)
    numbers = [net.add("Abs", net.randn(4)) for _ in range(4)]
    return net.model(net.add("Relu", net.add("BatchNormalization", x, *numbers)))


def opened(model: ModelProto, folder: Path, **shapes: tuple[int, ...]) -> ImportedModel:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return import_model(path, shapes)


def own_of(function: Function) -> ModelProto | None:
    return original_model(function.model, function.nodes, function.inputs, function.outputs)


@pytest.fixture(scope="module")
def toolchain() -> OnnxRuntimeToolchain:
    return available(OnnxRuntimeToolchain())


def operators(toolchain: OnnxRuntimeToolchain, function: Function) -> set[str]:
    steps = toolchain.inside(toolchain.compile(function))["steps"]
    return {step["what"] for step in steps}


def test_a_whole_model_has_the_operators_of_the_file(
    toolchain: OnnxRuntimeToolchain, tmp_path: Path
) -> None:
    model = normalised()
    made = opened(model, tmp_path)
    function = whole(made, default_instance(toolchain))
    assert "BatchNormalization" in operators(toolchain, function)
    feeds = made.random_inputs(0)
    results = run(toolchain.compile(function), function, feeds)
    assert error(results[0], reference(model, function, feeds)[0]) < 1e-5
    in_memory = whole(imported(model), default_instance(toolchain))
    assert "BatchNormalization" not in operators(toolchain, in_memory)


def test_the_cleaned_model_stands_in_where_the_file_is_refused_or_misread(
    toolchain: OnnxRuntimeToolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = whole(opened(normalised(), tmp_path), default_instance(toolchain))
    kind = "BatchNormalization"
    with monkeypatch.context() as patch:
        patch.setattr(toolchain, "misreads", lambda node, opset: node.op_type == kind)
        assert kind not in operators(toolchain, function)
    (tmp_path / "model.onnx").write_bytes(b"another file by now")
    assert kind not in operators(toolchain, function)
    (tmp_path / "model.onnx").unlink()
    assert kind not in operators(toolchain, function)


def test_sizes_are_set_weights_are_no_inputs_and_outputs_are_in_order(tmp_path: Path) -> None:
    """As in files before version 4 of the IR, weights are among the inputs."""
    model = written(
        """(float[n,3] x, float[3] w) => (float[n,3] early, float[n,3] late) {
            late = Exp(x)
            sum = Add(x, w)
            early = Relu(sum)
        }""",
        {"w": np.float32([1, 2, 3])},
        opset=13,
    )
    model.ir_version = 3
    made = opened(model, tmp_path, x=(2, 3))
    available_here = available(OnnxRuntimeToolchain())
    function = whole(made, default_instance(available_here))
    own = own_of(function)
    assert own is not None and own.ir_version >= 4
    (value,) = own.graph.input
    sizes = [d.dim_value for d in value.type.tensor_type.shape.dim]
    assert (value.name, sizes) == ("x", [2, 3])
    feeds = made.random_inputs(0)
    results = run(available_here.compile(function), function, feeds)
    for found, wanted in zip(results, reference(model, function, feeds), strict=True):
        assert error(found, wanted) < 1e-5


def test_a_part_is_not_the_file(tmp_path: Path) -> None:
    made = opened(normalised(), tmp_path)
    graph = made.graph
    nodes = 1 << graph.operators[-1]
    assert original_model(made, nodes, *graph.boundary(nodes)) is None


@pytest.mark.parametrize("kind", ["Softmax", "Sigmoid"])
@pytest.mark.parametrize("read_again", [False, True])
def test_a_logarithm_keeps_its_value_where_its_argument_has_none(
    toolchain: OnnxRuntimeToolchain, tmp_path: Path, kind: str, read_again: bool
) -> None:
    """The Softmax of -200 is 0 in float32, and so is the Sigmoid; their logarithms are -200."""
    net = Net()
    given = net.add(kind, net.input(2, 5))
    made = net.add("Log", given)
    model = net.model(made, given) if read_again else net.model(made)
    opened_model = opened(model, tmp_path)
    check_accounting(model, opened_model)
    x = np.array([[0, -50, -104, -200, -10000], [3, 1, 2, -1, 0]], np.float32)
    wide = x.astype(np.float64)
    wanted = np.minimum(wide, 0) - np.log1p(np.exp(-np.abs(wide)))
    if kind == "Softmax":
        wanted = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    for truth in (
        original_outputs(opened_model, {opened_model.inputs[0][0]: x}).values(),
        run_onnx(opened_model.onnx, {"x0": x}),
    ):
        np.testing.assert_allclose(next(iter(truth)), wanted, rtol=1e-6, atol=1e-7)
    function = whole(opened_model, default_instance(toolchain))
    assert own_of(function) is None, "the file as it is gives an infinite number"
    with Compiled(function) as compiled:
        outputs = compiled.run([x])
    np.testing.assert_allclose(outputs[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["ReduceL1", "ReduceLogSum", "ReduceSumSquare"])
@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_reduction_over_no_axes_is_right_or_refused(name: str, kind: str, tmp_path: Path) -> None:
    """OpenVINO takes it for the identity, which the comparison with the standard shows."""
    model = written(f"(float[2,3] x) => (y) {{ y = {kind}<noop_with_empty_axes=1>(x) }}")
    toolchain = available(registry.get(name))
    function = whole(opened(model, tmp_path), default_instance(toolchain))
    x = np.float32([[1, 2, 3], [0.5, 0.25, 7]])
    try:
        (result,) = run(toolchain.compile(function), function, {"x": x})
    except UnsupportedError as error:
        assert name == "openvino" and str(error).endswith(f"{kind} otherwise than ONNX")
        return
    wanted = {"ReduceL1": np.abs, "ReduceLogSum": np.log, "ReduceSumSquare": np.square}[kind](x)
    np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=1e-7)
