"""Each toolchain's operators on the device against float64 references.

What they take is recorded: ``--junitxml FILE`` has the microseconds and the error of each.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from filelock import FileLock

from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.extract import function_of
from collage_engine.machine.cuda import choose_target
from collage_engine.machine.loader.run_artifact import error_of
from collage_engine.model.importer import import_onnx
from collage_engine.records.toolchain import Target
from collage_engine.support.errors import ToolchainError, UnsupportedError
from collage_engine.toolchains.registry import about, all_names, get, probe
from tests.gpu.cases import CASES, TOLERANCES, Case

CALLS, SAMPLES = 20, 7
TOOLCHAINS = [name for name in all_names() if "cuda" in about(name).targets]


@pytest.mark.parametrize(
    ("case", "dtype"),
    [pytest.param(c, d, id=f"{c.name}-{d}") for c in CASES for d in c.dtypes],
)
@pytest.mark.parametrize("toolchain", TOOLCHAINS)
def test_operator(
    toolchain: str,
    case: Case,
    dtype: str,
    device_alone: FileLock,
    record_property: Callable[[str, object], None],
) -> None:
    state = probe(toolchain)
    if not state.available:
        pytest.skip(state.reason or "not available")
    target = choose_target("cuda")
    instances = get(toolchain).instances(Target.cuda(target.architecture), case.math)
    instance = next((i for i in instances if i.precision == case.math), None)
    if instance is None:
        pytest.skip(f"{toolchain} computes nothing in {case.math}")
    model = import_onnx(case.model(dtype))
    operators = tuple(range(len(model.graph.operators)))
    function = function_of(model, instance, operators, "candidate")
    try:
        compiled = Compiled(function)
    except (ToolchainError, UnsupportedError) as error:
        pytest.skip(f"{toolchain} does not take it: {error}")
    with compiled, device_alone:
        values = case.values(dtype)
        names = [name for name, _ in model.inputs]
        given = [values[names[model.graph.record.inputs.index(i)]] for i in function.inputs]
        (result,) = compiled.run(given)
        absolute, relative = error_of(np.asarray(result, np.float64), case.truth(dtype))
        timer = compiled.timer(given)
        samples = sorted(timer(CALLS) / CALLS * 1e6 for _ in range(SAMPLES))
        record_property("us", round(samples[SAMPLES // 2], 2))
        record_property("relative_error", f"{relative:.1e}")
        if case.small:
            assert absolute <= 1
        else:
            assert relative <= TOLERANCES[dtype if case.math == "float32" else case.math]
        assert samples[0] > 0
