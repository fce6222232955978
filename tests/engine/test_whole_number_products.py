"""Candidates that multiply whole numbers of 8 bits over their whole range are right, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, numpy_helper

from collage_engine.candidates.catalog import source_of
from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.reference import TrueValues, run_onnx
from collage_engine.model.importer import import_onnx
from collage_engine.partition.enumerate import enumerate_candidates
from collage_engine.timing.bench import check
from collage_engine.toolchains import registry
from collage_engine.toolchains.openvino.differences import saturates
from tests.support.toolchain_cases import available, default_instance
from tests.support.whole_number_cases import CASES, case, full_range_inputs


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("toolchain_name", ["onnxruntime", "tvm"])
def test_every_candidate_is_right(toolchain_name: str, name: str, tmp_path: Path) -> None:
    """True values are exact sums, so that no kernel that saturates passes, and none is refused
    that is right."""
    model = import_onnx(case(*CASES[name]), evaluate=run_onnx)
    values = TrueValues.record(model, full_range_inputs(model), tmp_path)
    toolchain = available(registry.get(toolchain_name))
    instance = default_instance(toolchain)
    graph = model.graph
    found = list(enumerate_candidates(graph, [source_of(graph, toolchain, instance)]))
    taken = [c for c in found if not (c.takes or c.gives)]
    for number, candidate in enumerate((*taken[:: max(1, len(taken) // 6)], *taken[-1:])):
        function = function_of(model, instance, candidate.nodes, f"case_{number}")
        with Compiled(function) as compiled:
            outputs = compiled.run(values.inputs_of(function))
        check(function, outputs, values.outputs_of(function))
    own = name.startswith("own") or name == "dynamic convolution"
    assert taken or (toolchain_name == "tvm" and own)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("around MatMul", True),
        ("around MatMul int8", True),
        ("quantised convolution", True),
        ("around values", False),
        ("around values int8", True),
        ("integer product", False),
        ("ties", False),
    ],
)
def test_a_toolchain_that_saturates_is_refused_by_its_rule(name: str, wrong: bool) -> None:
    """Whether a sample shows it must not decide: other inputs may."""
    models = [case(*CASES[name]), import_onnx(case(*CASES[name]), evaluate=run_onnx).onnx]
    assert [saturates(model, ("avx2", "fma")) for model in models] == [wrong, wrong]
    assert not any(saturates(model, ("avx2", "avx_vnni")) for model in models)
    if name == "around values int8":
        return  # it has no weights
    for model in models:
        for tensor in model.graph.initializer:
            if tensor.data_type == TensorProto.INT8:
                small = numpy_helper.to_array(tensor) // 2
                tensor.CopyFrom(numpy_helper.from_array(small, tensor.name))
    assert not any(saturates(model, ("avx2", "fma")) for model in models)
