"""Models in the precisions that exporters write: who takes them, and why others do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.reference import TrueValues
from collage_engine.lowering.reference import run_onnx as evaluate
from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.records.toolchain import Target
from collage_engine.toolchains import registry
from tests.support.model_runs import relative_error, run_onnx
from tests.support.written import written
from tests.zoo.quantized import quantized_weight

RANDOM = np.random.default_rng(0)
ROWS, COLUMNS = 8, 16


def product_in(element: int) -> onnx.ModelProto:
    """A product whose input, weight and output have an element type."""
    weight = RANDOM.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    model = written(
        f"(float[4,{ROWS}] x) => (float[4,{COLUMNS}] y) {{ m = MatMul(x, w) y = Relu(m) }}"
    )
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = element
    model.graph.initializer.append(helper.make_tensor("w", element, weight.shape, weight.ravel()))
    return model


def takers(model: ImportedModel, folder: Path) -> dict[str, str]:
    """For each toolchain ``ok``, or why it does not take the whole model with right numbers."""
    values = TrueValues.record(model, model.random_inputs(1), folder)
    every = range(len(model.graph.operators))
    found = {}
    for name in ("tvm", "onednn", "openvino", "onnxruntime"):
        toolchain = registry.get(name)
        instance = toolchain.instances(Target(), "float32")[0]
        against = [toolchain.supports(model.graph, i, instance) for i in model.graph.operators]
        if any(against):
            found[name] = next(why for why in against if why)
            continue
        function = function_of(model, instance, every, "f")
        with Compiled(function) as compiled:
            made = compiled.run([np.array(v) for v in values.inputs_of(function)])
        wanted = values.outputs_of(function)
        error = max(relative_error(a, b) for a, b in zip(made, wanted, strict=True))
        found[name] = "ok" if error < 0.02 else f"relative error {error:.2g}"
    return found


@pytest.mark.parametrize("element", ["INT4", "UINT4", "FLOAT8E4M3FN"])
def test_weights_of_few_bits_stay_in_their_dequantisation(element: str, tmp_path: Path) -> None:
    source = quantized_weight(TensorProto.DataType.Value(element))
    model = import_onnx(source, "m.onnx", evaluate=evaluate)
    names = [model.graph.nodes[i].op for i in model.graph.operators]
    assert names == ["onnx:DequantizeLinear", "matmul", "nn.relu"]
    inputs = model.random_inputs(2)
    np.testing.assert_allclose(
        run_onnx(model.onnx, inputs)[0], run_onnx(source, inputs)[0], rtol=1e-5
    )
    found = takers(model, tmp_path)
    assert found["onnxruntime"] == "ok"
    assert "DequantizeLinear" in found["tvm"] and "DequantizeLinear" in found["onednn"]


def test_weights_of_few_bits_tell_two_operators_apart() -> None:
    def attributes(seed: int) -> object:
        source = quantized_weight(TensorProto.INT4, rows=ROWS, columns=COLUMNS, seed=seed)
        model = import_onnx(source, "m.onnx", evaluate=evaluate)
        return model.graph.nodes[0].attributes

    assert attributes(0) == attributes(0) != attributes(1)  # other numbers


@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_of_8_bits_are_known_to_relax(per_channel: bool, tmp_path: Path) -> None:
    source = quantized_weight(TensorProto.INT8, per_channel)
    found = takers(import_onnx(source, "m.onnx", evaluate=evaluate), tmp_path)
    assert found["tvm"] == found["onnxruntime"] == found["openvino"] == "ok"


def test_float16_as_it_comes(tmp_path: Path) -> None:
    model = import_onnx(product_in(TensorProto.FLOAT16), "m.onnx", evaluate=evaluate)
    found = takers(model, tmp_path)
    assert found["tvm"] == found["onnxruntime"] == "ok"
    assert "float16" in found["onednn"]


def test_bfloat16_as_it_comes(tmp_path: Path) -> None:
    model = import_onnx(product_in(TensorProto.BFLOAT16), "m.onnx", evaluate=evaluate)
    found = takers(model, tmp_path)
    assert found["tvm"] == "ok"
    assert found["onnxruntime"] == "ONNX Runtime computes no bfloat16"
