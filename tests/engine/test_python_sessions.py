"""Whole models in the Python interfaces of the toolchains that have one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from collage_engine.lowering.reference import original_outputs
from collage_engine.model.importer import import_model
from collage_engine.records.errors import ToolchainError
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.toolchains import registry
from collage_engine.toolchains.capabilities import (
    HasPythonSession,
    has_python_session,
    open_python_session,
)
from tests import zoo
from tests.support.toolchain_cases import error

SESSIONS = [
    name for name in registry.all_names() if isinstance(registry.get(name), HasPythonSession)
]


@pytest.mark.parametrize("toolchain", SESSIONS)
@pytest.mark.parametrize("name", ["mnist", "several", "outputs", "dynamic_batch", "encoder"])
def test_sessions_compute_the_models_values(toolchain: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    onnx.save(zoo.build(name), file)
    model = import_model(str(file), zoo.SHAPES.get(name, {}))
    inputs = model.random_inputs(0)
    truth = original_outputs(model, inputs)
    session = open_python_session(registry.get(toolchain), str(file), 1, "float32", inputs)
    for _ in range(2):
        session.call()
    found = session.results()
    assert len(found) == len(model.outputs)
    for result, (output, _) in zip(found, model.outputs, strict=True):
        assert result.shape == truth[output].shape
        assert error(np.asarray(result), truth[output]) < 1e-5


def test_openvino_keeps_float32_unless_the_run_admits_less(tmp_path: Path) -> None:
    from collage_engine.toolchains.openvino.toolchain import has_bfloat16

    if not has_bfloat16():
        pytest.skip("this processor does not multiply in bfloat16")
    file = tmp_path / "model.onnx"
    onnx.save(zoo.build("residual_block"), file)
    model = import_model(str(file), {})
    inputs = model.random_inputs(0)
    (truth,) = original_outputs(model, inputs).values()
    errors = []
    for precision in ("float32", "bfloat16"):
        session = open_python_session(registry.get("openvino"), str(file), 1, precision, inputs)
        session.call()
        errors.append(error(session.results()[0], truth))
    assert errors[0] < 1e-5 < errors[1] < 2e-2


def test_which_instances_users_run_from_python() -> None:
    instances = [
        instance
        for name in registry.all_names()
        for instance in registry.get(name).instances(Target.cpu(1), "float32")
        if has_python_session(registry.get(name), instance)
    ]
    assert [i.id for i in instances] == ["onnxruntime", "openvino"]
    assert has_python_session(
        registry.get("openvino"),
        ToolchainInstance(
            toolchain="openvino", config=(("precision", "bf16"),), precision="bfloat16"
        ),
    )
    with pytest.raises(ToolchainError, match="no Python interface"):
        open_python_session(registry.get("onednn"), "x.onnx", 1, "float32", {})
