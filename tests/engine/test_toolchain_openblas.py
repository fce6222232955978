"""OpenBLAS's products and convolutions against float64, and what it makes of their surroundings."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from onnx import ModelProto

from collage_engine.model.importer import ImportedModel
from collage_engine.partition.enumerate import CandidateSource, enumerate_candidates
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.errors import ToolchainError
from collage_engine.records.format import NHWC, TO_STORED, Formats, differs
from collage_engine.toolchains.openblas.toolchain import OpenBlasToolchain
from tests.support.toolchain_cases import (
    Net,
    available,
    check_whole,
    default_instance,
    error,
    imported,
    one_node,
    reference,
    run,
    saved,
    whole,
)

F32 = np.float32


@pytest.fixture(scope="module")
def toolchain() -> OpenBlasToolchain:
    return available(OpenBlasToolchain())


def check(
    toolchain: OpenBlasToolchain,
    model: ModelProto,
    truth: np.ndarray | None = None,
    threads: int = 1,
    tolerance: float = 2e-6,
) -> list[dict[str, Any]]:
    """Run the whole model, saved and loaded too, against the truth; its steps."""
    instance = default_instance(toolchain, threads)
    truths = None if truth is None else [truth]
    module = check_whole(toolchain, model, instance, tolerance, truths)
    steps: list[dict[str, Any]] = toolchain.inside(module)["steps"]
    return steps


def told(steps: list[dict[str, Any]]) -> list[str]:
    return [s["what"] + (":" + s["fused"] if s["fused"] else "") for s in steps]


def convolve(
    x: np.ndarray,
    w: np.ndarray,
    strides: tuple[int, int],
    pads: tuple[int, int, int, int],
    dilations: tuple[int, int],
    groups: int,
) -> np.ndarray:
    """A convolution in float64, tap by tap: x NCHW, w OIHW."""
    top, left, bottom, right = pads
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    filters, channels, height, width = w.shape
    rows = (x.shape[2] - dilations[0] * (height - 1) - 1) // strides[0] + 1
    columns = (x.shape[3] - dilations[1] * (width - 1) - 1) // strides[1] + 1
    y = np.zeros((x.shape[0], filters, rows, columns))
    for g in range(groups):
        own = slice(g * filters // groups, (g + 1) * filters // groups)
        data = x[:, g * channels : (g + 1) * channels]
        for i in range(height):
            for j in range(width):
                top, left = i * dilations[0], j * dilations[1]
                part = data[
                    :,
                    :,
                    top : top + rows * strides[0] : strides[0],
                    left : left + columns * strides[1] : strides[1],
                ][:, :, :rows, :columns]
                y[:, own] += np.einsum("oc,ncyx->noyx", w[own, :, i, j].astype(np.float64), part)
    return y


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("seed", range(24))
def test_convolutions_of_any_shape(toolchain: OpenBlasToolchain, seed: int, threads: int) -> None:
    random = np.random.default_rng(seed)
    groups = int(random.choice([1, 1, 2, 3]))
    channels, filters = (int(random.integers(2, 40)) * groups for _ in range(2))
    kernel = tuple(int(k) for k in random.integers(1, 6, 2))
    strides, dilations = (tuple(int(v) for v in random.integers(1, 4, 2)) for _ in range(2))
    pads = tuple(int(p) for p in random.integers(0, 4, 4))
    size = [int(random.integers(dilations[d] * (kernel[d] - 1) + 1, 40)) for d in range(2)]
    images = int(random.integers(1, 4))
    net = Net(seed=seed)
    x = net.input(images, channels, *size)
    weights = random.standard_normal((filters, channels // groups, *kernel)).astype(F32)
    y = net.add(
        "Conv",
        x,
        net.const(weights),
        group=groups,
        strides=list(strides),
        pads=list(pads),
        dilations=list(dilations),
    )
    model = net.model(y)
    given = imported(model).random_inputs(0)[x]
    truth = convolve(given, weights, strides, pads, dilations, groups)  # type: ignore[arg-type]
    check(toolchain, model, truth, threads)


@pytest.mark.parametrize(
    ("channels", "filters", "kernel", "size", "stride", "groups"),
    [
        (512, 96, 3, 7, 1, 1),  # deeper than one piece
        (3, 64, 7, 64, 2, 1),
        (32, 200, 1, 40, 1, 1),  # more filters and pixels than one piece
        (96, 160, 1, 21, 2, 2),
        (64, 64, 5, 33, 1, 4),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_convolutions_in_many_pieces(
    toolchain: OpenBlasToolchain,
    channels: int,
    filters: int,
    kernel: int,
    size: int,
    stride: int,
    groups: int,
    threads: int,
) -> None:
    net = Net()
    x = net.input(2, channels, size, size)
    weights = (
        np.random.default_rng(1)
        .standard_normal((filters, channels // groups, kernel, kernel))
        .astype(F32)
    )
    bias = np.arange(filters, dtype=F32)
    pad = kernel // 2
    y = net.add(
        "Conv",
        x,
        net.const(weights),
        net.const(bias),
        group=groups,
        strides=[stride] * 2,
        pads=[pad] * 4,
    )
    model = net.model(net.add("Relu", y))
    given = imported(model).random_inputs(0)[x]
    truth = convolve(given, weights, (stride,) * 2, (pad,) * 4, (1, 1), groups)
    steps = check(toolchain, model, np.maximum(truth + bias.reshape(1, -1, 1, 1), 0), threads)
    assert [s["fused"] for s in steps] == ["add+relu"]


def test_signals_are_convolved(toolchain: OpenBlasToolchain) -> None:
    net = Net()
    y = net.add(
        "Conv",
        net.input(2, 6, 50),
        net.randn(10, 6, 5),
        net.randn(10),
        pads=[2, 1],
        strides=[2],
        dilations=[2],
    )
    assert told(check(toolchain, net.model(net.add("Tanh", y)))) == [
        "sgemm convolution, columns gathered:add+tanh"
    ]


PRODUCTS = [
    ((3, 5), (5, 4)),
    ((1, 64), (64, 33)),
    ((40, 64), (64, 1)),
    ((1, 1), (1, 1)),
    ((128, 300), (300, 257)),
    ((500, 40), (40, 17)),
    ((2, 3, 7, 9), (9, 8)),
    ((2, 3, 7, 9), (3, 9, 8)),
    ((2, 1, 7, 9), (2, 3, 9, 8)),
    ((7, 9), (2, 3, 9, 8)),
    ((4, 1, 9), (9, 8)),
    ((4, 1, 9), (4, 9, 1)),
    ((9,), (9, 8)),
    ((5, 9), (9,)),
    ((9,), (2, 9, 4)),
    ((12, 130, 64), (12, 64, 140)),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("left", "right"), PRODUCTS)
def test_products_of_any_rank(
    toolchain: OpenBlasToolchain,
    left: tuple[int, ...],
    right: tuple[int, ...],
    constant: bool,
    threads: int,
) -> None:
    weights = np.random.default_rng(3).standard_normal(right).astype(F32)
    model = one_node("MatMul", left, weights if constant else right)
    feeds = imported(model).random_inputs(0)
    b = weights if constant else feeds["x1"]
    truth = np.matmul(feeds["x0"].astype(np.float64), b.astype(np.float64))
    check(toolchain, model, truth, threads, tolerance=4e-6)


@pytest.mark.parametrize("seed", range(12))
def test_operands_are_read_through_transposes(toolchain: OpenBlasToolchain, seed: int) -> None:
    """Random batch, random order of axes on either side and of the result."""
    random = np.random.default_rng(seed)
    batch = tuple(int(b) for b in random.integers(1, 4, random.integers(1, 3)))
    rows, columns, depth = (int(v) for v in random.integers(1, 90, 3))
    net = Net()

    def operand(dims: tuple[int, ...]) -> tuple[str, list[int]]:
        order = [int(a) for a in random.permutation(len(dims))]
        stored = tuple(dims[order.index(axis)] for axis in range(len(dims)))
        return net.input(*stored), order

    (a, a_order), (b, b_order) = operand((*batch, rows, depth)), operand((*batch, depth, columns))
    last = [int(v) for v in random.permutation(len(batch) + 2)]
    product = net.add(
        "MatMul", net.add("Transpose", a, perm=a_order), net.add("Transpose", b, perm=b_order)
    )
    model = net.model(net.add("Transpose", net.add("Relu", product), perm=last))
    feeds = imported(model).random_inputs(0)
    truth = np.matmul(
        feeds[a].astype(np.float64).transpose(a_order),
        feeds[b].astype(np.float64).transpose(b_order),
    )
    check(toolchain, model, np.maximum(truth, 0).transpose(last), tolerance=4e-6)


def attention(width: int = 48, heads: int = 4, length: int = 10) -> ModelProto:
    """Scores and context as BERT has them, without the softmax between."""
    net = Net()
    shape = net.const(np.array([0, 0, heads, width // heads]))

    def split(x: str, perm: list[int]) -> str:
        return net.add("Transpose", net.add("Reshape", x, shape), perm=perm)

    x = net.input(2, length, width)
    q = split(net.add("MatMul", x, net.randn(width, width, scale=0.2)), [0, 2, 1, 3])
    k = split(net.input(2, length, width), [0, 2, 3, 1])
    v = split(net.input(2, length, width), [0, 2, 1, 3])
    scores = net.add("Div", net.add("MatMul", q, k), net.scalar(3.5))
    scores = net.add("Add", scores, net.input(2, 1, 1, length))
    y = net.add("Transpose", net.add("MatMul", scores, v), perm=[0, 2, 1, 3])
    y = net.add("Reshape", y, net.const(np.array([0, 0, width])))
    y = net.add("MatMul", y, net.randn(width, width, scale=0.2))
    return net.model(net.add("Add", y, x))


@pytest.mark.parametrize("threads", [1, 2])
def test_attention_copies_nothing(toolchain: OpenBlasToolchain, threads: int) -> None:
    steps = check(toolchain, attention(), threads=threads, tolerance=4e-6)
    assert told(steps) == ["sgemm", "sgemm:affine+add", "sgemm", "sgemm:add"]
    assert [s["transposed"] for s in steps] == ["", "b", "", ""]
    # Rows of the whole batch are multiplied at once where the weights have no batch.
    assert steps[0]["size"] == "1 x 20x48x48" and steps[1]["size"] == "8 x 10x10x12"


def epilogue(name: str) -> ModelProto:
    net = Net(opset=20)
    x = net.input(1, 8, 12, 12)
    y = net.add("Conv", x, net.randn(24, 8, 3, 3, scale=0.2), net.randn(24), pads=[1] * 4)
    other = net.input(1, 24, 12, 12)
    made = {
        "relu6": lambda: net.add("Clip", y, net.scalar(0), net.scalar(6)),
        "sigmoid": lambda: net.add("Sigmoid", y),
        "tanh": lambda: net.add("Tanh", y),
        "leaky": lambda: net.add("LeakyRelu", y, alpha=0.3),
        "gelu": lambda: net.add("Gelu", y),
        "gelu tanh": lambda: net.add("Gelu", y, approximate="tanh"),
        "silu": lambda: net.add("Mul", y, net.add("Sigmoid", y)),
        "hardswish": lambda: net.add("HardSwish", y),
        "hardsigmoid": lambda: net.add("HardSigmoid", y, alpha=0.2, beta=0.5),
        "residual, relu": lambda: net.add("Relu", net.add("Add", other, y)),
        "other minus": lambda: net.add("Sub", other, y),
        "minus channel": lambda: net.add("Sub", y, net.randn(24, 1, 1)),
        "one minus": lambda: net.add("Sub", net.scalar(1), y),
        "two over": lambda: net.add("Div", net.scalar(2), net.add("Exp", y)),
        "over": lambda: net.add("Div", other, net.add("Exp", y)),
        "maximum": lambda: net.add("Max", y, other),
        "minimum": lambda: net.add("Min", y, net.randn(24, 1, 1)),
        "erf": lambda: net.add("Erf", y),
        "root": lambda: net.add("Sqrt", net.add("Abs", y)),
        "square": lambda: net.add("Pow", y, net.scalar(2)),
        "negative": lambda: net.add("Neg", y),
        "itself": lambda: net.add("Mul", y, y),
        "row of pixels": lambda: net.add("Mul", y, net.randn(12)),
        "column of pixels": lambda: net.add("Add", y, net.randn(12, 1)),
    }
    return net.model(made[name]())


FUSED = {
    "relu6": "add+clip",
    "sigmoid": "add+sigmoid",
    "tanh": "add+tanh",
    "leaky": "add+leaky_relu",
    "gelu": "add+gelu_erf",
    "gelu tanh": "add+gelu_tanh",
    "silu": "add+silu",
    "hardswish": "add+hardswish",
    "hardsigmoid": "add+hardsigmoid",
    "residual, relu": "add+add+relu",
    "other minus": "add+subtract_from",
    "minus channel": "add+subtract",
    "one minus": "add+affine",
    "two over": "add+exp+reciprocal",
    "over": "add+exp+divide_into",
    "maximum": "add+maximum",
    "minimum": "add+minimum",
    "erf": "add+erf",
    "root": "add+abs+sqrt",
    "square": "add+square",
    "negative": "add+affine",
    "itself": "add+square",
    "row of pixels": None,
    "column of pixels": None,
}
"""None: what follows needs the whole result, or steps through it as no pixel does."""


@pytest.mark.parametrize("name", FUSED)
def test_what_follows_is_applied_in_the_same_step(toolchain: OpenBlasToolchain, name: str) -> None:
    steps = check(toolchain, epilogue(name), tolerance=5e-6)
    wanted = FUSED[name]
    assert len(steps) == (2 if wanted is None else 1)
    if wanted is not None:
        assert steps[0]["fused"] == wanted


def test_a_value_read_twice_is_kept(toolchain: OpenBlasToolchain) -> None:
    net = Net()
    x = net.input(1, 8, 9, 9)
    a = net.add("Conv", x, net.randn(8, 8, 3, 3, scale=0.2), pads=[1] * 4)
    b = net.add("Relu", a)
    c = net.add("Conv", b, net.randn(8, 8, 1, 1, scale=0.2))
    y = net.add("Add", net.add("Sub", c, a), b)
    check(toolchain, net.model(y, a, b), tolerance=5e-6)


def test_functions_hold_at_the_edges_of_their_range(toolchain: OpenBlasToolchain) -> None:
    given = np.array([[0, -0.0, 1e-20, -1e-6, 30, -30, 88, -88, 200, -200, 5e-4]], F32).T
    for op, make in {
        "Tanh": np.tanh,
        "Exp": np.exp,
        "Sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    }.items():
        net = Net()
        y = net.add(op, net.add("MatMul", net.input(11, 1), net.const(np.ones((1, 1), F32))))
        model = imported(net.model(y))
        function = whole(model, default_instance(toolchain))
        (result,) = run(toolchain.compile(function), function, {"x0": given})
        with np.errstate(over="ignore"):
            truth = make(given.astype(np.float64)).astype(F32)
        np.testing.assert_allclose(result, truth, rtol=3e-6, atol=1e-38)


def test_not_a_number_stays_one(toolchain: OpenBlasToolchain) -> None:
    for op in ("Relu", "Sigmoid", "Tanh", "Erf", "Exp"):
        net = Net()
        y = net.add(op, net.add("MatMul", net.input(4, 1), net.const(np.ones((1, 1), F32))))
        model = imported(net.model(y))
        function = whole(model, default_instance(toolchain))
        given = np.array([[np.nan], [1], [np.nan], [-1]], F32)
        (result,) = run(toolchain.compile(function), function, {"x0": given})
        assert np.isnan(result).ravel().tolist() == [True, False, True, False], op


# Images channels last


def run_stored(
    toolchain: OpenBlasToolchain, model: ModelProto, threads: int = 1, plain: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """Every rank-4 input (but ``plain`` ones) and output as N, H, W, C; compared, its steps."""
    net = imported(model)
    function = whole(net, default_instance(toolchain, threads))
    nodes = net.graph.nodes

    def images(indices: tuple[int, ...]) -> dict[int, str]:
        return {i: NHWC for i in indices if differs(nodes[i].type) and nodes[i].name not in plain}

    function = replace(function, takes=images(function.inputs), gives=images(function.outputs))
    feeds = net.random_inputs(0)

    def stored(array: np.ndarray, formats: Formats, index: int) -> np.ndarray:
        return np.ascontiguousarray(array.transpose(TO_STORED[NHWC]) if index in formats else array)

    given = [stored(feeds[nodes[i].name], function.takes, i) for i in function.inputs]
    truths = [
        stored(truth, function.gives, i)
        for truth, i in zip(reference(model, function, feeds), function.outputs, strict=True)
    ]
    results = [np.full_like(t, np.nan) for t in truths]
    module = toolchain.compile(function)
    module["whole"](*(tvm_ffi.from_dlpack(a) for a in (*given, *results)))
    for result, truth in zip(results, truths, strict=True):
        assert error(result, truth) < 5e-6
    steps: list[dict[str, Any]] = toolchain.inside(module)["steps"]
    return steps


@pytest.mark.parametrize("seed", range(10))
def test_convolutions_take_and_give_channels_last(toolchain: OpenBlasToolchain, seed: int) -> None:
    random = np.random.default_rng(seed)
    groups = int(random.choice([1, 2, 3]))
    channels, filters = (int(random.integers(2, 70)) * groups for _ in range(2))
    kernel, stride, dilation, pad = (int(random.integers(1, 4)) for _ in range(4))
    net = Net(seed=seed)
    x = net.input(2, channels, 19, 23)
    y = net.add(
        "Conv",
        x,
        net.randn(filters, channels // groups, kernel, kernel, scale=0.1),
        net.randn(filters),
        group=groups,
        strides=[stride] * 2,
        dilations=[dilation] * 2,
        pads=[pad] * 4,
    )
    rows, columns = (
        (extent + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for extent in (19, 23)
    )
    y = net.add("Relu", net.add("Add", y, net.input(2, filters, rows, columns)))
    (step,) = run_stored(toolchain, net.model(y), threads=1 + seed % 2)
    assert step["layout"] == "channels last" and step["fused"] == "add+add+relu"


def test_a_block_stays_channels_last_inside(toolchain: OpenBlasToolchain) -> None:
    net = Net()
    x = net.input(1, 32, 14, 14)
    a = net.add("Relu", net.add("Conv", x, net.randn(16, 32, 1, 1, scale=0.2), net.randn(16)))
    b = net.add("Conv", a, net.randn(16, 16, 3, 3, scale=0.1), net.randn(16), pads=[1] * 4)
    b = net.add("Mul", b, net.add("Sigmoid", b))
    c = net.add("Conv", b, net.randn(32, 16, 1, 1, scale=0.2), net.randn(32))
    y = net.add("Relu", net.add("Add", c, x))
    steps = run_stored(toolchain, net.model(y))
    assert [s["fused"] for s in steps] == ["add+relu", "add+silu", "add+add+relu"]


def test_a_plain_image_becomes_channels_last_and_back(toolchain: OpenBlasToolchain) -> None:
    net = Net()
    x = net.input(1, 3, 20, 20)
    y = net.add("Conv", x, net.randn(24, 3, 3, 3, scale=0.2), net.randn(24), strides=[2, 2])
    y = net.add("Relu", y)
    assert [s["what"] for s in run_stored(toolchain, net.model(y), plain=("x0",))] == [
        "copy",
        "sgemm convolution, columns gathered",
    ]
    net = Net()
    y = net.add("Conv", net.input(1, 8, 6, 6), net.randn(4, 8, 1, 1))
    y = net.add("MatMul", net.add("Flatten", y), net.randn(144, 10))
    assert [s["what"] for s in run_stored(toolchain, net.model(y))] == [
        "sgemm convolution",
        "copy",
        "sgemv",
    ]


# What it refuses, and says


REFUSED: dict[str, tuple[Any, str]] = {
    "depthwise": (
        lambda: one_node("Conv", (1, 8, 6, 6), np.ones((8, 1, 3, 3), F32), group=8),
        "depthwise convolution is no matrix product",
    ),
    "volume": (
        lambda: one_node("Conv", (1, 2, 5, 5, 5), np.ones((4, 2, 3, 3, 3), F32)),
        "signals and images only",
    ),
    "softmax": (lambda: one_node("Softmax", (3, 4)), "no Softmax"),
    "relu alone": (lambda: one_node("Relu", (3, 4)), "only together with a matrix product"),
    "transposed": (
        lambda: one_node("ConvTranspose", (1, 4, 5, 5), np.ones((4, 6, 3, 3), F32)),
        "scatters columns",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(toolchain: OpenBlasToolchain, name: str) -> None:
    make, reason = REFUSED[name]
    net = imported(make())
    instance = default_instance(toolchain)
    told = [toolchain.supports(net.graph, i, instance) for i in net.graph.operators]
    assert any(t is not None and reason in t for t in told), told


def test_an_unusual_power_is_refused_when_compiled(toolchain: OpenBlasToolchain) -> None:
    net = Net()
    y = net.add("Pow", net.add("MatMul", net.input(3, 4), net.randn(4, 5)), net.scalar(1.7))
    function = whole(imported(net.model(y)), default_instance(toolchain))
    with pytest.raises(ToolchainError, match=r"only squares, cubes and roots, not 1\.7"):
        toolchain.compile(function)


# What it proposes


def offered(toolchain: OpenBlasToolchain, model: ImportedModel) -> list[CandidateRecord]:
    instance = default_instance(toolchain)
    graph = model.graph
    source = CandidateSource(
        instance=instance,
        spec=toolchain.partition_spec(instance, graph),
        supports=lambda index: toolchain.supports(graph, index, instance),
        made_of=lambda nodes: toolchain.composites_of(graph, instance, nodes),
    )
    return list(enumerate_candidates(graph, [source]).candidates)


def test_candidates_are_composites_that_hold_a_product(toolchain: OpenBlasToolchain) -> None:
    net = Net()
    x = net.input(1, 8, 12, 12)
    y = net.add("Conv", x, net.randn(8, 8, 3, 3), net.randn(8), pads=[1] * 4)
    y = net.add("Relu", net.add("Add", y, x))
    y = net.add(
        "MatMul", net.add("Flatten", net.add("MaxPool", y, kernel_shape=[12, 12])), net.randn(8, 10)
    )
    model = imported(net.model(net.add("Softmax", y)))
    found = offered(toolchain, model)
    ops = [model.graph.nodes[i].op for i in model.graph.operators]
    assert all({"nn.conv2d", "matmul"} & {ops[n] for n in c.nodes} for c in found)
    whole_conv = next(
        c for c in found if [ops[n] for n in c.nodes] == ["nn.conv2d", "add", "add", "nn.relu"]
    )
    assert whole_conv.composites == (("openblas.conv", whole_conv.nodes),)
    assert any([ops[n] for n in c.nodes] == ["matmul"] for c in found)


def test_candidates_of_attention_reach_through_transposes(toolchain: OpenBlasToolchain) -> None:
    model = imported(attention())
    ops = [model.graph.nodes[i].op for i in model.graph.operators]
    composites = {
        (name, tuple(ops[n] for n in nodes))
        for c in offered(toolchain, model)
        for name, nodes in c.composites
    }
    scores = ("permute_dims", "permute_dims", "matmul", "divide", "add")
    assert any(n == "openblas.scores" and sorted(o) == sorted(scores) for n, o in composites)
    context = ("permute_dims", "matmul", "permute_dims")
    assert any(n == "openblas.context" and sorted(o) == sorted(context) for n, o in composites)


def test_libraries_travel_and_load_elsewhere(toolchain: OpenBlasToolchain, tmp_path: Path) -> None:
    """Copied to a folder of their own, they serve a fresh process that knows no wheel."""
    net = imported(one_node("MatMul", (33, 64), np.ones((64, 47), F32)))
    function = whole(net, default_instance(toolchain, 2))
    (tmp_path / "module.bin").write_bytes(saved(toolchain.compile(function)))
    libraries = toolchain.runtime_libraries()
    assert {"libscipy_openblas.so"} < {library.name for library in libraries}
    assert all(library.licence for library in libraries)
    for library in libraries:
        (tmp_path / library.name).write_bytes(Path(library.file).read_bytes())
    own = next(library for library in libraries if library.linked)
    code = f"""
import ctypes, sys, numpy as np, tvm_ffi
ctypes.CDLL({str(tmp_path / own.name)!r})
kind = {own.name!r}[3:-3]
data = open({str(tmp_path / "module.bin")!r}, "rb").read()
module = tvm_ffi.get_global_func("ffi.Module.load_from_bytes." + kind)(data)
x, y = np.ones((33, 64), "float32"), np.zeros((33, 47), "float32")
module["whole"](tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(y))
assert (y == 64).all()
mapped = open("/proc/self/maps").read()
assert {str(tmp_path)!r} + "/libscipy_openblas.so" in mapped
assert "scipy_openblas32/lib" not in mapped
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
