"""Tuning TVM's kernels on the device: plans of our own schedules."""

from __future__ import annotations

from typing import Any

import pytest

from collage_engine.lowering.accuracy import errors
from collage_engine.lowering.compile import compile_function
from collage_engine.lowering.extract import function_of
from collage_engine.machine.cuda import choose_target
from collage_engine.model.importer import import_onnx
from collage_engine.records.toolchain import Target
from collage_engine.toolchains.capabilities import tuner_of
from collage_engine.toolchains.registry import get
from collage_engine.tuning.choice import tuned_instance
from collage_engine.tuning.job import Tune, TuningJob
from tests.gpu.cases import TOLERANCES, Case, conv

SECONDS = 10.0


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        (conv("3x3 64@28", 64, 64, 28, 3), "float16"),
        (conv("depthwise 96@28", 96, 96, 28, 3, groups=96), "float32"),
    ],
    ids=["product", "direct"],
)
def test_what_is_found_is_no_slower_and_right(
    case: Case, dtype: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path))
    model, toolchain = import_onnx(case.model(dtype)), get("tvm")
    (instance, *_) = toolchain.instances(Target.cuda(choose_target("cuda").architecture), "float32")
    operators = tuple(range(len(model.graph.operators)))
    tuner = tuner_of(toolchain)
    (task,) = tuner.tasks(function_of(model, instance, operators, "f"))
    record = TuningJob()(Tune(task, instance, None, SECONDS), lambda _: None)
    assert record.reason is None and record.tried, record.failed
    if not record.choice:
        return  # the default is the fastest
    assert record.tuned_us <= record.default_us
    chosen = tuned_instance(instance, tuner.keep({task.workload: record.choice}))
    values = case.values(dtype)
    with compile_function(function_of(model, chosen, operators, "f")) as compiled:
        (result,) = compiled.run([values[name] for name, _ in model.inputs])
    _, relative = errors(result.astype("float64"), case.truth(dtype))
    assert relative <= TOLERANCES[dtype]
