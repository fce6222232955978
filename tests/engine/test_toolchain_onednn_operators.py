"""Every operator of oneDNN over shapes and attributes, against unoptimised ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from collage_engine.records.operators import onnx_type
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.onednn.toolchain import OneDnnToolchain
from tests.engine.test_model_operators import CASES
from tests.support.onednn_checks import F32, check, weights
from tests.support.toolchain_cases import (
    Net,
    available,
    default_instance,
    imported,
    one_operator,
    whole,
)

X = (1, 8, 10, 12)


@pytest.fixture(scope="module")
def toolchain() -> OneDnnToolchain:
    return available(OneDnnToolchain())


def convolution(
    x: tuple[int, ...], w: tuple[int, ...], bias: bool = True, **attributes: Any
) -> ModelProto:
    operands = [x, weights(*w)] + ([weights(w[0])] if bias else [])
    return one_operator("Conv", *operands, **attributes)


CONVOLUTIONS = {
    "no bias": convolution(X, (16, 8, 3, 3), bias=False),
    "1x1": convolution(X, (24, 8, 1, 1)),
    "three channels": convolution((1, 3, 32, 32), (16, 3, 7, 7), strides=[2, 2], pads=[3] * 4),
    "odd channels": convolution((1, 5, 9, 9), (7, 5, 3, 3), pads=[1] * 4),
    "strided": convolution(X, (8, 8, 3, 3), strides=[2, 3], pads=[1, 1, 1, 1]),
    "asymmetric pads": convolution(X, (8, 8, 3, 3), pads=[0, 1, 2, 3]),
    "grouped": convolution(X, (12, 2, 3, 3), group=4),
    "depthwise strided": convolution(X, (8, 1, 3, 3), group=8, pads=[1] * 4, strides=[2, 2]),
    "depthwise multiplier": convolution(X, (16, 1, 3, 3), group=8),
    "kernel of the whole image": convolution((1, 8, 7, 7), (16, 8, 7, 7)),
}


POOLS = {
    "max": one_operator("MaxPool", X, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    "max dilated": one_operator("MaxPool", X, kernel_shape=[2, 2], dilations=[2, 2]),
    "max 1d": one_operator("MaxPool", (2, 4, 11), kernel_shape=[3]),
    "max 3d": one_operator("MaxPool", (1, 4, 6, 6, 6), kernel_shape=[2, 2, 2], strides=[2, 2, 2]),
    "average asymmetric": one_operator("AveragePool", X, kernel_shape=[3, 3], pads=[0, 0, 1, 1]),
    "global average 3d": one_operator("GlobalAveragePool", (2, 3, 4, 5, 6)),
}

PRODUCTS = {
    "2d": one_operator("MatMul", (5, 16), weights(16, 24)),
    "one row": one_operator("MatMul", (1, 300), weights(300, 100)),
    "3d by 2d": one_operator("MatMul", (2, 7, 16), weights(16, 24)),
    "4d by 2d": one_operator("MatMul", (2, 3, 7, 16), weights(16, 24)),
    "batched": one_operator("MatMul", (2, 3, 4), (2, 4, 5)),
    "batched constant": one_operator("MatMul", (2, 3, 4), weights(2, 4, 5)),
    "broadcast batch": one_operator("MatMul", (6, 1, 3, 4), (5, 4, 2)),
    "2d by 3d": one_operator("MatMul", (3, 4), (2, 4, 5)),
    "vector by matrix": one_operator("MatMul", (4,), weights(4, 5)),
    "matrix by vector": one_operator("MatMul", (3, 4), weights(4)),
    "vector by vector": one_operator("MatMul", (4,), (4,)),
    "gemm transposed": one_operator("Gemm", (4, 3), (5, 4), transA=1, transB=1),
}


def _scaled_and_shifted(op: str, *shape: int) -> ModelProto:
    """A batch normalisation of single pixels."""
    net = Net()
    ones = (1,) * (len(shape) - 2)
    y = net.add(op, net.input(*shape), net.const(weights(shape[1], *ones)))
    return net.model(net.add("Add", y, net.const(weights(shape[1], *ones))))


PAIRS = {
    f"{op} and add {shape}": _scaled_and_shifted(op, *shape)
    for op in ("Mul", "Sub", "Div")
    for shape in ((2, 6, 1), (3, 6, 1, 1), (1, 6, 1, 1), (2, 6, 2, 1), (2, 6))
}

SHAPING = {
    "concat": one_operator("Concat", X, X, weights(1, 3, 10, 12), axis=1),
    "concat last": one_operator("Concat", (2, 3), (2, 4), axis=-1),
    "split uneven": one_operator("Split", (2, 9), np.array([2, 3, 4]), outputs=3, axis=1),
    "slice": one_operator("Slice", X, *map(np.array, ([1, 2], [7, 11], [1, 3], [2, 3]))),
    "slice to the last": one_operator("Slice", (9, 4), *map(np.array, ([0], [9], [0], [2]))),
    "slice by an even step": one_operator(
        "Slice", (3, 8, 2, 1), *map(np.array, ([1], [8], [1], [2]))
    ),
    "slice from the end": one_operator("Slice", X, np.array([-3]), np.array([-1]), np.array([2])),
    "reshape": one_operator("Reshape", X, np.array([4, -1])),
    "transpose 2d": one_operator("Transpose", (5, 9)),
    "expand": one_operator("Expand", (8, 1, 1), np.array([2, 8, 3, 4])),
    "one index": one_operator("Gather", X, np.array(-2), axis=2),
    "one index kept": one_operator("Gather", X, np.array([3]), axis=1),
    "l2": one_operator("ReduceL2", X, axes=[1, 2, 3]),
}

ALL = {
    f"{family}: {name}": model
    for family, table in {
        "conv": CONVOLUTIONS,
        "pool": POOLS,
        "matmul": PRODUCTS,
        "pair": PAIRS,
        "shaping": SHAPING,
    }.items()
    for name, model in table.items()
}


@pytest.mark.parametrize("name", ALL)
def test_operator(toolchain: OneDnnToolchain, name: str) -> None:
    check(toolchain, ALL[name])


def test_forms_that_models_come_in(toolchain: OneDnnToolchain) -> None:
    """Those of the importer's table that oneDNN takes."""
    taken = 0
    for model in CASES.values():
        graph = imported(model).graph
        instance = default_instance(toolchain)
        if graph.operators and not any(
            toolchain.supports(graph, index, instance) for index in graph.operators
        ):
            taken += 1
            check(toolchain, model)
    assert taken >= 100


