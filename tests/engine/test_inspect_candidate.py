"""What the desktop's page of code shows of a candidate, for each kind of toolchain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from collage_engine.candidates.open_model import OpenModel
from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.records.answers import InsideAnswer
from collage_engine.records.toolchain import Target
from collage_engine.run.inspect_candidate import inspect_candidate
from collage_engine.toolchains import registry
from tests import zoo
from tests.support.covers import candidate_on


@pytest.fixture(scope="module")
def mnist() -> ImportedModel:
    return import_onnx(zoo.build("mnist"), "mnist.onnx")


def inside(model: ImportedModel, toolchain: str, operators: Any) -> InsideAnswer:
    instance = registry.get(toolchain).instances(Target.cpu(threads=1), "float32")[0]
    candidate = candidate_on(instance, operators)
    opened = cast(OpenModel, SimpleNamespace(model=model))
    return inspect_candidate(opened, candidate=candidate, node=None)


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
