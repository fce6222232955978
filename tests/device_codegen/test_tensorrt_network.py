"""The TensorRT converter against a real builder: TensorRT-RTX builds engines without a device.

What the networks compute is checked by carrying them out in numpy, since nothing runs here.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage_engine.candidates.menu import source_of
from collage_engine.lowering.extract import function_of
from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.partition.enumerate import enumerate_candidates
from collage_engine.records.errors import ToolchainError, UnsupportedError
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.tensorrt import library
from collage_engine.toolchains.tensorrt.engine import (
    build_engine,
    cache_file,
    kept,
    network_of,
    with_cache,
)
from collage_engine.toolchains.tensorrt.toolchain import TensorrtToolchain
from tests import zoo
from tests.device_codegen.tensorrt_machine import Machine
from tests.engine.test_model_operators import CASES
from tests.engine.test_model_writer import _truth as true_values
from tests.support.toolchain_cases import error, imported, one_node, reference, whole
from tests.zoo.net import Net

PACKAGES = ("tensorrt_rtx_bindings", "tensorrt_rtx")
pytestmark = pytest.mark.skipif(
    not any(importlib.util.find_spec(name) for name in PACKAGES),
    reason="TensorRT-RTX is not installed (extra test)",
)

AMPERE = "sm_86"
PLAIN = ToolchainInstance(toolchain="tensorrt", device="cuda:0", architecture=AMPERE)
BITS = {"float16": 2e-3, "qdq": 1 / 100, "qdq_resnet_block": 1 / 100}
"""Models whose own rounding differs by so much between two right runtimes."""


@pytest.fixture(scope="module", autouse=True)
def only_rtx() -> Any:
    """TensorRT itself builds only where a device is; these tests are for where none is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "_MODULES", tuple(m for m in library._MODULES if m[1]))
        library.api.cache_clear()
        yield
    library.api.cache_clear()


def network(function: Function, precision: str = "") -> Any:
    return network_of(
        function.graph,
        function.nodes,
        function.inputs,
        function.outputs,
        function.constant,
        precision,
    )


def engine(function: Function, precision: str = "", architecture: str = AMPERE) -> Any:
    return build_engine(
        function.graph,
        function.nodes,
        function.inputs,
        function.outputs,
        function.constant,
        architecture,
        precision,
    )


def computed(function: Function, feeds: dict[str, np.ndarray], precision: str = "") -> list[Any]:
    """What the function's network computes, in numpy."""
    made = network(function, precision)
    nodes = function.graph.nodes
    given = {f"input{k}": feeds[nodes[i].name] for k, i in enumerate(function.inputs)}
    return Machine(library.api().trt, made.network).run(given)


def check_border(function: Function, made: Any) -> None:
    """Shapes and types of the network's inputs and outputs are the graph's."""
    trt = library.api().trt
    for indices, get in (
        (function.inputs, made.network.get_input),
        (function.outputs, made.network.get_output),
    ):
        for place, index in enumerate(indices):
            tensor, kind = get(place), function.graph.nodes[index].type
            assert tuple(tensor.shape) == kind.shape
            assert np.dtype(trt.nptype(tensor.dtype)) == np.dtype(kind.dtype)


def operator(name: str) -> tuple[onnx.ModelProto, ImportedModel]:
    build, opset, dtype = CASES[name]
    net = Net("case", opset=opset, seed=1)
    net.output(build(net), dtype)
    model = net.model()
    return model, imported(model)


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    """Every form that models come in builds an engine and computes what ONNX Runtime does."""
    model, made = operator(name)
    graph = made.graph
    if not graph.operators:
        return  # Identity
    toolchain = TensorrtToolchain()
    assert not [r for i in graph.operators if (r := toolchain.supports(graph, i, PLAIN))]
    function = whole(made, PLAIN)
    check_border(function, network(function))
    assert engine(function).plan
    feeds = made.random_inputs(7)
    results = computed(function, feeds)
    for result, truth in zip(results, reference(model, function, feeds), strict=True):
        assert result.shape == truth.shape and result.dtype == truth.dtype
        assert error(result, truth) < 1e-4