UNSUPPORTED = {
    "gather": one_operator("Gather", X, np.array([0, 1]), axis=1),
    "sin": one_operator("Sin", X),
    "13 axes": one_operator("Relu", (1,) * 13),
    "strided_slice beyond the end": one_operator(
        "Slice", (3, 9, 2, 1), *map(np.array, ([0], [9], [1], [2]))
    ),
    "prelu": one_operator("PRelu", X, weights(8, 1, 1)),
    "negative step": one_operator("Slice", X, *map(np.array, ([5], [0], [2], [-1]))),
    "pow of two tensors": one_operator("Pow", X, X),
    "resize": one_operator("Resize", X, np.array([], F32), np.array([1, 1, 2, 2], F32)),
    "mask": one_operator("Where", np.tril(np.ones((10, 12), bool)), X, np.asarray(-1e4, F32)),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_operator_is_named_and_compiling_it_says_the_same(
    toolchain: OneDnnToolchain, name: str
) -> None:
    net = imported(UNSUPPORTED[name])
    function = whole(net, default_instance(toolchain))
    (index,) = net.graph.operators
    reason = toolchain.supports(net.graph, index, function.instance)
    assert reason
    assert onnx_type(net.graph.nodes[index].op) in reason
    with pytest.raises(UnsupportedError):
        toolchain.compile(function)
