"""oneDNN in bfloat16: products of rounded operands, float32 borders, what is kept in between."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto

from collage_engine.kernels.rounding import balanced
from collage_engine.records.precision import TOLERANCES, in_precision, is_reduced, keep_float32
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.toolchains.onednn.toolchain import OneDnnToolchain
from collage_engine.toolchains.runtime.toolchain import has_bfloat16
from tests.engine.test_toolchain_onednn import attention, conv_then
from tests.engine.test_toolchain_onednn_operators import CONVOLUTIONS, PRODUCTS
from tests.support.onednn_checks import steps
from tests.support.toolchain_cases import (
    Net,
    available,
    check_whole,
    error,
    imported,
    load_again,
    reference,
    run,
    saved,
    whole,
)
from tests.zoo import build

pytestmark = pytest.mark.skipif(not has_bfloat16(), reason="the processor has no bfloat16 products")
BF16 = in_precision(ToolchainInstance(toolchain="onednn"), "bfloat16")
BOUND = TOLERANCES["bfloat16"]


@pytest.fixture(scope="module")
def toolchain() -> OneDnnToolchain:
    return available(OneDnnToolchain())


def check(toolchain: OneDnnToolchain, model: ModelProto, bound: float = BOUND) -> dict[str, Any]:
    """Right within the bound, also after loading again, with the same bits."""
    return toolchain.inside(check_whole(toolchain, model, BF16, bound, settled=False))


def rounded(values: np.ndarray) -> np.ndarray:
    """To bfloat16, ties to even, as float64."""
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def test_instances_stand_side_by_side(toolchain: OneDnnToolchain) -> None:
    assert [i.id for i in toolchain.instances(Target(), "float32")] == ["onednn"]
    assert [i.id for i in toolchain.instances(Target(), "int8")] == ["onednn"]
    full, narrow = toolchain.instances(Target(threads=3), "bfloat16")
    assert (full.id, full.precision) == ("onednn", "float32")
    assert (narrow.id, narrow.precision) == ("onednn[precision=bf16]", "bfloat16")
    assert narrow.threads == 3 and is_reduced(narrow) and not is_reduced(full)


def test_a_product_rounds_its_operands_once_and_sums_in_float32(
    toolchain: OneDnnToolchain,
) -> None:
    net = Net()
    w = net.random.standard_normal((96, 48)).astype(np.float32)
    model = net.model(net.add("MatMul", net.input(32, 96), net.const(w)))
    function = whole(imported(model), BF16)
    feeds = imported(model).random_inputs(0)
    (result,) = run(toolchain.compile(function), function, feeds)
    exact = rounded(feeds["x0"]) @ balanced(w.T.copy()).T.astype(np.float64)
    assert error(result, exact) < 1e-6
    # And it is no float32 product that happens to be near.
    assert error(result, feeds["x0"].astype(np.float64) @ w.astype(np.float64)) > 1e-4


def test_weights_are_rounded_so_that_errors_cancel() -> None:
    random = np.random.default_rng(0)
    w = random.standard_normal((64, 300)).astype(np.float32)
    found, nearest = balanced(w), rounded(w)
    np.testing.assert_array_equal(found, rounded(found))  # bfloat16 numbers
    one_step = np.abs(found - w) <= np.abs(w) * 2.0**-7
    assert one_step.all()
    sums, before = (np.abs((each - w).sum(1)) for each in (found, nearest))
    assert sums.max() < before.max() / 10
    assert np.square(found - w).sum() < 1.1 * np.square(nearest - w).sum()
    x = np.abs(random.standard_normal((500, 300)))
    off, off_before = (np.std(x @ (each - w).T) for each in (found, nearest))
    assert off < 0.75 * off_before
    # What is in bfloat16 already, and what is near the largest number, stay what they are.
    for values in (nearest.astype(np.float32), np.full((2, 9), 3.3953e38, np.float32)):
        assert np.isfinite(balanced(values)).all()
    np.testing.assert_array_equal(balanced(nearest.astype(np.float32)), nearest)


def test_products_can_be_left_in_float32(toolchain: OneDnnToolchain) -> None:
    net = Net()
    y = net.input(1, 32, 14, 14)
    for _ in range(3):
        y = net.add("Conv", y, net.randn(32, 32, 3, 3, scale=0.08), net.randn(32), pads=[1] * 4)
        y = net.add("Relu", y)
    model = net.model(y)
    imports = imported(model)
    feeds = imports.random_inputs(0)
    places = [
        k for k, i in enumerate(imports.graph.operators) if imports.graph.nodes[i].op == "nn.conv2d"
    ]
    taken, errors = [], []
    for kept in ((), places[:1], places[1:], places):
        function = whole(imports, keep_float32(BF16, kept))
        module = toolchain.compile(function)
        inside = toolchain.inside(module)
        taken.append(["bf16" in s["takes"] for s in inside["steps"] if s["what"] == "conv"])
        (result,) = run(module, function, feeds)
        (truth,) = reference(model, function, feeds)
        errors.append(error(result, truth))
        assert saved(load_again(load_again(module))) == saved(load_again(module))
    assert taken == [[True] * 3, [False, True, True], [True, False, False], [False] * 3]
    assert errors[3] < 1e-5 < errors[1] < errors[0]


@pytest.mark.parametrize("name", [*CONVOLUTIONS, *PRODUCTS])
def test_product(toolchain: OneDnnToolchain, name: str) -> None:
    check(toolchain, (CONVOLUTIONS | PRODUCTS)[name])


def test_activations_between_convolutions_stay_bfloat16(toolchain: OneDnnToolchain) -> None:
    net = Net()
    y = net.input(1, 32, 28, 28)
    for _ in range(3):
        w = net.randn(32, 32, 3, 3, scale=0.08)
        y = net.add("Relu", net.add("Conv", y, w, net.randn(32), pads=[1] * 4))
        y = net.add("MaxPool", y, kernel_shape=[3, 3], pads=[1] * 4)
    inside = check(toolchain, net.model(y))
    convolutions = [s for s in inside["steps"] if s["what"] == "conv"]
    assert [s["takes"] for s in convolutions] == ["channels-last bf16"] * 3
    assert [s["gives"] for s in convolutions[:2]] == ["channels-last bf16"] * 2
    # What leaves is not rounded once more.
    assert convolutions[2]["gives"] == "channels-last"
    assert len([s for s in inside["steps"] if s["what"] == "reorder"]) == 2


def test_residual_is_added_in_bfloat16_where_a_product_reads_the_sum(
    toolchain: OneDnnToolchain,
) -> None:
    net = Net()
    x = net.input(1, 16, 14, 14)
    a = net.add("Relu", net.add("Conv", x, net.randn(16, 16, 3, 3, scale=0.1), pads=[1] * 4))
    b = net.add("Conv", a, net.randn(16, 16, 3, 3, scale=0.1), net.randn(16), pads=[1] * 4)
    c = net.add("Relu", net.add("Add", b, a))
    d = net.add("Conv", c, net.randn(16, 16, 1, 1, scale=0.2))
    inside = check(toolchain, net.model(d))
    assert "conv:add(in place)+relu" in steps(inside)


FOLLOWERS = {
    "silu": lambda n, y: n.add("Mul", y, n.add("Sigmoid", y)),
    "softmax": lambda n, y: n.add("Softmax", y, axis=1),
    "mean": lambda n, y: n.add("GlobalAveragePool", y),
    "instance norm": lambda n, y: n.add("InstanceNormalization", y, n.randn(32), n.randn(32)),
    "scaled by an input": lambda n, y: n.add("Mul", y, n.input(1, 32, 1, 1)),
    "added to an input": lambda n, y: n.add("Add", y, n.input(1, 32, 14, 14)),
    "concatenated": lambda n, y: n.add(
        "Concat", y, n.add("Relu", y), n.input(1, 4, 14, 14), axis=1
    ),
}


@pytest.mark.parametrize("name", FOLLOWERS)
@pytest.mark.parametrize("convolved", [False, True], ids=["leaves", "convolved"])
def test_what_follows_a_convolution(toolchain: OneDnnToolchain, name: str, convolved: bool) -> None:
    """The result leaves, or another product reads it: then it is wanted in bfloat16."""

    def follow(net: Net, y: str) -> str:
        z = FOLLOWERS[name](net, y)
        if not convolved:
            return str(z)
        channels = 68 if name == "concatenated" else 32
        return str(net.add("Conv", z, net.randn(8, channels, 1, 1, scale=0.2)))

    check(toolchain, conv_then(follow))


def test_attention(toolchain: OneDnnToolchain) -> None:
    inside = check(toolchain, attention())
    products = [s for s in inside["steps"] if s["what"] == "matmul"]
    assert all("bf16" in s["takes"] for s in products)


def test_whole_model(toolchain: OneDnnToolchain) -> None:
    check(toolchain, build("light_squeezenet"))


def test_weights_read_in_both_types_come_back_exactly(toolchain: OneDnnToolchain) -> None:
    net = Net()
    w = net.randn(16, 16)
    x = net.input(4, 16)
    y = net.add("MatMul", x, w)
    model = net.model(net.add("MatMul", net.add("Softmax", y), net.add("Tanh", w)))
    function = whole(imported(model), BF16)
    module = toolchain.compile(function)
    assert saved(load_again(module)) == saved(module)


AND_OUT = {
    "itself": lambda n, y: y,
    "relu": lambda n, y: n.add("Relu", y),
    "square": lambda n, y: n.add("Mul", y, y),
    "pool": lambda n, y: n.add("MaxPool", y, kernel_shape=[2, 2]),
    "turned": lambda n, y: n.add("Transpose", y, perm=[0, 2, 3, 1]),
}


@pytest.mark.parametrize("name", AND_OUT)
def test_what_is_held_in_bfloat16_leaves_in_float32(toolchain: OneDnnToolchain, name: str) -> None:
    net = Net()
    y = net.add("Conv", net.input(1, 16, 5, 4), net.randn(16, 16, 3, 3, scale=0.1), pads=[1] * 4)
    z = net.add("Conv", y, net.randn(16, 16, 1, 1, scale=0.2))
    check(toolchain, net.model(AND_OUT[name](net, y), z))
