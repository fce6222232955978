"""oneDNN's operators, post-ops and layouts against ONNX Runtime without optimisations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from onnx import ModelProto

from collage_engine.records.graph import operator_set
from collage_engine.toolchains.onednn.fuse import MAX_POSTS
from collage_engine.toolchains.onednn.toolchain import OneDnnToolchain
from tests.support.onednn_checks import check, steps
from tests.support.toolchain_cases import (
    Net,
    available,
    default_instance,
    error,
    imported,
    name_of,
    one_operator,
    reference,
    run,
    whole,
)

F32 = np.float32


@pytest.fixture(scope="module")
def toolchain() -> OneDnnToolchain:
    return available(OneDnnToolchain())


def conv_then(follow: Callable[[Net, str], str]) -> ModelProto:
    net = Net(opset=18)
    x = net.input(1, 16, 14, 14)
    y = net.add("Conv", x, net.randn(32, 16, 3, 3, scale=0.1), net.randn(32), pads=[1] * 4)
    return net.model(follow(net, y))


EPILOGUES: dict[str, tuple[Callable[[Net, str], str], str]] = {
    "relu": (lambda n, y: n.add("Relu", y), "relu"),
    "relu6": (lambda n, y: n.add("Clip", y, n.scalar(0), n.scalar(6)), "clip"),
    "sigmoid": (lambda n, y: n.add("Sigmoid", y), "logistic"),
    "silu": (lambda n, y: n.add("Mul", y, n.add("Sigmoid", y)), "swish"),
    "hardswish": (lambda n, y: n.add("HardSwish", y), "hardswish"),
    "scale": (lambda n, y: n.add("Mul", y, n.input(1, 32, 1, 1)), "mul"),
    "relu and scalar": (lambda n, y: n.add("Add", n.add("Relu", y), n.scalar(2)), "relu+linear"),
    "difference": (
        lambda n, y: n.add("Sub", n.input(1, 32, 14, 14), y),
        "linear+add(in place)",
    ),
    "one minus": (lambda n, y: n.add("Sub", n.scalar(1), y), "linear"),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_convolution_computes_what_follows(toolchain: OneDnnToolchain, name: str) -> None:
    follow, fused = EPILOGUES[name]
    assert f"conv:{fused}" in steps(check(toolchain, conv_then(follow)))


def test_more_functions_in_a_row_than_a_step_takes(toolchain: OneDnnToolchain) -> None:
    def follow(net: Net, y: str) -> str:
        for k in range(MAX_POSTS // 2 + 1):
            y = net.add("Add", net.add("Relu", y), net.scalar(0.5 + k))
        return y

    check(toolchain, conv_then(follow))


def test_residual_sum_is_made_in_place_when_nobody_needs_the_residual(
    toolchain: OneDnnToolchain,
) -> None:
    net = Net()
    x = net.input(1, 16, 8, 8)
    a = net.add("Relu", net.add("Conv", x, net.randn(16, 16, 3, 3, scale=0.1), pads=[1] * 4))
    b = net.add("Conv", a, net.randn(16, 16, 3, 3, scale=0.1), net.randn(16), pads=[1] * 4)
    y = net.add("Relu", net.add("Add", b, a))
    # ``a`` is read by the convolution that adds it: it may not be overwritten while it is read.
    inside = check(toolchain, net.model(y))
    assert "conv:add(in place)+relu" in steps(inside)


def test_layout_stays_the_librarys_inside_and_plain_at_the_border(
    toolchain: OneDnnToolchain,
) -> None:
    net = Net()
    y = net.input(1, 16, 12, 12)
    for _ in range(3):
        y = net.add("Relu", net.add("Conv", y, net.randn(16, 16, 3, 3, scale=0.1), pads=[1] * 4))
        y = net.add("MaxPool", y, kernel_shape=[3, 3], pads=[1] * 4)
    inside = check(toolchain, net.model(y))
    reorders = [s for s in inside["steps"] if s["what"] == "reorder"]
    assert len(reorders) == 2
    assert reorders[0]["takes"] == "plain" and reorders[-1]["gives"] == "plain"


def attention(mask: bool = True, heads: int = 4, length: int = 6, width: int = 32) -> ModelProto:
    net = Net()
    x = net.input(2, length, width)

    def project(shape: list[int], perm: list[int]) -> str:
        y = net.add("MatMul", x, net.randn(width, width, scale=0.2))
        y = net.add("Add", y, net.randn(width))
        return net.add("Transpose", net.add("Reshape", y, net.const(np.array(shape))), perm=perm)

    shape = [0, 0, heads, width // heads]
    q, v = project(shape, [0, 2, 1, 3]), project(shape, [0, 2, 1, 3])
    k = project(shape, [0, 2, 3, 1])
    scores = net.add("Div", net.add("MatMul", q, k), net.scalar(2.5))
    if mask:
        scores = net.add("Add", scores, net.input(2, 1, 1, length))
    y = net.add("MatMul", net.add("Softmax", scores, axis=-1), v)
    y = net.add("Transpose", y, perm=[0, 2, 1, 3])
    y = net.add("Reshape", y, net.const(np.array([0, 0, width])))
    y = net.add("Add", net.add("MatMul", y, net.randn(width, width, scale=0.2)), x)
    return net.model(net.add("LayerNormalization", y, net.randn(width), net.randn(width)))


@pytest.mark.parametrize("mask", [False, True])
def test_attention(toolchain: OneDnnToolchain, mask: bool) -> None:
    inside = check(toolchain, attention(mask))
    # The weights have no batch: one product of all rows each; scaling is part of the product.
    products = [s for s in inside["steps"] if s["what"] == "matmul"]
    assert len(products) == 6
    assert not any("ref" in s["implementation"] for s in inside["steps"])


def gelu_written_out(order: int, tanh: bool, one: float = 1.0) -> ModelProto:
    net = Net()
    x = net.add(
        "Add", net.add("MatMul", net.input(3, 16), net.randn(16, 32, scale=0.3)), net.randn(32)
    )
    if tanh:
        cube = (
            net.add("Mul", net.add("Mul", x, x), x) if order else net.add("Pow", x, net.scalar(3))
        )
        inner = net.add("Add", x, net.add("Mul", cube, net.scalar(0.044715)))
        gate = net.add("Tanh", net.add("Mul", inner, net.scalar(0.7978845608)))
    else:
        gate = net.add("Erf", net.add("Div", x, net.scalar(2**0.5)))
    gate = net.add("Add", gate, net.scalar(one))
    half = net.scalar(0.5)
    if order == 0:
        y = net.add("Mul", net.add("Mul", x, gate), half)
    elif order == 1:
        y = net.add("Mul", x, net.add("Mul", gate, half))
    else:
        y = net.add("Mul", net.add("Mul", half, x), gate)
    return net.model(y)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("tanh", [False, True])
def test_written_out_gelu_is_one_post_op(
    toolchain: OneDnnToolchain, order: int, tanh: bool
) -> None:
    inside = check(toolchain, gelu_written_out(order, tanh))
    assert steps(inside) == ["matmul:gelu_tanh" if tanh else "matmul:gelu_erf"]


def test_other_constants_are_computed_as_they_stand(toolchain: OneDnnToolchain) -> None:
    inside = check(toolchain, gelu_written_out(0, False, one=2.0))
    assert steps(inside) != ["matmul:gelu_erf"]


def test_erf_of_small_values_zero_and_infinity(toolchain: OneDnnToolchain) -> None:
    net = imported(one_operator("Erf", (9,)))
    function = whole(net, default_instance(toolchain))
    given = np.array([0.0, -0.0, 1e-20, -1e-6, 1e-3, -9.0, 40.0, np.inf, -np.inf], F32)
    (result,) = run(toolchain.compile(function), function, {"x0": given})
    truth = np.array([0, 0, 0, -1.1283792e-06, 1.1283788e-03, -1, 1, 1, -1])
    np.testing.assert_allclose(result, truth, atol=3e-7)


def test_any_piece_of_a_written_out_function_runs(toolchain: OneDnnToolchain) -> None:
    """A candidate may cut a GELU open anywhere."""
    for model in (gelu_written_out(0, False), gelu_written_out(0, True)):
        net = imported(model)
        graph = net.graph
        feeds = net.random_inputs(0)
        function = whole(net, default_instance(toolchain))
        (truth,) = reference(model, function, feeds)
        count = len(graph.operators)
        for cut in range(1, count):
            values = dict(zip(function.inputs, feeds.values(), strict=True))
            for numbers in (range(cut), range(cut, count)):
                nodes = operator_set(tuple(numbers))
                inputs, outputs = graph.boundary(nodes)
                piece = replace(function, nodes=nodes, inputs=inputs, outputs=outputs)
                given = {name_of(graph, i): values[i] for i in inputs}
                assert len(given) == len(inputs)
                results = run(toolchain.compile(piece), piece, given)
                values |= dict(zip(outputs, results, strict=True))
            assert error(values[function.outputs[0]], truth) < 1e-5


def test_one_weight_read_in_two_layouts(toolchain: OneDnnToolchain) -> None:
    net = Net()
    shared = net.randn(1, 8, 6, 6)
    x = net.input(1, 8, 6, 6)
    a = net.add("Conv", net.add("Add", x, shared), net.randn(8, 8, 3, 3, scale=0.1), pads=[1] * 4)
    check(toolchain, net.model(net.add("Mul", a, shared), net.add("Mul", x, shared)))


def test_threads_do_not_change_the_result(toolchain: OneDnnToolchain) -> None:
    """Work too small to share stays with the caller."""
    net = Net()
    x = net.input(1, 64, 28, 28)
    y = net.add("Conv", x, net.randn(64, 64, 3, 3, scale=0.05), pads=[1] * 4)
    y = net.add("Softmax", net.add("Flatten", net.add("GlobalAveragePool", y)))
    inside = check(toolchain, net.model(y), threads=2)
    assert inside["threads"] == 2
    threads = {s["what"]: s["threads"] for s in inside["steps"]}
    assert threads["conv"] == 2
    assert threads["softmax"] == 1


def test_wrong_arguments_are_named(toolchain: OneDnnToolchain) -> None:
    import tvm_ffi

    net = imported(one_operator("Relu", (2, 3)))
    module = toolchain.compile(whole(net, default_instance(toolchain), "f"))
    good = tvm_ffi.from_dlpack(np.zeros((2, 3), F32))
    with pytest.raises(TypeError, match="takes 1 inputs and 1 outputs, got 1"):
        module["f"](good)
    with pytest.raises(TypeError, match=r"f input 0 must be float32\[2,3\], got float32\[3,2\]"):
        module["f"](tvm_ffi.from_dlpack(np.zeros((3, 2), F32)), good)
    with pytest.raises(TypeError, match=r"f output 0 must be float32\[2,3\], got float64"):
        module["f"](good, tvm_ffi.from_dlpack(np.zeros((2, 3))))
    with pytest.raises(TypeError, match="f input 0 is not row-major"):
        module["f"](tvm_ffi.from_dlpack(np.zeros((3, 2), F32).T), good)
    with pytest.raises(TypeError, match="f input 0 is no tensor"):
        module["f"](3, good)
