"""One operator at a time: Relax and the ONNX writer give what ONNX Runtime gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from collage_engine.model.importer import import_onnx
from collage_engine.support.errors import ModelError
from tests.support.model_runs import relative_error, run_onnx, run_relax
from tests.support.onednn_checks import weights
from tests.support.toolchain_cases import Net, Tensor, one_operator

X = (2, 3, 4)
IMAGE = (1, 4, 7, 6)
CASES: dict[str, ModelProto] = {}
NOT_EVERYWHERE: dict[str, ModelProto] = {}
"""What some toolchains refuse, or see in other cases already."""


def _set_apart(*names: str) -> None:
    for name in names:
        NOT_EVERYWHERE[name] = CASES.pop(name)


def case(name: str, *inputs: Tensor | None, opset: int = 17, **attributes: Any) -> None:
    """Add a model of one operator, which the name begins with."""
    CASES[name] = one_operator(name.split()[0], *inputs, opset=opset, **attributes)


def image(name: str, *more: Tensor | None, opset: int = 17, **attributes: Any) -> None:
    """Add a model of an operator on an image."""
    case(name, IMAGE, *more, opset=opset, **attributes)


def composed(
    name: str, build: Callable[..., str], *shapes: tuple[int, ...], opset: int = 17
) -> None:
    """Add a model of several operators: ``build`` gets a ``Net`` and the names of its inputs."""
    net = Net(opset)
    CASES[name] = net.model(build(net, *(net.input(*shape) for shape in shapes or (IMAGE,))))


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def batch_norm(channels: int) -> list[np.ndarray]:
    """Return scale, offset, mean and variance."""
    w = weights(channels)
    return [1 + w, w, w[::-1].copy(), 1 + np.abs(w)]


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
    case(f"{kind} plain", X, opset=18)
for kind in ("Log", "Sqrt", "Acosh"):
    composed(
        kind,
        lambda n, x, k=kind: n.add(k, n.add("Add", n.add("Abs", x), n.scalar(1.1))),
        X,
    )
case("Gelu", X, opset=20)
case("Gelu tanh", X, opset=20, approximate="tanh")
case("Celu", X, alpha=1.5)
for axis in (0, 1, 2):
    for kind, opset in (("Softmax", 13), ("Softmax", 11), ("LogSoftmax", 13), ("LogSoftmax", 9)):
        case(f"{kind} {axis} of {opset}", X, opset=opset, axis=axis)
case("Hardmax", X, opset=13, axis=1)
for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSumExp", "SumSquare"):
    axes = {} if kind == "Sum" else {"axes": [1, 2]}
    case(f"Reduce{kind}", X, opset=13, keepdims=0, **axes)
case("ArgMax", X, opset=13, axis=1, keepdims=1)
case("ArgMin", X, opset=13, axis=-1, keepdims=0)
case("Transpose", X, perm=[2, 0, 1])
case("Flatten", X, axis=2)
case("Cast int32", X, to=TensorProto.INT32)
case("Cast bool", X, to=TensorProto.BOOL)
case("IsNaN", X)
case("MeanVarianceNormalization", X, axes=[1])
for kind in ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"):
    case(kind, X, (3, 1))
for kind in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
    case(kind, X, (3, 1))
case("Mod", X, (3, 1), fmod=1)
for exponent in (2.0, 0.5, 3.0, -1.0):
    composed(
        f"Pow {exponent}", lambda n, x, e=exponent: n.add("Pow", n.add("Exp", x), n.scalar(e)), X
    )
case("Pow integer", X, np.int64(3))
case("Einsum product", (2, 3), (3, 4), equation="ij,jk->ik")
case("Einsum attention", (1, 2, 3, 4), (1, 2, 5, 4), equation="bhqd,bhkd->bhqk")
case("Einsum transposed", (2, 3, 4), (4, 5), equation="bij,jk->bki")
case("Einsum rows", (2, 3), (2, 3), equation="ij,ij->i")
image("Conv", weights(5, 4, 3, 3), weights(5), strides=[2, 1], pads=[1, 0, 2, 1])
image("Conv dilated", weights(5, 4, 2, 2), weights(5), dilations=[2, 3])
image("Conv grouped", weights(6, 2, 3, 3), weights(6), group=2)
image("Conv depthwise", weights(4, 1, 3, 3), weights(4), group=4, pads=[1] * 4)
for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
    padded: dict[str, Any] = {"auto_pad": mode, "strides": [2, 2]}
    image(f"Conv {mode}", weights(5, 4, 2, 3), weights(5), **padded)
    image(f"ConvTranspose {mode}", weights(4, 3, 3, 3), weights(3), **padded)
    for kind in ("MaxPool", "AveragePool"):
        image(f"{kind} {mode}", kernel_shape=[2, 3], **padded)
case("Conv 1d", (1, 4, 9), weights(5, 4, 3), weights(5), pads=[1, 1])
case("Conv 3d", (1, 2, 5, 4, 4), weights(3, 2, 3, 2, 2), weights(3))
TRANSPOSED = weights(4, 3, 3, 3), weights(3)
image("ConvTranspose", *TRANSPOSED, strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
image("ConvTranspose grouped", weights(4, 3, 2, 2), weights(6), group=2)
image("ConvTranspose output_shape", *TRANSPOSED, strides=[3, 2], output_shape=[20, 13])
composed(
    "ConvTranspose BatchNormalization grouped",
    lambda n, x: n.add(
        "BatchNormalization",
        n.add("ConvTranspose", x, n.randn(4, 3, 2, 2), n.randn(6), group=2),
        *map(n.const, batch_norm(6)),
    ),
)
image("MaxPool ceil", kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1)
image("AveragePool pads", kernel_shape=[3, 3], pads=[1, 1, 0, 1], strides=[2, 1])
image("AveragePool count pads", kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1)
image("GlobalAveragePool")
image("GlobalMaxPool")
image("LRN", size=3, alpha=0.3, beta=0.6, bias=1.5)
image("BatchNormalization", *batch_norm(4))
composed(
    "Relu BatchNormalization",
    lambda n, x: n.add("BatchNormalization", n.add("Relu", x), *map(n.const, batch_norm(4))),
)
image("InstanceNormalization", *batch_norm(4)[:2])
image("GroupNormalization", *batch_norm(4)[:2], num_groups=2, opset=21)
composed(
    "MeanVarianceNormalization far from zero",
    lambda n, x: n.add(
        "MeanVarianceNormalization", n.add("Floor", n.add("Add", x, n.scalar(8000))), axes=[2, 3]
    ),
)
# OpenVINO loses more digits than a candidate may.
_set_apart("MeanVarianceNormalization far from zero")
image("LayerNormalization", *batch_norm(6)[:2], axis=-1)
image("DepthToSpace", blocksize=2)
image("DepthToSpace CRD", blocksize=2, mode="CRD")
case("SpaceToDepth", (1, 4, 8, 6), blocksize=2)
BORDER = ints(0, 0, 1, 2, 0, 0, 0, 1)
image("Pad", BORDER, np.float32(0.5), mode="constant")
image("Pad reflect", BORDER, mode="reflect")
image("Pad edge", BORDER, mode="edge")
for mode, how in (
    ("nearest", "asymmetric"),
    ("nearest", "half_pixel"),
    ("linear", "half_pixel"),
    ("linear", "align_corners"),
    ("linear", "asymmetric"),
    ("cubic", "half_pixel"),
):
    sampled = {"mode": mode, "coordinate_transformation_mode": how}
    image(f"Resize {mode} {how}", None, floats(1, 1, 2, 3), **sampled)
    image(f"Resize sizes {mode} {how}", None, None, ints(1, 4, 5, 9), **sampled)
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
        name = f"Resize by {scales} {mode} {more}"
        image(name, None, floats(*scales), mode=mode, opset=19, **more)
image("Resize 10", floats(1, 1, 2, 2), opset=10)
image("Upsample 9", floats(1, 1, 2, 2), opset=9)
image("Clip", np.float32(-0.3), np.float32(0.7))
image("Clip low", np.float32(-0.3))
image("Clip high", None, np.float32(0.3))
image("Clip 6", min=-0.5, max=0.5, opset=9)
composed("Clip computed", lambda n, x: n.add("Clip", x, n.add("ReduceMin", x, keepdims=0)))
image("Tile", ints(1, 2, 1, 3))
image("Expand", ints(3, 1, 1, 1))
image("Squeeze", ints(0))
image("Unsqueeze", ints(0, -1))
image("CumSum", np.int64(2), exclusive=1)
image("CumSum reverse", np.int64(2), reverse=1)
composed("TopK", lambda n, x: n.add("TopK", x, n.const(ints(3)), outputs=2, axis=2)[0])
image("Trilu", np.int64(1), upper=0)
image("Slice", ints(-1, 1), ints(-9, 5), ints(2, 3), ints(-2, 2))
image("Slice 9", starts=[-2, 1], ends=[99, -1], axes=[2, -1], opset=9)
image("Slice 9 first axes", starts=[0, 1], ends=[1, 3], opset=9)
image("Gather negative", ints([0, -1], [-2, 3]), axis=3)
image("GatherElements", np.full((1, 4, 7, 2), -3), axis=3)
image("GatherND", ints([0, 1], [0, -1]))
image("ScatterND", ints([0, 1], [0, -1]), weights(2, 7, 6))
for how in ("none", "add", "max"):
    PLACES = np.indices((1, 4, 7, 2))[3] - 1
    image(f"ScatterElements {how}", PLACES, weights(1, 4, 7, 2), axis=3, reduction=how, opset=18)
_set_apart("ScatterElements add", "ScatterElements max")
composed("Where", lambda n, x: n.add("Where", n.add("Greater", x, n.scalar(0)), x, n.add("Neg", x)))
composed("Sum of three", lambda n, x: n.add("Sum", x, n.add("Exp", x), x))
composed("Max of three", lambda n, x: n.add("Max", x, n.add("Neg", x), n.scalar(0.1)))
composed("Mean of three", lambda n, x: n.add("Mean", x, n.add("Exp", x), x))
composed("Split even", lambda n, x: n.add("Split", x, outputs=2, axis=1)[1], opset=13)
FACTORS: dict[str, Any] = {"transB": 1, "alpha": 0.5, "beta": 2.0}
case("Gemm", (4, 42), weights(5, 42), weights(5), **FACTORS)
composed(
    "Dynamic quantize",
    lambda n, x: n.add("DequantizeLinear", *n.add("DynamicQuantizeLinear", x, outputs=3)),
)
for kind, extents, build in (
    (
        "one hot",
        (3, 2),
        lambda n, x: n.add("OneHot", x, n.const(np.int64(4)), n.const(floats(0.5, 2.0)), axis=1),
    ),
    ("embedding", (2, 3), lambda n, x: n.add("Gather", n.randn(9, 4), x, axis=0)),
):
    net = Net()
    CASES[kind] = net.model(build(net, net.input(*extents, element=TensorProto.INT64)))
case("ReverseSequence", (4, 4, 3), ints(1, 4, 2, 3))
case("ReverseSequence turned", (4, 4, 3), ints(1, 4, 2, 3), time_axis=1, batch_axis=0)
case("Attention 23", *[(1, 2, 5, 8)] * 3, opset=23)


@pytest.mark.parametrize("name", [*CASES, *NOT_EVERYWHERE])
def test_relax_agrees_with_onnx_runtime(name: str) -> None:
    model = (CASES | NOT_EVERYWHERE)[name]
    imported = import_onnx(model, "case.onnx")
    inputs = imported.random_inputs(7)
    wanted = run_onnx(model, inputs)[0]
    assert imported.outputs[0][1].shape == wanted.shape
    given = run_relax(imported, [inputs[n] for n, _ in imported.inputs])[0]
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
    given = [floats(*scales)] if scales else [None, ints(*sizes)]
    model = one_operator("Resize", shape, None, *given, opset=19, **{"mode": "linear", **more})
    graph = import_onnx(model, "resize.onnx").graph
    assert [graph.nodes[index].op for index in graph.operators] == ["onnx:Resize"]


def test_a_scatter_that_reaches_a_part_of_the_data_stays_onnx() -> None:
    model = one_operator(
        "ScatterElements", (1, 4, 7, 6), ints(1).reshape(1, 1, 1, 1), weights(1, 1, 1, 1)
    )
    graph = import_onnx(model, "scatter.onnx").graph
    assert [graph.nodes[index].op for index in graph.operators] == ["onnx:ScatterElements"]


@pytest.mark.parametrize("axes", [(), (ints(),)], ids=["none", "empty"])
def test_a_reduction_over_no_axes_stays_onnx(axes: tuple) -> None:
    """It still squares, which TVM's converter leaves out."""
    model = one_operator("ReduceSumSquare", X, *axes, opset=18, noop_with_empty_axes=1)
    graph = import_onnx(model, "case.onnx").graph
    assert [node.op for node in graph.nodes] == ["onnx:ReduceSumSquare"]
    x = np.linspace(-40, 60, 24, dtype=np.float32).reshape(X)
    (y,) = run_onnx(model, {model.graph.input[0].name: x})
    np.testing.assert_allclose(y, np.square(x), rtol=1e-6)


def test_a_normalization_with_a_mean_for_each_value_is_refused() -> None:
    model = one_operator("BatchNormalization", X, *batch_norm(3), opset=8, spatial=0)
    with pytest.raises(ModelError, match=r"spatial=0.*operator set 9"):
        import_onnx(model, "case.onnx")
