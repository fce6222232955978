"""Partitions as TensorRT's own parser takes them: TensorRT-RTX builds engines without a device.

What the ONNX computes is tested where ONNX Runtime is given the same; nothing runs here.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from collage_engine.candidates.catalog import source_of
from collage_engine.lowering.extract import function_of
from collage_engine.model.importer import import_onnx
from collage_engine.partition.enumerate import enumerate_candidates
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.tensorrt import library
from collage_engine.toolchains.tensorrt.toolchain import TensorrtToolchain
from tests import zoo
from tests.engine.test_model_operators import CASES
from tests.support.toolchain_cases import imported, one_operator, whole

PACKAGES = ("tensorrt_rtx_bindings", "tensorrt_rtx")
pytestmark = pytest.mark.skipif(
    not any(importlib.util.find_spec(name) for name in PACKAGES),
    reason="TensorRT-RTX is not installed (extra test)",
)

AMPERE = "sm_86"
PLAIN = ToolchainInstance(toolchain="tensorrt", device="cuda:0", architecture=AMPERE)
TENSORRT = TensorrtToolchain()
MISSING = ("half_pixel_symmetric", "antialias", "not larger", "not smaller", "Dynamic quantize")
"""Parts of the names of cases that TensorRT's parser refuses, as its own documentation says."""
ASYMMETRIC = ("qdq", "qdq_resnet_block")
"""Models with zero points other than 0, for which TensorRT has no quantisation."""


@pytest.fixture(scope="module", autouse=True)
def only_rtx() -> Any:
    """TensorRT itself builds only where a device is; these tests are for where none is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "_MODULES", tuple(m for m in library._MODULES if m[1]))
        library.api.cache_clear()
        yield
    library.api.cache_clear()


@pytest.mark.parametrize("name", CASES)
def test_an_operator_becomes_an_engine(name: str) -> None:
    made = imported(CASES[name])
    if not made.graph.operators:
        return  # Identity
    assert not [r for i in made.graph.operators if (r := TENSORRT.supports(made.graph, i, PLAIN))]
    if any(part in name for part in MISSING):
        with pytest.raises(ToolchainError, match="TensorRT's parser: "):
            TENSORRT.plan(whole(made, PLAIN))
    else:
        about, engine = TENSORRT.plan(whole(made, PLAIN))
        assert about["engine_bytes"] == len(engine) > 0


@pytest.mark.parametrize("name", zoo.SMALL)
def test_a_model_of_the_zoo_becomes_one_engine(name: str) -> None:
    function = whole(import_onnx(zoo.build(name), shapes=zoo.SHAPES.get(name)), PLAIN)
    if name in ASYMMETRIC:
        with pytest.raises(ToolchainError, match="zero point"):
            TENSORRT.plan(function)
    else:
        about, _ = TENSORRT.plan(function)
        assert about["layers"] > 0


@pytest.mark.parametrize("name", ["residual_block", "leftovers"])
def test_every_candidate_becomes_an_engine(name: str) -> None:
    made = import_onnx(zoo.build(name))
    graph = made.graph
    found = enumerate_candidates(graph, [source_of(graph, TENSORRT, PLAIN)])
    assert {n for record in found for n in record.nodes} == set(range(len(graph.operators)))
    assert max(len(record.nodes) for record in found) == len(graph.operators)
    for record in found:
        assert TENSORRT.plan(function_of(made, PLAIN, record.nodes, "part"))[1]


def test_a_device_it_does_not_know_is_refused_with_those_it_does() -> None:
    made = import_onnx(zoo.build("tiny"))
    hopper = ToolchainInstance(toolchain="tensorrt", device="cuda:0", architecture="sm_90a")
    with pytest.raises(ToolchainError, match=r"runs on sm_75, .*not on sm_90: .*TensorRT itself"):
        TENSORRT.plan(whole(made, hopper))
    reason = TENSORRT.supports(made.graph, 0, hopper)
    assert reason is not None and "not on sm_90" in reason


def test_what_the_parser_does_not_know_is_named() -> None:
    graph = imported(one_operator("Det", (2, 3, 3))).graph
    reasons = [TENSORRT.supports(graph, i, PLAIN) for i in graph.operators]
    assert "TensorRT's parser knows no Det" in reasons


def test_element_types_are_those_of_the_function() -> None:
    """An older release would read int64 as int32, and find the caller's memory wrongly laid out."""
    from collage_engine.toolchains.tensorrt.engine import _name

    found = library.api()
    kinds = found.trt.DataType
    tensor = type("Tensor", (), {"dtype": kinds.INT32, "name": "indices"})()
    with pytest.raises(ToolchainError, match="takes and gives no int64 here"):
        _name(found, "input", [tensor], ["int64"])
    _name(found, "input", [tensor], [str(np.dtype(np.int32))])
    assert tensor.name == "input0"
