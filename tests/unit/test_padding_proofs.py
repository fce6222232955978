"""What is proved of padding: values of models that are right, and refusals where they would not be.

Each model that is accepted is run on inputs whose padding is large, small and not a number; what is
kept must be what the smaller inputs give.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage_engine.model.padding import NotProved, paddable
from tests.support.model_runs import run_onnx
from tests.zoo.net import Net

Build = Callable[[Net, str], str]


def model_of(build: Build, shape: list[Any], opset: int = 17) -> onnx.ModelProto:
    net = Net("m", opset=opset, seed=zlib.crc32(repr(shape).encode()))
    net.output(build(net, net.input("x", shape)))
    return net.model(check=False)


def ints(net: Net, *values: int) -> str:
    return net.const(np.array(values, np.int64))


def shape_part(net: Net, x: str, *places: int) -> str:
    """Return sizes of a value as exporters write them: Shape, Gather, Unsqueeze, Concat."""
    sizes = net.op("Shape", x)
    return net.op("Gather", sizes, ints(net, *places))


def perceptron(net: Net, x: str) -> str:
    x = net.op("Relu", net.op("Add", net.op("MatMul", x, net.weight(16, 8)), net.vector(8)))
    x = net.op("LayerNormalization", x, net.vector(8, 1.0), net.vector(8), axis=-1)
    return net.op("Softmax", x, axis=-1)


def classifier(net: Net, x: str) -> str:
    x = net.op("Relu", net.conv(x, 3, 4, stride=2))
    x = net.batch_norm(x, 4)
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Add", x, net.op("Pad", x, ints(net, 0, 0, 0, 0, 0, 0, 0, 0)))
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    return net.op("Softmax", net.op("Gemm", x, net.weight(5, 4), net.vector(5), transB=1), axis=1)


def heads(net: Net, x: str) -> str:
    """Attention as torch exports it: the sizes come from Shape."""
    parts = shape_part(net, x, 0, 1)
    shape = net.op("Concat", parts, ints(net, 2, 8), axis=0)
    q = net.op("Transpose", net.op("Reshape", x, shape), perm=[0, 2, 1, 3])
    scale = net.op("Sqrt", net.op("Cast", shape_part(net, x, 2), to=TensorProto.FLOAT))
    scores = net.op("Div", net.op("MatMul", q, net.op("Transpose", q, perm=[0, 1, 3, 2])), scale)
    mixed = net.op("Transpose", net.op("MatMul", net.op("Softmax", scores), q), perm=[0, 2, 1, 3])
    return net.op("Reshape", mixed, net.op("Concat", parts, ints(net, -1), axis=0))


def class_token(net: Net, x: str) -> str:
    shape = net.op("Concat", shape_part(net, x, 0), ints(net, 1, 16), axis=0)
    token = net.op("Expand", net.const(np.ones((1, 1, 16), np.float32)), shape)
    return net.op("Concat", token, x, axis=1)


def embedded(net: Net, x: str) -> str:
    places = net.op("Cast", net.op("ReduceMax", net.op("Abs", x), axes=[2], keepdims=0), to=7)
    table = net.const(np.arange(60, dtype=np.float32).reshape(20, 3))
    return net.op("Gather", table, net.op("Clip", places, net.const(0), net.const(19)))


def quantised(net: Net, x: str) -> str:
    scale, zero = net.const(np.float32(0.1)), net.const(np.int8(0))
    return net.op("DequantizeLinear", net.op("QuantizeLinear", x, scale, zero), scale, zero)


ALONG_TIME = ["batch", "time", 16]
TIME = (ALONG_TIME, "time")
IMAGE = ["batch", 16, "time", 5]
PROVED = [
    (perceptron, *TIME),
    (perceptron, ALONG_TIME, "batch"),
    (classifier, ["batch", 3, 16, 16], "batch"),
    (heads, ALONG_TIME, "batch"),
    (class_token, ["batch", 4, 16], "batch"),
    (embedded, *TIME),
    (quantised, *TIME),
    (lambda n, x: n.op("Transpose", x, perm=[1, 2, 0]), *TIME),
    (lambda n, x: n.op("Reshape", x, ints(n, 0, 0, 4, 4)), *TIME),
    (lambda n, x: n.op("Reshape", x, ints(n, 0, -1, 2, 8)), *TIME),
    (lambda n, x: n.op("Reshape", x, ints(n, -1, 4)), ["batch", 2, 2], "batch"),
    (lambda n, x: n.op("Reshape", x, ints(n, -1, 2)), ["batch", 2, 1], "batch"),
    (lambda n, x: n.op("ReduceMean", x, axes=[0, 2], keepdims=0), [3, "time", 16], "time"),
    (lambda n, x: n.op("Cast", n.op("TopK", x, ints(n, 3), outputs=2)[1], to=1), *TIME),
    (lambda n, x: n.op("Cast", n.op("ArgMax", x, axis=-1, keepdims=0), to=1), *TIME),
    (lambda n, x: n.op("Slice", x, ints(n, 2), ints(n, 9), ints(n, 2)), *TIME),
    (lambda n, x: n.op("Concat", x, n.op("Neg", x), axis=2), *TIME),
    (lambda n, x: n.op("Softmax", x, axis=-1), ALONG_TIME, "batch"),
    (lambda n, x: n.op("Gather", x, ints(n, -1, 0), axis=1), ALONG_TIME, "batch"),
    (
        lambda n, x: n.op("Squeeze", n.op("Unsqueeze", x, ints(n, 0, 2)), ints(n, 0)),
        *TIME,
    ),
]
"""Model, sizes of its input, and the dimension along which it may be padded."""


@pytest.mark.parametrize("case", range(len(PROVED)))
@pytest.mark.parametrize("size", [1, 3, 6])
def test_what_is_proved_holds_whatever_stands_in_the_padding(case: int, size: int) -> None:
    build, shape, dim = PROVED[case]
    model = model_of(build, shape)
    inputs, outputs = paddable(model, dim)
    full = [{"batch": 4, "time": 7}.get(extent, extent) for extent in shape]
    axis = shape.index(dim)
    assert inputs == {"x": (axis,)}
    small = np.random.default_rng(1).standard_normal(full).astype(np.float32)
    small = small[
        tuple(slice(min(size, full[axis]) if a == axis else None) for a in range(len(full)))
    ]
    (wanted,) = run_onnx(model, {"x": small})
    for rest in (0.0, 1e4, -1e4, np.nan):
        large = np.full(full, rest, np.float32)
        large[tuple(map(slice, small.shape))] = small
        (found,) = run_onnx(model, {"x": large})
        kept = tuple(
            slice(small.shape[axis] if a in outputs.get(model.graph.output[0].name, ()) else None)
            for a in range(found.ndim)
        )
        np.testing.assert_allclose(found[kept], wanted, rtol=1e-4, atol=1e-5)


def mean_by_size(net: Net, x: str) -> str:
    total = net.op("ReduceSum", x, ints(net, 2))
    return net.op("Div", total, net.op("Cast", net.op("Size", x), to=TensorProto.FLOAT))


def last_step(net: Net, x: str) -> str:
    return net.op("Gather", x, net.const(np.int64(-1)), axis=1)


def positions(net: Net, x: str) -> str:
    size = net.op("Squeeze", shape_part(net, x, 1), ints(net, 0))
    steps = net.op("Range", net.const(np.int64(0)), size, net.const(np.int64(1)))
    return net.op("Add", x, net.op("Unsqueeze", net.op("Cast", steps, to=1), ints(net, 1)))


MIXED = [
    (lambda n, x: n.op("ReduceMax", x, axes=[1], keepdims=0), "ReduceMax"),
    (lambda n, x: n.op("ReduceSum", x), "ReduceSum"),
    (lambda n, x: n.op("ReduceMean", x, axes=[-2]), "ReduceMean"),
    (lambda n, x: n.op("Softmax", x, axis=1), "Softmax"),
    (lambda n, x: n.op("LayerNormalization", x, n.vector(16), axis=1), "LayerNormalization"),
    (lambda n, x: n.op("TopK", x, ints(n, 2), outputs=2, axis=1)[0], "TopK"),
    (lambda n, x: n.op("ArgMin", x, axis=1), "ArgMin"),
    (lambda n, x: n.op("CumSum", x, n.const(np.int64(1))), "CumSum"),
    (lambda n, x: n.op("Slice", x, ints(n, -1), ints(n, 2**40), ints(n, 1)), "Slice"),
    (
        lambda n, x: n.op("Slice", x, ints(n, -1), ints(n, -(2**40)), ints(n, 1), ints(n, -1)),
        "Slice",
    ),
    (lambda n, x: n.op("Pad", x, ints(n, 0, 1, 0, 0, -1, 0)), "Pad"),
    (lambda n, x: n.op("Concat", x, x, axis=1), "Concat"),
    (lambda n, x: n.op("Reshape", x, ints(n, 0, 16, -1)), "Reshape"),
    (lambda n, x: n.op("Reshape", x, ints(n, 0, -1)), "Reshape"),
    (lambda n, x: n.op("Flatten", x), "Flatten"),
    (lambda n, x: n.op("MatMul", n.const(np.ones((3, 6), np.float32)), x), "MatMul"),
    (lambda n, x: n.op("Add", x, n.const(np.ones((6, 1), np.float32))), "Add"),
    (lambda n, x: n.op("InstanceNormalization", x, n.vector(6), n.vector(6)), "InstanceNorm"),
    (lambda n, x: n.op("DynamicQuantizeLinear", x, outputs=3)[0], "DynamicQuantizeLinear"),
    (lambda n, x: n.op("NonZero", x), "NonZero"),
    (lambda n, x: n.op("Attention", x, x, x, q_num_heads=2, kv_num_heads=2), "Attention"),
    (heads, "Softmax"),
    (last_step, "Gather"),
    (mean_by_size, "Div"),
    (positions, "Add"),
    (lambda n, x: n.op("Shape", x), "the output"),
]
REFUSED = [
    *((build, says, ALONG_TIME) for build, says in MIXED),
    (lambda n, x: n.conv(x, 16, 4, kernel=3), "Conv", IMAGE),
    (lambda n, x: n.op("AveragePool", x, kernel_shape=[2, 2]), "AveragePool", IMAGE),
    (lambda n, x: n.op("Softmax", x, axis=0), "Softmax", ["time", 5]),
    (lambda n, x: n.op("Reshape", x, ints(n, 4, -1)), "Reshape", ["time", 16]),
]
"""Models whose results depend on what stands behind the end along ``time``."""


@pytest.mark.parametrize(("build", "says", "shape"), REFUSED)
def test_where_positions_are_mixed_nothing_is_proved(
    build: Build, says: str, shape: list[Any]
) -> None:
    with pytest.raises(NotProved, match=says):
        paddable(model_of(build, shape), "time")


def test_a_softmax_of_an_old_operator_set_works_along_all_axes_from_one_on() -> None:
    with pytest.raises(NotProved, match="Softmax"):
        paddable(model_of(lambda n, x: n.op("Softmax", x, axis=1), ALONG_TIME, opset=11), "time")
    assert paddable(model_of(lambda n, x: n.op("Softmax", x), ALONG_TIME, opset=11), "batch")


def test_whole_numbers_are_not_divided_by_what_is_padded() -> None:
    net = Net("m", opset=17)
    a, b = net.input("a", ["n"], "int64"), net.input("b", ["n"], "int64")
    net.output(net.op("Div", a, b), "int64")
    with pytest.raises(NotProved, match="Div"):
        paddable(net.model(), "n")


def test_a_size_that_depends_on_the_dimension_in_another_way_is_refused() -> None:
    net = Net("m", opset=17)
    net.output(net.op("Neg", net.input("x", ["n", 2])))
    net.output(net.op("Neg", net.input("mask", ["n + past"])))
    with pytest.raises(NotProved, match=r"'n \+ past' of the input 'mask'"):
        paddable(net.model(), "n")
    assert paddable(model_of(lambda n, x: n.op("Neg", x), ["n", "channels"]), "n")


def test_calls_of_functions_and_branches_are_looked_into() -> None:
    body = [helper.make_node("ReduceMax", ["a"], ["b"], axes=[1])]
    function = helper.make_function("my", "F", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    model = model_of(lambda n, x: n.op("F", x, domain="my"), ALONG_TIME)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("my", 1))
    with pytest.raises(NotProved, match="ReduceMax"):
        paddable(model, "time")
    branch = helper.make_graph(
        [helper.make_node("ReduceMax", ["x"], ["r"])], "b", [], [onnx.ValueInfoProto(name="r")]
    )
    choice = model_of(
        lambda n, x: n.op("If", n.input("c", [], "bool"), then_branch=branch, else_branch=branch),
        ALONG_TIME,
    )
    with pytest.raises(NotProved, match="If"):
        paddable(choice, "time")


def test_a_declared_shape_of_a_value_in_between_is_not_believed() -> None:
    model = model_of(lambda n, x: n.op("Neg", n.op("Reshape", x, ints(n, 16, -1))), ALONG_TIME[1:])
    wrong = helper.make_tensor_value_info(model.graph.node[0].output[0], 1, ["time", 16])
    model.graph.value_info.append(wrong)
    assert numpy_helper.to_array(model.graph.initializer[0]).tolist() == [16, -1]
    with pytest.raises(NotProved, match="Reshape"):
        paddable(model, "time")
