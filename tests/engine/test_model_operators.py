"""One operator at a time: Relax and the ONNX writer give what ONNX Runtime gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collage_engine.model.importer import import_onnx
from tests.support.model_runs import relative_error, run_onnx, run_relax
from tests.zoo.net import Net

Case = Callable[[Net], str]
CASES: dict[str, tuple[Case, int, str]] = {}
NOT_EVERYWHERE: dict[str, tuple[Case, int, str]] = {}
"""What some toolchains refuse, or see in other cases already."""


def case(name: str, build: Case, opset: int = 17, dtype: str = "float32") -> None:
    """``dtype``: element type of the result."""
    CASES[name] = build, opset, dtype


def _set_apart(*names: str) -> None:
    for name in names:
        NOT_EVERYWHERE[name] = CASES.pop(name)


def unary(kind: str, opset: int = 17, dtype: str = "float32", positive: bool = False, **more: Any):
    def build(net: Net) -> str:
        x = net.input("x", [2, 3, 4])
        if positive:
            x = net.op("Add", net.op("Abs", x), net.const(np.float32(1.1)))
        return net.op(kind, x, **more)

    label = "_".join([kind, *(f"{k}{v}" for k, v in more.items()), str(opset)])
    case(label, build, opset, dtype)


for kind in (
    "Abs",
    "Atan",
    "Asinh",
    "Ceil",
    "Cos",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mish",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Identity",
):
    unary(kind, 18 if kind == "Mish" else 17)
for kind in ("Log", "Sqrt", "Acosh"):
    unary(kind, positive=True)
unary("Gelu", 20)
unary("Gelu", 20, approximate="tanh")
unary("Celu", 17, alpha=1.5)
for axis in (0, 1, 2):
    unary("Softmax", 13, axis=axis)
    unary("Softmax", 11, axis=axis)
    unary("LogSoftmax", 13, axis=axis)
    unary("LogSoftmax", 9, axis=axis)
unary("Hardmax", 13, axis=1)
for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSumExp", "SumSquare"):
    unary(f"Reduce{kind}", 13, **({} if kind == "Sum" else {"axes": [1, 2]}), keepdims=0)
unary("ArgMax", 13, "int64", axis=1, keepdims=1)
unary("ArgMin", 13, "int64", axis=-1, keepdims=0)
unary("Transpose", perm=[2, 0, 1])
unary("Flatten", axis=2)
unary("Cast", to=6, dtype="int32")
unary("Cast", to=9, dtype="bool")
unary("IsNaN", dtype="bool")
unary("MeanVarianceNormalization", axes=[1])


def binary(kind: str, dtype: str = "float32", shape: tuple[int, ...] = (3, 1), **more: Any) -> None:
    def build(net: Net) -> str:
        return net.op(kind, net.input("x", [2, 3, 4]), net.input("y", list(shape)), **more)

    case(kind, build, dtype=dtype)


for kind in ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"):
    binary(kind)
for kind in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
    binary(kind, "bool")
binary("Mod", fmod=1)
for exponent in (2.0, 0.5, 3.0, -1.0):
    case(
        f"Pow{exponent}",
        lambda net, e=exponent: net.op(
            "Pow", net.op("Exp", net.input("x", [2, 3])), net.const(np.float32(e))
        ),
    )
case("PowInt", lambda net: net.op("Pow", net.input("x", [2, 3]), net.const(np.int64(3))))
for equation, shapes in (
    ("ij,jk->ik", ([2, 3], [3, 4])),
    ("bhqd,bhkd->bhqk", ([1, 2, 3, 4], [1, 2, 5, 4])),
    ("bij,jk->bki", ([2, 3, 4], [4, 5])),
    ("ij,ij->i", ([2, 3], [2, 3])),
):
    case(
        f"Einsum {equation}",
        lambda net, e=equation, s=shapes: net.op(
            "Einsum", net.input("x", s[0]), net.input("y", s[1]), equation=e
        ),
    )


def image(name: str, build: Callable[[Net, str], str], shape=(1, 4, 7, 6), opset: int = 17) -> None:
    case(name, lambda net: build(net, net.input("x", list(shape))), opset)


def _conv(net: Net, x: str, *shape: int, kind: str = "Conv", **more: Any) -> str:
    return net.op(kind, x, net.weight(*shape, fan_in=9), net.vector(more.pop("bias")), **more)


image("Conv", lambda n, x: _conv(n, x, 5, 4, 3, 3, bias=5, strides=[2, 1], pads=[1, 0, 2, 1]))
image("Conv dilated", lambda n, x: _conv(n, x, 5, 4, 2, 2, bias=5, dilations=[2, 3]))
image("Conv grouped", lambda n, x: _conv(n, x, 6, 2, 3, 3, bias=6, group=2))
image("Conv depthwise", lambda n, x: _conv(n, x, 4, 1, 3, 3, bias=4, group=4, pads=[1] * 4))
for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
    image(
        f"Conv {mode}",
        lambda n, x, m=mode: _conv(n, x, 5, 4, 2, 3, bias=5, auto_pad=m, strides=[2, 2]),
    )
    image(
        f"MaxPool {mode}",
        lambda n, x, m=mode: n.op("MaxPool", x, kernel_shape=[2, 3], auto_pad=m, strides=[2, 2]),
    )
    image(
        f"AveragePool {mode}",
        lambda n, x, m=mode: n.op(
            "AveragePool", x, kernel_shape=[2, 3], auto_pad=m, strides=[2, 2]
        ),
    )
    image(
        f"ConvTranspose {mode}",
        lambda n, x, m=mode: _conv(
            n, x, 4, 3, 3, 3, kind="ConvTranspose", bias=3, auto_pad=m, strides=[2, 2]
        ),
    )
image("Conv1d", lambda n, x: _conv(n, x, 5, 4, 3, bias=5, pads=[1, 1]), (1, 4, 9))
image("Conv3d", lambda n, x: _conv(n, x, 3, 2, 3, 2, 2, bias=3), (1, 2, 5, 4, 4))
image(
    "ConvTranspose",
    lambda n, x: _conv(
        n,
        x,
        4,
        3,
        3,
        3,
        kind="ConvTranspose",
        bias=3,
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        output_padding=[1, 1],
    ),
)
image(
    "ConvTranspose grouped",
    lambda n, x: _conv(n, x, 4, 3, 2, 2, kind="ConvTranspose", bias=6, group=2),
)
image(
    "ConvTranspose output_shape",
    lambda n, x: _conv(
        n, x, 4, 3, 3, 3, kind="ConvTranspose", bias=3, strides=[3, 2], output_shape=[20, 13]
    ),
)
image(
    "ConvTranspose BatchNormalization grouped",
    lambda n, x: n.batch_norm(
        _conv(n, x, 4, 3, 2, 2, kind="ConvTranspose", bias=6, group=2), 6, gain=2.0
    ),
)
image(
    "MaxPool ceil",
    lambda n, x: n.op("MaxPool", x, kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1),
)
image(
    "AveragePool pads",
    lambda n, x: n.op("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 0, 1], strides=[2, 1]),
)
image(
    "AveragePool count pads",
    lambda n, x: n.op("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
)
for kind in ("GlobalAveragePool", "GlobalMaxPool"):
    image(kind, lambda n, x, k=kind: n.op(k, x))
image("LRN", lambda n, x: n.op("LRN", x, size=3, alpha=0.3, beta=0.6, bias=1.5))
image("BatchNormalization", lambda n, x: n.batch_norm(x, 4))
image("Relu BatchNormalization", lambda n, x: n.batch_norm(n.op("Relu", x), 4))
image(
    "InstanceNormalization",
    lambda n, x: n.op("InstanceNormalization", x, n.vector(4, 1), n.vector(4)),
)
image(
    "GroupNormalization",
    lambda n, x: n.op("GroupNormalization", x, n.vector(4, 1), n.vector(4), num_groups=2),
    opset=21,
)
for p in (1, 2):
    image(f"LpNormalization {p}", lambda n, x, p=p: n.op("LpNormalization", x, p=p, axis=1))
image(
    "LpNormalization of nothing",
    lambda n, x: n.op("LpNormalization", n.op("Mul", x, n.const(np.float32(0)))),
)
image(
    "MeanVarianceNormalization far from zero",
    lambda n, x: n.op(
        "MeanVarianceNormalization",
        n.op("Floor", n.op("Add", x, n.const(np.float32(8000)))),
        axes=[2, 3],
    ),
)
# OpenVINO loses more digits than a candidate may.
_set_apart("MeanVarianceNormalization far from zero")
image("LayerNormalization", lambda n, x: n.layer_norm(x, 6))
image("DepthToSpace", lambda n, x: n.op("DepthToSpace", x, blocksize=2))
image("DepthToSpace CRD", lambda n, x: n.op("DepthToSpace", x, blocksize=2, mode="CRD"))
image("SpaceToDepth", lambda n, x: n.op("SpaceToDepth", x, blocksize=2), (1, 4, 8, 6))
for mode in ("constant", "reflect", "edge"):
    image(
        f"Pad {mode}",
        lambda n, x, m=mode: n.op(
            "Pad",
            x,
            n.const([0, 0, 1, 2, 0, 0, 0, 1], np.int64),
            *([n.const(np.float32(0.5))] if m == "constant" else []),
            mode=m,
        ),
    )
for mode, how in (
    ("nearest", "asymmetric"),
    ("nearest", "half_pixel"),
    ("linear", "half_pixel"),
    ("linear", "align_corners"),
    ("linear", "asymmetric"),
    ("cubic", "half_pixel"),
):
    image(
        f"Resize {mode} {how}",
        lambda n, x, m=mode, h=how: n.op(
            "Resize",
            x,
            "",
            n.const([1, 1, 2, 3], np.float32),
            mode=m,
            coordinate_transformation_mode=h,
        ),
    )
    image(
        f"Resize sizes {mode} {how}",
        lambda n, x, m=mode, h=how: n.op(
            "Resize",
            x,
            "",
            "",
            n.const([1, 4, 5, 9], np.int64),
            mode=m,
            coordinate_transformation_mode=h,
        ),
    )
for mode, more in (
    ("nearest", {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}),
    ("nearest", {"nearest_mode": "ceil"}),
    ("nearest", {"nearest_mode": "round_prefer_ceil"}),
    ("nearest", {}),
    ("linear", {}),
    ("cubic", {}),
    ("cubic", {"cubic_coeff_a": -0.5}),
    ("linear", {"coordinate_transformation_mode": "asymmetric"}),
    ("linear", {"coordinate_transformation_mode": "align_corners"}),
    ("linear", {"coordinate_transformation_mode": "pytorch_half_pixel"}),
    ("cubic", {"exclude_outside": 1}),
):
    for scales in ([1, 1, 2, 1.5], [1, 1, 3, 0.5]):
        image(
            f"Resize by {scales} {mode} {more}",
            lambda n, x, m=mode, s=scales, a=more: n.op(
                "Resize", x, "", n.const(s, np.float32), mode=m, **a
            ),
            opset=19,
        )
image("Resize 10", lambda n, x: n.op("Resize", x, n.const([1, 1, 2, 2], np.float32)), opset=10)
image("Upsample 9", lambda n, x: n.op("Upsample", x, n.const([1, 1, 2, 2], np.float32)), opset=9)
image("Clip", lambda n, x: n.op("Clip", x, n.const(np.float32(-0.3)), n.const(np.float32(0.7))))
image("Clip low", lambda n, x: n.op("Clip", x, n.const(np.float32(-0.3))))
image("Clip high", lambda n, x: n.op("Clip", x, "", n.const(np.float32(0.3))))
image("Clip 6", lambda n, x: n.op("Clip", x, min=-0.5, max=0.5), opset=9)
image("Clip computed", lambda n, x: n.op("Clip", x, n.op("ReduceMin", x, keepdims=0)))
image("Tile", lambda n, x: n.op("Tile", x, n.const([1, 2, 1, 3], np.int64)))
image("Expand", lambda n, x: n.op("Expand", x, n.const([3, 1, 1, 1], np.int64)))
image("Squeeze", lambda n, x: n.op("Squeeze", x, n.const([0], np.int64)))
image("Unsqueeze", lambda n, x: n.op("Unsqueeze", x, n.const([0, -1], np.int64)))
image("CumSum", lambda n, x: n.op("CumSum", x, n.const(np.int64(2)), exclusive=1))
image("CumSum reverse", lambda n, x: n.op("CumSum", x, n.const(np.int64(2)), reverse=1))
image("TopK", lambda n, x: n.op("TopK", x, n.const([3], np.int64), outputs=2, axis=2)[0])
image("Trilu", lambda n, x: n.op("Trilu", x, n.const(np.int64(1)), upper=0))
image(
    "Slice",
    lambda n, x: n.op(
        "Slice", x, *(n.const(v, np.int64) for v in ([-1, 1], [-9, 5], [2, 3], [-2, 2]))
    ),
)
image(
    "Slice 9", lambda n, x: n.op("Slice", x, starts=[-2, 1], ends=[99, -1], axes=[2, -1]), opset=9
)
image("Slice 9 first axes", lambda n, x: n.op("Slice", x, starts=[0, 1], ends=[1, 3]), opset=9)
image(
    "Gather negative", lambda n, x: n.op("Gather", x, n.const([[0, -1], [-2, 3]], np.int64), axis=3)
)
image(
    "GatherElements",
    lambda n, x: n.op("GatherElements", x, n.const(np.full((1, 4, 7, 2), -3), np.int64), axis=3),
)
image("GatherND", lambda n, x: n.op("GatherND", x, n.const([[0, 1], [0, -1]], np.int64)))
image(
    "ScatterND",
    lambda n, x: n.op(
        "ScatterND", x, n.const([[0, 1], [0, -1]], np.int64), n.weight(2, 7, 6, fan_in=1)
    ),
)
image(
    "ScatterElements",
    lambda n, x: n.op(
        "ScatterElements",
        x,
        n.const(np.full((1, 1, 1, 2), [-1, 2]), np.int64),
        n.weight(1, 1, 1, 2, fan_in=1),
        axis=3,
    ),
)
for axis, indices in (
    (3, (1, 4, 3, 2)),
    (2, (1, 2, 7, 3)),
    (1, (1, 4, 5, 4)),
    (0, (1, 1, 1, 1)),
    (-1, (1, 3, 5, 6)),
):
    for how in ("none", "add", "max"):
        image(
            f"ScatterElements {how} {axis} {indices}",
            lambda n, x, a=axis, s=indices, h=how: n.op(
                "ScatterElements",
                x,
                n.const(np.indices(s)[a] * (1 if a else 0), np.int64),
                n.weight(*s, fan_in=1),
                axis=a,
                reduction=h,
            ),
            opset=18,
        )
_set_apart(*(n for n in CASES if "Elements add" in n or "Elements max" in n))
image(
    "Where",
    lambda n, x: n.op("Where", n.op("Greater", x, n.const(np.float32(0))), x, n.op("Neg", x)),
)
image("Sum of three", lambda n, x: n.op("Sum", x, n.op("Exp", x), x))
image("Max of three", lambda n, x: n.op("Max", x, n.op("Neg", x), n.const(np.float32(0.1))))
image("Mean of three", lambda n, x: n.op("Mean", x, n.op("Exp", x), x))
image("Split even", lambda n, x: n.op("Split", x, outputs=2, axis=1)[1], opset=13)
image(
    "Gemm",
    lambda n, x: n.op(
        "Gemm",
        n.op("Flatten", x, axis=2),
        n.weight(5, 42, fan_in=42),
        n.vector(5),
        transB=1,
        alpha=0.5,
        beta=2.0,
    ),
)
image(
    "Dynamic quantize",
    lambda n, x: n.op("DequantizeLinear", *n.op("DynamicQuantizeLinear", x, outputs=3)),
)
case(
    "one hot",
    lambda n: n.op(
        "OneHot",
        n.input("x", [3, 2], "int64"),
        n.const(np.int64(4)),
        n.const([0.5, 2.0], np.float32),
        axis=1,
    ),
)
for axes in ({}, {"time_axis": 1, "batch_axis": 0}):
    case(
        f"ReverseSequence {axes}",
        lambda n, axes=axes: n.op(
            "ReverseSequence",
            n.input("x", [4, 4, 3]),
            n.const([1, 4, 2, 3], np.int64),
            **axes,
        ),
    )
case("embedding", lambda n: n.op("Gather", n.weight(9, 4), n.input("x", [2, 3], "int64"), axis=0))


def _attention(net: Net) -> str:
    q, k, v = (net.input(x, [1, 2, 5, 8]) for x in "qkv")
    return net.op("Attention", q, k, v)


case("Attention 23", _attention, 23)


@pytest.mark.parametrize("name", [*CASES, *NOT_EVERYWHERE])
def test_relax_agrees_with_onnx_runtime(name: str) -> None:
    build, opset, dtype = (CASES | NOT_EVERYWHERE)[name]
    net = Net("case", opset=opset, seed=1)
    result = build(net)
    net.output(result, dtype)
    model = net.model()
    imported = import_onnx(model, "case.onnx")
    inputs = imported.random_inputs(7)
    wanted = run_onnx(model, inputs)[0]
    assert imported.outputs[0][1].shape == wanted.shape
    given = run_relax(imported.module, [inputs[n] for n, _ in imported.inputs])[0]
    assert given.dtype == wanted.dtype
    assert relative_error(given, wanted) <= 1e-5


@pytest.mark.parametrize(
    ("shape", "scales", "sizes", "more"),
    [
        ((1, 4, 7, 6), [1, 1, 1.5, 1], None, {}),
        ((1, 4, 7, 6), None, [1, 4, 1, 1], {"coordinate_transformation_mode": "align_corners"}),
        ((1, 4, 7, 6), None, [2, 3, 9, 4], {}),
        ((1, 4, 7, 6), None, [1, 4, 3, 4], {"antialias": 1}),
        ((1, 4, 7, 6), None, [9, 5], {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}),
        ((1, 4, 6), [1, 1, 2], None, {"coordinate_transformation_mode": "align_corners"}),
        ((1, 4, 6), [1, 1, 2], None, {"mode": "cubic"}),
    ],
)
def test_a_resize_that_relax_samples_otherwise_stays_onnx(
    shape: tuple[int, ...], scales: list[float] | None, sizes: list[int] | None, more: dict
) -> None:
    net = Net("resize", opset=19)
    x = net.input("x", list(shape))
    given = [net.const(scales, np.float32)] if scales else ["", net.const(sizes, np.int64)]
    net.output(net.op("Resize", x, "", *given, **{"mode": "linear", **more}))
    graph = import_onnx(net.model(), "resize.onnx").graph
    assert [graph.nodes[index].op for index in graph.operators] == ["onnx:Resize"]
