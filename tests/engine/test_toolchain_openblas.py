"""OpenBLAS's products against ONNX Runtime's: each is one call, and nothing else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from collage_engine.lowering.virtual_machine import use_threads
from collage_engine.partition.enumerate import CandidateSource, enumerate_candidates
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.openblas.toolchain import OpenBlasToolchain
from tests.support.toolchain_cases import (
    Net,
    available,
    check_whole,
    default_instance,
    imported,
    one_operator,
    whole,
)

F32 = np.float32


@pytest.fixture(scope="module")
def toolchain() -> OpenBlasToolchain:
    return available(OpenBlasToolchain())


def check(toolchain: OpenBlasToolchain, model: ModelProto, threads: int = 1) -> dict[str, Any]:
    """Run the whole model, saved and loaded too, against ONNX Runtime; what is inside."""
    instance = default_instance(toolchain, threads)
    return toolchain.inside(check_whole(toolchain, model, instance, 4e-6))


@pytest.mark.parametrize(
    ("images", "channels", "filters", "size", "groups"),
    [
        (1, 3, 5, (1, 1), 1),
        (2, 24, 58, (28, 27), 1),
        (1, 464, 300, (7, 7), 1),
        (3, 16, 24, (9, 4), 4),
    ],
)
@pytest.mark.parametrize(("constant", "threads"), [(False, 1), (True, 2)])
def test_pointwise_convolutions_are_products(
    toolchain: OpenBlasToolchain,
    images: int,
    channels: int,
    filters: int,
    size: tuple[int, int],
    groups: int,
    constant: bool,
    threads: int,
) -> None:
    net = Net()
    x = net.input(images, channels, *size)
    shape = (filters, channels // groups, 1, 1)
    w = net.randn(*shape) if constant else net.input(*shape)
    inside = check(toolchain, net.model(net.add("Conv", x, w, group=groups)), threads)
    pixels = size[0] * size[1]
    wanted = f"{images * groups} x {filters // groups}x{pixels}x{channels // groups}"
    assert inside["size"] == wanted


def test_signals_are_multiplied_as_images_are(toolchain: OpenBlasToolchain) -> None:
    net = Net()
    model = net.model(net.add("Conv", net.input(2, 6, 50), net.randn(10, 6, 1)))
    assert check(toolchain, model)["what"] == "sgemm"


PRODUCTS = [
    ((1, 64), (64, 33)),
    ((40, 64), (64, 1)),
    ((1, 1), (1, 1)),
    ((2, 3, 7, 9), (9, 8)),
    ((2, 3, 7, 9), (3, 9, 8)),
    ((7, 9), (2, 3, 9, 8)),
    ((4, 1, 9), (4, 9, 1)),
    ((9,), (9, 8)),
    ((5, 9), (9,)),
    ((12, 130, 64), (12, 64, 140)),
    ((700, 512), (512, 96)),  # several pieces along every extent
    ((3, 70, 400), (3, 400, 900)),
]


@pytest.mark.parametrize(("constant", "threads"), [(False, 2), (True, 1)])
@pytest.mark.parametrize(("left", "right"), PRODUCTS)
def test_products_of_any_rank(
    toolchain: OpenBlasToolchain,
    left: tuple[int, ...],
    right: tuple[int, ...],
    constant: bool,
    threads: int,
) -> None:
    weights = np.random.default_rng(3).standard_normal(right).astype(F32)
    check(toolchain, one_operator("MatMul", left, weights if constant else right), threads)


def test_a_product_takes_no_more_threads_than_the_pool_has(toolchain: OpenBlasToolchain) -> None:
    """An application may have narrowed TVM's pool, which refuses more tasks than it has threads."""
    use_threads(1)
    try:
        check(toolchain, one_operator("MatMul", (700, 512), np.ones((512, 96), F32)), threads=2)
    finally:
        use_threads(2)


def test_rows_of_a_whole_batch_are_multiplied_at_once(toolchain: OpenBlasToolchain) -> None:
    weights = np.random.default_rng(3).standard_normal((48, 40)).astype(F32)
    assert check(toolchain, one_operator("MatMul", (2, 10, 48), weights))["size"] == "1 x 20x40x48"


# What it refuses, and proposes