@pytest.mark.parametrize("name", [*zoo.SMALL, pytest.param("mobilenet_v2", marks=pytest.mark.slow)])
def test_model_of_the_zoo(name: str) -> None:
    model = zoo.build(name)
    made = import_onnx(model, shapes=zoo.SHAPES.get(name))
    function = whole(made, PLAIN)
    check_border(function, network(function))
    built = engine(function)
    assert built.plan and built.about["strongly_typed"]
    feeds = made.random_inputs(3)
    results = computed(function, feeds)
    for result, truth in zip(results, reference(model, function, feeds), strict=True):
        assert result.shape == truth.shape and result.dtype == truth.dtype
        assert error(result, truth) < BITS.get(name, 1e-4)


@pytest.mark.parametrize("name", ["residual_block", "encoder", "gpt2", "senet", "unet"])
def test_half_precision_inside_is_near_and_borders_stay_single(name: str) -> None:
    model = zoo.build(name)
    function = whole(import_onnx(model), PLAIN)
    made = network(function, "fp16")
    check_border(function, made)
    half = library.api().trt.DataType.HALF
    layers = [made.network.get_layer(i) for i in range(made.network.num_layers)]
    products = [layer for layer in layers if layer.type.name in ("CONVOLUTION", "MATRIX_MULTIPLY")]
    assert products and all(layer.get_output(0).dtype == half for layer in products)
    sums = [layer for layer in layers if layer.type.name in ("SOFTMAX", "NORMALIZATION")]
    assert all(layer.get_output(0).dtype != half for layer in sums)
    assert engine(function, "fp16").about["precision"] == "float16"
    feeds = function.model.random_inputs(3)
    results = computed(function, feeds, "fp16")
    for result, truth in zip(results, reference(model, function, feeds), strict=True):
        assert error(result, truth) < 1e-2


def test_bfloat16_builds() -> None:
    function = whole(import_onnx(zoo.build("encoder")), PLAIN)
    assert engine(function, "bf16").about["precision"] == "bfloat16"


def _qdq(kind: int, zero: int) -> onnx.ModelProto:
    net = Net("qdq", opset=19, seed=2)
    x = net.input("x", (1, 4, 8, 8))
    dtype = np.int8 if kind == TensorProto.INT8 else np.uint8
    scale, point = net.const(np.float32(0.05)), net.const(np.asarray(zero, dtype))
    q = net.op("QuantizeLinear", x, scale, point)
    d = net.op("DequantizeLinear", q, scale, point)
    weights = np.random.default_rng(1).integers(-90, 90, (5, 4, 3, 3)).astype(np.int8)
    scales = net.const(np.linspace(0.01, 0.03, 5, dtype=np.float32))
    zeros = net.const(np.zeros(5, np.int8))
    w = net.op("DequantizeLinear", net.const(weights), scales, zeros, axis=0)
    net.output(net.op("Conv", d, w), "float32")
    return net.model()


@pytest.mark.parametrize(
    ("kind", "zero", "integers"),
    [
        (TensorProto.INT8, 0, True),
        (TensorProto.UINT8, 128, True),
        (TensorProto.UINT8, 100, False),
        (TensorProto.INT8, 3, False),
    ],
)
def test_zero_points(kind: int, zero: int, integers: bool) -> None:
    """int8 around 0 and uint8 around 128 become 8-bit layers; others are computed in floats."""
    model = _qdq(kind, zero)
    function = whole(imported(model), PLAIN)
    made = network(function)
    kinds = [made.network.get_layer(i).type.name for i in range(made.network.num_layers)]
    assert kinds.count("QUANTIZE") == int(integers)
    assert kinds.count("DEQUANTIZE") == 1 + int(integers)
    assert engine(function).plan
    feeds = function.model.random_inputs(5)
    (result,), (truth,) = computed(function, feeds), reference(model, function, feeds)
    assert error(result, truth) < 1e-5


def test_a_bias_is_the_convolutions_own() -> None:
    function = whole(import_onnx(zoo.build("residual_block")), PLAIN)
    made = network(function)
    trt = library.api().trt
    biased = 0
    for number in range(made.network.num_layers):
        layer = made.network.get_layer(number)
        if layer.type.name == "CONVOLUTION":
            layer.__class__ = trt.IConvolutionLayer
            biased += np.array(layer.bias).size > 0
    assert biased == sum(node.op == "nn.conv2d" for node in function.graph.nodes)


def candidates(made: ImportedModel) -> Any:
    """TensorRT's candidates, as a run finds them."""
    source = source_of(made.graph, TensorrtToolchain(), PLAIN)
    return enumerate_candidates(made.graph, [source]).candidates


