"""One operator at a time: what OpenVINO makes of every form that models come in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper

from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.openvino.toolchain import OpenVinoToolchain
from tests.engine.test_model_operators import CASES
from tests.support.toolchain_cases import (
    Net,
    available,
    default_instance,
    error,
    imported,
    one_operator,
    reference,
    run,
    whole,
)


@pytest.fixture(scope="module")
def toolchain() -> OpenVinoToolchain:
    return available(OpenVinoToolchain())


@pytest.mark.parametrize("name", CASES)
def test_operator(toolchain: OpenVinoToolchain, name: str) -> None:
    model = CASES[name]
    made = imported(model)
    instance = default_instance(toolchain)
    graph = made.graph
    if not graph.operators:
        return  # Identity
    assert not [r for i in graph.operators if (r := toolchain.supports(graph, i, instance))]
    function = whole(made, instance)
    feeds = made.random_inputs(7)
    if any(toolchain.misreads(node, 13) for node in made.onnx.graph.node):
        with pytest.raises(UnsupportedError):
            toolchain.compile(function)
        return
    results = run(toolchain.compile(function), function, feeds)
    for result, truth in zip(results, reference(model, function, feeds), strict=True):
        assert result.shape == truth.shape and result.dtype == truth.dtype
        assert error(result, truth) < 1e-4


def test_an_old_softmax_over_several_axes_is_read_right(toolchain: OpenVinoToolchain) -> None:
    """Before operator set 13 it runs over all axes from ``axis`` on, which OpenVINO overlooks."""
    source = one_operator("Softmax", (2, 3, 4), opset=11, axis=1)
    made = imported(source)
    function = whole(made, default_instance(toolchain))
    feeds = made.random_inputs(7)
    (result,) = run(toolchain.compile(function), function, feeds)
    assert error(result, reference(source, function, feeds)[0]) < 1e-5


LENGTH, VOCABULARY = 12, 100


def _positions(net: Net, mask: str) -> str:
    """Count what is not masked, as decoders with learned positions are exported."""
    return net.add("Mul", net.add("CumSum", mask, net.const(np.int64(1))), mask)


def _learned_positions(net: Net, ids: str, mask: str) -> str:
    places = net.add("Sub", _positions(net, mask), net.const(np.int64(1)))
    return net.add("Gather", net.randn(LENGTH, 8), places)


def _slopes(net: Net, ids: str, mask: str) -> str:
    """Add a bias by distance, as in BLOOM."""
    return net.add("Mul", net.add("Cast", _positions(net, mask), to=1), net.randn(1, LENGTH))


def _inverted(net: Net, ids: str, mask: str) -> str:
    inverted = net.add("Sub", net.const(np.int64(1)), mask)
    return net.add("Mul", net.add("Cast", inverted, to=1), net.scalar(-1e30))


def _padding(net: Net, ids: str, mask: str) -> str:
    """Number the positions of what is no padding, as in RoBERTa."""
    kept = net.add("Cast", net.add("Not", net.add("Equal", ids, net.const(np.int64(1)))), to=6)
    places = net.add("Cast", net.add("CumSum", kept, net.const(np.int64(1))), to=7)
    return net.add("Gather", net.randn(VOCABULARY, 8), places)


def _last(net: Net, ids: str, mask: str) -> str:
    """Take the last position that is not masked, as classifiers on decoders do."""
    count = net.add("ReduceSum", mask, net.const(np.array([1])), keepdims=0)
    place = net.add("Sub", count, net.const(np.int64(1)))
    table = net.add("Transpose", net.add("Gather", net.randn(VOCABULARY, 8), ids), perm=[1, 0, 2])
    return net.add("Gather", table, place)


def _best(net: Net, ids: str, mask: str) -> str:
    """Take the boxes of the highest scores, as DETR does."""
    scores = net.add("Reshape", net.input(1, 300, 80), net.const(np.array([1, 24000])))
    _, places = net.add("TopK", scores, net.const(np.array([30])), outputs=2)
    return net.add("Gather", net.randn(300, 4), net.add("Div", places, net.const(np.int64(80))))


@pytest.mark.parametrize(
    ("made", "limit"),
    [
        (_learned_positions, 2**13 - 1),
        (_slopes, 2**13 - 1),
        (_inverted, 2**30 - 1),
        (_padding, 0),
        (_last, 2**20 - 1),
        (_best, 0),
    ],
)
def test_positions_and_masks_are_computed_in_32_bits(
    toolchain: OpenVinoToolchain, made: Callable[[Net, str, str], str], limit: int
) -> None:
    """Transformers and detectors go whole to OpenVINO; numbers beyond 32 bits are refused."""
    net = Net()
    ids, mask = (net.input(1, LENGTH, element=TensorProto.INT64) for _ in range(2))
    embedded = net.add("Gather", net.randn(VOCABULARY, 8), ids)
    source = net.model(embedded, made(net, ids, mask))
    model = imported(source)
    instance, graph = default_instance(toolchain), model.graph
    assert not [r for i in graph.operators if (r := toolchain.supports(graph, i, instance))]
    function = whole(model, instance)
    assert max(toolchain.largest_inputs(function)) == limit
    feeds = model.random_inputs(7)
    module = toolchain.compile(function)
    for computed, truth in zip(
        run(module, function, feeds), reference(source, function, feeds), strict=True
    ):
        assert error(computed, truth) < 1e-5
    if limit:
        feeds["x1"][0, 3] = -limit - 1
        with pytest.raises(ValueError, match=rf"holds {-limit - 1}, .* up to {limit} only"):
            run(module, function, feeds)


@pytest.mark.parametrize(
    ("op", "kinds", "said"),
    [
        ("Pow", ("int32",), "Pow in float32"),
        ("Clip", ("int32",), "Clip in float32"),
        ("MatMul", ("int32", "int32"), "MatMul in float32, which holds whole numbers up to 2^24"),
        ("MatMul", ("int64", "int64"), "whole numbers of 64 bits in 32"),
        ("Equal", ("int32", "int32"), "Equal in float32"),
        ("Add", ("int64", "int64"), "64 bits in 32"),
        ("Add", ("int32", "int32"), None),
        ("Add", ("int16", "int16"), None),
        ("Add", ("uint8", "uint8"), "saturates Add"),
        ("Sub", ("uint8", "uint8"), "saturates Sub"),
        ("Cast", ("float32",), "64 bits in 32"),
    ],
)
def test_what_is_inexact_is_refused(
    toolchain: OpenVinoToolchain, op: str, kinds: tuple[str, ...], said: str | None
) -> None:
    net = Net()
    codes = [helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in kinds]
    attributes = {"to": TensorProto.INT64} if op == "Cast" else {}
    given = (net.input(4, 4, element=code) for code in codes)
    constants = [net.const(np.int32(2))] if kinds == ("int32",) else []
    graph = imported(net.model(net.add(op, *given, *constants, **attributes))).graph
    reason = toolchain.supports(graph, 0, default_instance(toolchain))
    assert reason is None if said is None else reason is not None and said in reason


@pytest.mark.parametrize("dequantised", [True, False])
@pytest.mark.parametrize("product", ["before", "behind", None])
def test_only_a_tie_that_no_product_reads_or_gives_is_refused(
    toolchain: OpenVinoToolchain, dequantised: bool, product: str | None
) -> None:
    """OpenVINO rounds halves to odd numbers where the zero point is odd."""
    net = Net()
    x, one, three = net.input(4, 4), net.scalar(1.0), net.const(np.int8(3))
    x = net.add("MatMul", x, net.randn(4, 4)) if product == "before" else x
    y = net.add("QuantizeLinear", x, one, three)
    y = net.add("DequantizeLinear", y, one, three) if dequantised else y
    if product == "behind":
        y = net.add("MatMul" if dequantised else "MatMulInteger", y, y)
    graph = imported(net.model(y)).graph
    refused = [toolchain.supports(graph, i, default_instance(toolchain)) for i in graph.operators]
    assert any(reason is not None and "halves" in reason for reason in refused) == (not product)


def test_what_makes_a_number_of_nan_is_declared(toolchain: OpenVinoToolchain) -> None:
    """Its Greater of NaN is true, and NaN becomes False; its Less is false, as it is."""
    net = Net()
    x, y = net.input(4, 4), net.input(4, 4)
    given = [net.add(op, x, y) for op in ("Greater", "GreaterOrEqual", "Less", "Equal")]
    given += [net.add("Cast", x, to=kind) for kind in (TensorProto.BOOL, TensorProto.INT32)]
    graph = imported(net.model(*given)).graph
    said = [toolchain.swallows_nan(graph, i, default_instance(toolchain)) for i in graph.operators]
    assert said == [True, True, False, False, True, False]