REFUSED: dict[str, tuple[Any, str]] = {
    "depthwise": (
        lambda: one_operator("Conv", (1, 8, 6, 6), np.ones((8, 1, 1, 1), F32), group=8),
        "depthwise convolution is no matrix product",
    ),
    "taps": (lambda: one_operator("Conv", (1, 2, 5, 5), np.ones((4, 2, 3, 3), F32)), "only a 1×1"),
    "strides": (
        lambda: one_operator("Conv", (1, 2, 5, 5), np.ones((4, 2, 1, 1), F32), strides=[2, 2]),
        "reads every pixel",
    ),
    "borders": (
        lambda: one_operator("Conv", (1, 2, 5, 5), np.ones((4, 2, 1, 1), F32), pads=[1] * 4),
        "reads every pixel",
    ),
    "softmax": (lambda: one_operator("Softmax", (3, 4)), "no Softmax"),
    "relu": (lambda: one_operator("Relu", (3, 4)), "no Relu"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(toolchain: OpenBlasToolchain, name: str) -> None:
    make, reason = REFUSED[name]
    net = imported(make())
    instance = default_instance(toolchain)
    told = [toolchain.supports(net.graph, i, instance) for i in net.graph.operators]
    assert any(t is not None and reason in t for t in told), told


@pytest.mark.parametrize(
    ("op", "shape", "weights", "bias"),
    [
        ("Conv", (3, 16, 9, 4), (24, 4, 1, 1), (24,)),
        ("Conv", (2, 6, 250), (1000, 6, 1), (1000,)),
        ("Gemm", (40, 64), (64, 33), (33,)),
        ("Gemm", (700, 512), (512, 96), (96,)),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_bias_is_part_of_a_product(
    toolchain: OpenBlasToolchain,
    op: str,
    shape: tuple[int, ...],
    weights: tuple[int, ...],
    bias: tuple[int, ...],
    threads: int,
) -> None:
    net = Net()
    groups = {"group": shape[1] // weights[1]} if op == "Conv" else {}
    y = net.add(op, net.input(*shape), net.randn(*weights), net.randn(*bias), **groups)
    assert check(toolchain, net.model(y), threads)["what"] == "sgemm"


@pytest.mark.parametrize("shape", [(1, 8, 1, 1), (8, 6, 6), (1, 1, 1, 6)])
def test_only_a_constant_for_each_channel_is_a_bias(
    toolchain: OpenBlasToolchain, shape: tuple[int, ...]
) -> None:
    """A value that is computed, or other sums along a product, are another toolchain's."""
    net = Net()
    y = net.add("Conv", net.input(1, 8, 6, 6), net.randn(8, 8, 1, 1))
    added = net.input(*shape) if shape == (1, 8, 1, 1) else net.randn(*shape)
    model = imported(net.model(net.add("Add", y, added)))
    instance = default_instance(toolchain)
    assert not toolchain.takes_set(model.graph, instance, model.graph.everything)
    told = [toolchain.supports(model.graph, i, instance) for i in model.graph.operators]
    assert told[0] is None and told[1] is not None and "no Add" in told[1]


def test_each_product_is_a_candidate_and_nothing_else(toolchain: OpenBlasToolchain) -> None:
    net = Net()
    x = net.input(1, 8, 12, 12)
    y = net.add("Conv", x, net.randn(8, 8, 1, 1))
    y = net.add("Conv", net.add("Relu", y), net.randn(8, 8, 1, 1), net.randn(8))
    y = net.add("Conv", y, net.randn(8, 8, 3, 3))
    y = net.add("MatMul", net.add("MatMul", y, net.randn(10, 5)), net.randn(5, 4))
    model = imported(net.model(y))
    graph, instance = model.graph, default_instance(toolchain)
    source = CandidateSource(
        instance=instance,
        spec=toolchain.partition_spec(instance, graph),
        supports=lambda index: toolchain.supports(graph, index, instance),
        takes_set=lambda nodes: toolchain.takes_set(graph, instance, nodes),
    )
    found = [c.nodes for c in enumerate_candidates(graph, [source])]
    ops = [graph.nodes[i].op for i in graph.operators]
    matmuls = [n for n, op in enumerate(ops) if op == "matmul"]
    bare = ops.index("nn.conv2d")
    biased = ops.index("nn.conv2d", bare + 1)
    assert ops[biased + 1] == "add"
    assert sorted(found) == [(bare,), (biased, biased + 1), *((n,) for n in matmuls)]
    with pytest.raises(ToolchainError, match="one product a call"):
        toolchain.compile(whole(model, instance))
