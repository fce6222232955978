"""Each toolchain's operators on the device against float64 references."""

from __future__ import annotations

import numpy as np
import pytest

from collage_engine.lowering.accuracy import errors
from collage_engine.lowering.compile import compile_function
from collage_engine.lowering.extract import function_of
from collage_engine.machine.cuda import choose_target
from collage_engine.model.importer import import_onnx
from collage_engine.records.errors import ToolchainError, UnsupportedError
from collage_engine.toolchains.registry import get, names_for, probe
from tests.gpu.cases import CASES, TOLERANCES, Case

TOOLCHAINS = names_for("cuda")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("toolchain", TOOLCHAINS)
def test_operator(toolchain: str, case: Case, dtype: str) -> None:
    state = probe(toolchain)
    if not state.available:
        pytest.skip(state.reason or "not available")
    target = choose_target("cuda")
    (instance, *_) = get(toolchain).cuda_instances(target.architecture, "float32")
    model = import_onnx(case.model(dtype))
    operators = tuple(range(len(model.graph.operators)))
    function = function_of(model, instance, operators, "candidate")
    try:
        compiled = compile_function(function)
    except (ToolchainError, UnsupportedError) as error:
        pytest.skip(f"{toolchain} does not take it: {error}")
    with compiled:
        values = case.values(dtype)
        names = [name for name, _ in model.inputs]
        order = [names[model.graph.record.inputs.index(i)] for i in function.inputs]
        (result,) = compiled.run([values[name] for name in order])
        _, relative = errors(np.asarray(result, np.float64), case.truth(dtype))
        assert relative <= TOLERANCES[dtype]
        seconds = compiled.timer([values[name] for name in order])(10) / 10
        assert 0 < seconds < 0.1