@pytest.mark.parametrize("name", ["residual_block", "qdq", "senet", "encoder", "leftovers"])
def test_every_candidate_computes_the_true_values(name: str) -> None:
    """Regions, composites with 8-bit borders, single operators: from true inputs, true outputs."""
    made = import_onnx(zoo.build(name))
    graph, records = made.graph, candidates(made)
    assert {n for record in records for n in record.nodes} == set(range(len(graph.operators)))
    assert len(records) < 4 * len(graph.operators)
    assert max(len(record.nodes) for record in records) == len(graph.operators)
    truth = true_values(made)
    trt = library.api().trt
    for record in records:
        function = function_of(made, PLAIN, record.nodes, "part")
        one = network(function)
        check_border(function, one)
        given = {f"input{k}": truth[i] for k, i in enumerate(function.inputs)}
        results = Machine(trt, one.network).run(given)
        for index, result in zip(function.outputs, results, strict=True):
            small = result.dtype.itemsize == 1 and result.dtype.kind in "iu"
            if small:  # one step, where a value lies between two
                assert np.abs(result.astype(int) - truth[index].astype(int)).max() <= 1
            else:
                assert error(result, truth[index]) < BITS.get(name, 1e-4), record.nodes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["residual_block", "qdq"])
def test_every_candidate_becomes_an_engine(name: str) -> None:
    made = import_onnx(zoo.build(name))
    for record in candidates(made):
        assert engine(function_of(made, PLAIN, record.nodes, "part")).plan


def test_a_device_it_does_not_know_is_refused_with_those_it_does() -> None:
    function = whole(import_onnx(zoo.build("tiny")), PLAIN)
    with pytest.raises(ToolchainError, match=r"runs on sm_75, .*not on sm_90: .*TensorRT itself"):
        engine(function, architecture="sm_90a")
    hopper = ToolchainInstance(toolchain="tensorrt", device="cuda:0", architecture="sm_90a")
    graph = function.graph
    reason = TensorrtToolchain().supports(graph, graph.operators[0], hopper)
    assert reason is not None and "not on sm_90" in reason


def test_what_has_no_layer_is_named() -> None:
    made = imported(one_node("TopK", (2, 5000), np.array([4000], np.int64), outputs=2))
    graph = made.graph
    reasons = [TensorrtToolchain().supports(graph, i, PLAIN) for i in graph.operators]
    assert any("3840 elements" in reason for reason in reasons if reason)
    with pytest.raises(UnsupportedError, match="3840 elements"):
        network(whole(made, PLAIN))


class _Timings:
    """A timing cache: the kernels it has times of, one letter each."""

    def __init__(self, letters: str) -> None:
        self.letters = set(letters)

    def combine(self, other: _Timings, ignore_mismatch: bool) -> bool:
        self.letters |= other.letters
        return True

    def serialize(self) -> bytes:
        return "".join(sorted(self.letters)).encode()


class _Config:
    """TensorRT's builder configuration, as far as timing caches go."""

    def create_timing_cache(self, data: bytes) -> _Timings | None:
        return None if data == b"damaged" else _Timings(data.decode())

    def set_timing_cache(self, cache: _Timings, ignore_mismatch: bool) -> bool:
        self.cache = cache
        return True

    def get_timing_cache(self) -> _Timings:
        return self.cache


def test_what_was_timed_is_kept_and_joined(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_BUILD_DIR", str(tmp_path))
    found = replace(library.api(), flavour=library.Flavour("tensorrt", rtx=False))
    file = cache_file(found, AMPERE)

    def build(timed: str, meanwhile: str = "") -> bytes:
        config = _Config()
        cache = with_cache(found, config, AMPERE)
        cache.letters |= set(timed)
        if meanwhile:
            file.write_bytes(meanwhile.encode())
        return kept(found, config, cache, AMPERE)

    assert build("a") == b"a" == file.read_bytes()
    assert build("c") == b"ac"
    assert build("d", meanwhile="ab") == b"abcd" == file.read_bytes()
    file.write_bytes(b"damaged")
    assert build("e") == b"e" == file.read_bytes()


def test_the_same_value_twice_is_two_outputs() -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Flatten", ["y"], ["z"], axis=1)],
        "g",
        [helper.make_tensor_value_info("x", 1, (2, 3))],
        [helper.make_tensor_value_info(n, 1, (2, 3)) for n in "yz"],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    function = whole(import_onnx(model), PLAIN)
    assert engine(function).plan
    feeds = function.model.random_inputs(1)
    for result in computed(function, feeds):
        np.testing.assert_array_equal(result, np.maximum(feeds["x"], 0))
