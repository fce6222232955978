"""True values at the ends of types, against sums of int64 and of float64 in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from onnx import ModelProto, TensorProto, helper

from collage_engine.lowering import reference
from collage_engine.lowering.definitions import by_definition
from collage_engine.lowering.reference import run_onnx
from collage_engine.model.onnx_outer_values import with_branches
from tests.support.written import written

MICROSOFT = "com.microsoft"
INTEGER_KERNELS = {
    *("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"),
    *("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QGemm", "QAttention"),
}
f32 = np.float32


def one_operator(
    op: str,
    given: Sequence[np.ndarray | None],
    *,
    constants: Sequence[int] = (),
    outputs: int = 1,
    opset: int = 17,
    domain: str = "",
    **attributes: Any,
) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and its inputs; some of them are initializers, None is left out."""
    names = ["" if value is None else f"i{k}" for k, value in enumerate(given)]
    arrays = {name: np.asarray(a) for name, a in zip(names, given, strict=True) if name}
    fixed = {f"i{k}": arrays.pop(f"i{k}") for k in constants}
    types = ((n, str(a.dtype).replace("float32", "float"), a.shape) for n, a in arrays.items())
    inputs = ", ".join(f"{kind}{[*shape] or ''} {name}" for name, kind, shape in types)
    results = ", ".join(f"y{k}" for k in range(outputs))
    node = f"{results} = {domain}{'.' if domain else ''}{op}({', '.join(names)})"
    text = f"({inputs}) => ({results}) {{ {node} }}"
    model = written(text, fixed, opset=opset, more=f'"{MICROSOFT}": 1')
    model.graph.node[0].attribute.extend(
        map(helper.make_attribute, attributes, attributes.values())
    )
    return model, arrays


def true_outputs(op: str, given: Sequence[Any], **more: Any) -> list[np.ndarray]:
    """What the judge says; no kernel for whole numbers may have had a part in it."""
    model, feeds = one_operator(op, given, **more)
    left = {node.op_type for node in with_branches(by_definition(model).graph.node)}
    assert not left & INTEGER_KERNELS
    return run_onnx(model, feeds)


def full_range(dtype: str, *shape: int) -> np.ndarray:
    """Random values of an 8-bit type, the ends of its range among them."""
    ends = np.iinfo(dtype)
    random = np.random.default_rng(len(shape) + shape[-1])
    values = random.choice([ends.min, ends.max, *random.integers(ends.min, ends.max, 6)], shape)
    return values.astype(dtype)


def steps(value: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """Values in steps, in the type of the zero point."""
    ends = np.iinfo(zero.dtype)
    return np.clip(np.rint(value) + zero.astype(np.int64), ends.min, ends.max).astype(zero.dtype)


TYPES = [(a, b) for a in ("uint8", "int8") for b in ("uint8", "int8")]


def zero_of(dtype: str, value: int) -> np.ndarray:
    return np.array(value if dtype == "uint8" else value - 128, dtype)


def test_products_that_saturate_16_bits() -> None:
    """Pairs of products of uint8 and int8 exceed int16; kernels without VNNI add them in it."""
    a, b = np.array([[255, 255]], np.uint8), np.array([[127], [127]], np.int8)
    assert true_outputs("MatMulInteger", [a, b]) == [[[64770]]]


@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize("types", TYPES)
def test_a_matrix_product(types: tuple[str, str], constants: tuple[int, ...]) -> None:
    a, b = full_range(types[0], 2, 7, 64), full_range(types[1], 64, 9)
    plain = a.astype(np.int64) @ b.astype(np.int64)
    (y,) = true_outputs("MatMulInteger", [a, b], opset=10, constants=constants)
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, plain)
    zero, zeros = zero_of(types[0], 3), full_range(types[1], 9)
    (y,) = true_outputs("MatMulInteger", [a, b, zero, zeros], constants=constants)
    wanted = (a.astype(np.int64) - zero) @ (b.astype(np.int64) - zeros.astype(np.int64))
    np.testing.assert_array_equal(y, wanted)


def test_a_zero_point_of_each_row() -> None:
    a, b, zeros = full_range("uint8", 7, 64), full_range("int8", 64, 9), full_range("uint8", 7)
    (y,) = true_outputs("MatMulInteger", [a, b, zeros])
    wanted = (a.astype(np.int64) - zeros.astype(np.int64)[:, None]) @ b.astype(np.int64)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("opset", [10, 21])
@pytest.mark.parametrize("types", TYPES)
def test_a_quantised_matrix_product(types: tuple[str, str], opset: int) -> None:
    a, b = full_range(types[0], 7, 64), full_range(types[1], 64, 9)
    zeros = zero_of(types[0], 120), zero_of(types[1], 130), zero_of(types[0], 100)
    scale, scales = f32(0.5), np.linspace(0.1, 0.3, 9, dtype=f32)
    product = (a.astype(np.int64) - zeros[0]) @ (b.astype(np.int64) - zeros[1])
    value = product * float(scale) * scales.astype(float)
    y_scale = f32(np.abs(value).max() / 150)
    given = [a, scale, zeros[0], b, scales, np.repeat(zeros[1], 9), y_scale, zeros[2]]
    (y,) = true_outputs("QLinearMatMul", given, opset=opset, constants=(4, 5, 7))
    assert y.dtype == a.dtype and len(np.unique(y)) > 20
    np.testing.assert_array_equal(y, steps(value / y_scale, zeros[2]))


def windows(x: np.ndarray, kernel: np.ndarray, group: int = 1) -> np.ndarray:
    """A convolution with a padding of 1 and strides of 2, in int64."""
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    found = sliding_window_view(padded, kernel.shape[2:], axis=(2, 3))[:, :, ::2, ::2]
    n, c, h, w, *_ = found.shape
    found = found.reshape(n, group, c // group, h, w, *kernel.shape[2:])
    kernel = kernel.astype(np.int64).reshape(group, -1, *kernel.shape[1:])
    return np.einsum("ngchwij,gocij->ngohw", found, kernel).reshape(n, -1, h, w)


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("types", TYPES)
def test_convolutions(types: tuple[str, str], group: int) -> None:
    """300 channels of 3 x 3: a sum of float32 would not be exact."""
    x, w = full_range(types[0], 1, 300, 9, 9), full_range(types[1], 8, 300 // group, 3, 3)
    zero, w_zero = zero_of(types[0], 7), zero_of(types[1], 120)
    more: dict[str, Any] = {"pads": [1] * 4, "strides": [2, 2], "group": group}
    wide, kernel = x.astype(np.int64) - zero, w.astype(np.int64) - w_zero
    product = windows(wide, kernel, group)
    if group == 1:
        assert np.abs(product).max() > 2**24
    (y,) = true_outputs("ConvInteger", [x, w, zero, w_zero], opset=10, constants=(1,), **more)
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, product)
    bias = np.arange(-(2**27), 2**27, 2**25, dtype=np.int32)
    scales, y_zero = np.linspace(0.1, 0.3, 8, dtype=f32), zero_of(types[0], 100)
    scale = f32(np.abs(product).max() / 900)
    zeros = np.repeat(w_zero, 8)
    given = [x, f32(0.5), zero, w, scales, zeros, scale, y_zero, bias]
    (y,) = true_outputs("QLinearConv", given, constants=(3, 4, 5, 8), **more)
    by_channel = scales.astype(float).reshape(-1, 1, 1)
    wanted = steps((product + bias.reshape(-1, 1, 1)) * 0.5 * by_channel / scale, y_zero)
    np.testing.assert_array_equal(y, wanted)


def test_a_convolution_along_one_axis() -> None:
    x, w = full_range("uint8", 2, 3, 20), full_range("int8", 4, 3, 5)
    (y,) = true_outputs("ConvInteger", [x, w])
    found = sliding_window_view(x.astype(np.int64), 5, axis=2)
    np.testing.assert_array_equal(y, np.einsum("ncwi,oci->now", found, w.astype(np.int64)))


@pytest.mark.parametrize("types", TYPES)
def test_products_of_the_runtime_itself(types: tuple[str, str]) -> None:
    a, b = full_range(types[0], 7, 64), full_range(types[1], 64, 9)
    zero, b_zero = zero_of(types[0], 9), zero_of(types[1], 99)
    scale, scales, bias = f32(0.02), np.linspace(0.01, 0.03, 9, dtype=f32), np.arange(9, dtype=f32)
    product = (a.astype(np.int64) - zero) @ (b.astype(np.int64) - b_zero)
    given = [a, b, scale, scales, zero, np.repeat(b_zero, 9), bias]
    (y,) = true_outputs("MatMulIntegerToFloat", given, domain=MICROSOFT)
    wanted = product * float(scale) * scales.astype(float) + bias
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
    c = np.arange(9, dtype=np.int32) * 10_000
    given = [a.T, scale, zero, b.T, scales, np.repeat(b_zero, 9), c]
    options: dict[str, Any] = {"transA": 1, "transB": 1, "alpha": 0.5, "domain": MICROSOFT}
    (y,) = true_outputs("QGemm", given, **options)
    wanted = 0.5 * float(scale) * scales.astype(float) * (product + c)
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
    (y,) = true_outputs("QGemm", [*given, f32(3), zero], **options)
    np.testing.assert_array_equal(y, steps(wanted / 3, zero))


@pytest.mark.parametrize("b_type", ["uint8", "int8"])
def test_a_product_that_quantises_its_input(b_type: str) -> None:
    x = np.random.default_rng(0).standard_normal((7, 64)).astype(f32)
    b, zero = full_range(b_type, 64, 9), zero_of(b_type, 99)
    low, high = min(0, x.min()), max(0, x.max())
    scale = (high - low) / f32(255)
    offset = np.clip(np.rint(-low / scale), 0, 255)
    data = np.clip(np.rint(x / scale) + offset, 0, 255) - offset
    given = [x, b, f32(0.01), zero, np.ones(9, f32)]
    (y,) = true_outputs("DynamicQuantizeMatMul", given, domain=MICROSOFT)
    wanted = data.astype(float) @ (b.astype(float) - zero) * scale * 0.01 + 1
    np.testing.assert_allclose(y, wanted, rtol=1e-5)


def test_attention_over_whole_numbers() -> None:
    data, weight = full_range("uint8", 1, 5, 16), full_range("int8", 16, 48)
    zero, weight_zero, bias = np.uint8(128), np.int8(0), np.linspace(-1, 1, 48, dtype=f32)
    scale, weight_scale = f32(0.01), f32(0.004)
    given = [data, weight, bias, scale, weight_scale, None, zero, weight_zero]
    (y,) = true_outputs("QAttention", given, domain=MICROSOFT, num_heads=2)
    wide = (data[0].astype(float) - 128) * scale @ (weight.astype(float) * weight_scale) + bias
    q, k, v = (part.reshape(5, 2, 8).swapaxes(0, 1) for part in np.split(wide, 3, axis=1))
    scores = np.exp(q @ k.swapaxes(1, 2) / 8**0.5)
    wanted = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(1, 5, 16)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


def test_an_lstm_that_quantises_its_inputs() -> None:
    x = np.random.default_rng(0).standard_normal((4, 2, 32)).astype(f32)
    w, r = full_range("int8", 1, 32, 32), full_range("int8", 1, 8, 32)
    zero = np.zeros(1, np.int8)
    given = [x, w, r, *[None] * 5, f32([0.002]), zero, f32([0.004]), zero]
    more: dict[str, Any] = {"domain": MICROSOFT, "hidden_size": 8, "constants": (1, 2, 9, 11)}
    model, _ = one_operator("DynamicQuantizeLSTM", given, outputs=3, **more)
    nodes = by_definition(model).graph.node
    makers = {node.output[0]: node for node in nodes}
    assert {makers[nodes[-1].input[k]].attribute[0].i for k in (1, 2, 9, 11)} == {TensorProto.UINT8}
    _, last, _ = true_outputs("DynamicQuantizeLSTM", given, outputs=3, **more)
    hidden, cell = np.zeros((2, 2, 8))
    for step in x:
        gates = step @ (w[0] * 0.002) + hidden @ (r[0] * 0.004)
        i, o, f = (1 / (1 + np.exp(-part)) for part in np.split(gates, 4, axis=1)[:3])
        cell = f * cell + i * np.tanh(gates[:, 24:])
        hidden = o * np.tanh(cell)
    np.testing.assert_allclose(last[0], hidden, atol=0.02)


IN_BRANCHES = """
(uint8[1,2] a) => (int32[1,1] y) {
    first = own.Product(a, b)
    y = Loop(turns, yes, first) <
        body = body (int64 turn, bool on, int32[1,1] sum) => (bool goes_on, int32[1,1] next) {
            chosen = If(on) <
                then_branch = then () => (int32[1,1] inner) { inner = MatMulInteger(a, b) },
                else_branch = other () => (int32[1,1] same) { same = Identity(sum) }
            >
            next = Add(sum, chosen)
            goes_on = Identity(on)
        }
    >
}
<domain: "own", opset_import: ["": 17]> Product (p, q) => (r) { r = MatMulInteger(p, q) }
"""


def in_branches() -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A product within an If within a Loop, and one in a local function."""
    constants = {
        "b": np.array([[127], [127]], np.int8),
        "turns": np.array(3),
        "yes": np.array(True),
    }
    model = written(IN_BRANCHES, constants, opset=17, more='"own": 1')
    return model, {"a": np.array([[255, 255]], np.uint8)}


def test_products_in_branches_and_functions(tmp_path: Any) -> None:
    model, feeds = in_branches()
    defined = by_definition(model)
    assert not {n.op_type for n in with_branches(defined.graph.node)} & INTEGER_KERNELS
    assert not defined.functions
    assert run_onnx(model, feeds) == [[[4 * 64770]]]
    file = tmp_path / "m.onnx"
    onnx.save(model, file)
    assert run_onnx(file, feeds) == [[[4 * 64770]]]


RANDOM = np.random.default_rng(3)
FAR = (RANDOM.standard_normal((2, 6, 5, 7)) + 1e4).astype(f32)
GAIN, SHIFT = RANDOM.standard_normal((2, 6)).astype(f32)


def normalised(x: np.ndarray, axes: tuple[int, ...], epsilon: float = 1e-5) -> np.ndarray:
    x = x.astype(float)
    deviation = np.sqrt(x.var(axes, keepdims=True) + epsilon)
    return (x - x.mean(axes, keepdims=True)) / deviation


def by_group(x: np.ndarray) -> np.ndarray:
    return normalised(x.reshape(2, 2, 3, 5, 7), (2, 3, 4)).reshape(x.shape)


COLUMN = (6, 1, 1)
ROWS = RANDOM.standard_normal((2, 7)).astype(f32)
FLOATS: dict[str, tuple[str, list[np.ndarray], Callable[[], np.ndarray], dict[str, Any]]] = {
    **{
        f"instance-{opset}": (
            "InstanceNormalization",
            [FAR, GAIN, SHIFT],
            lambda: normalised(FAR, (2, 3)) * GAIN.reshape(COLUMN) + SHIFT.reshape(COLUMN),
            {"opset": opset},
        )
        for opset in (11, 18)
    },
    "group": (
        "GroupNormalization",
        [FAR, GAIN, SHIFT],
        lambda: by_group(FAR) * GAIN.reshape(COLUMN) + SHIFT.reshape(COLUMN),
        {"opset": 21, "num_groups": 2},
    ),
    "group-18": (
        "GroupNormalization",
        [FAR, GAIN[:2], SHIFT[:2]],
        lambda: (
            by_group(FAR) * GAIN[:2].repeat(3).reshape(COLUMN) + SHIFT[:2].repeat(3).reshape(COLUMN)
        ),
        {"opset": 18, "num_groups": 2},
    ),
    "layer": (
        "LayerNormalization",
        [FAR, *ROWS],
        lambda: normalised(FAR, (3,)) * ROWS[0] + ROWS[1],
        {},
    ),
}


@pytest.mark.parametrize("name", FLOATS)
def test_normalisations_far_from_zero(name: str) -> None:
    op, given, wanted, more = FLOATS[name]
    (y,) = true_outputs(op, given, **more)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, wanted(), rtol=1e-5, atol=1e-6)


def test_a_normalisation_in_half_precision_keeps_its_type() -> None:
    x = RANDOM.standard_normal((3, 8)).astype(np.float16)
    y, mean, _ = true_outputs("LayerNormalization", [x, x[0], x[1]], outputs=3)
    assert (y.dtype, mean.dtype) == (np.float16, np.float32)
    np.testing.assert_allclose(y, normalised(x, (1,)) * x[0] + x[1], rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("opset", [11, 17])
def test_tails_of_softmax_and_sigmoid(opset: int) -> None:
    x = np.linspace(-100, 0, 201, dtype=f32).reshape(1, -1)
    (y,) = true_outputs("Softmax", [x], opset=opset)
    wanted = np.exp(x.astype(float)) / np.exp(x.astype(float)).sum()
    np.testing.assert_array_equal(y, wanted.astype(f32))
    (y,) = true_outputs("Sigmoid", [x], opset=opset)
    np.testing.assert_allclose(y, (1 / (1 + np.exp(-x.astype(float)))).astype(f32), rtol=2e-7)
    ends = np.array([[-np.inf, np.inf, np.nan]], f32)
    np.testing.assert_array_equal(true_outputs("Sigmoid", [ends])[0], [[0, 1, np.nan]])


@pytest.mark.parametrize("place", range(9))
def test_a_maximum_over_nan_is_nan(place: int) -> None:
    x = np.arange(18, dtype=f32).reshape(1, 2, 3, 3)
    x[0, 1].flat[place] = np.nan
    for op, wanted, more in (
        ("MaxPool", [8, np.nan], {"kernel_shape": [3, 3]}),
        ("GlobalMaxPool", [8, np.nan], {}),
        ("ReduceMax", [8, np.nan], {"axes": [2, 3]}),
        ("ReduceMin", [0, np.nan], {"axes": [2, 3]}),
    ):
        (y,) = true_outputs(op, [x], **more)
        np.testing.assert_array_equal(y.reshape(-1), wanted)
    values, _ = true_outputs("MaxPool", [x], outputs=2, kernel_shape=[3, 3])
    np.testing.assert_array_equal(values.reshape(-1), [8, np.nan])
    axes = np.array([2, 3])
    for op, low in (("ReduceMax", 8), ("ReduceMin", 0)):
        (y,) = true_outputs(op, [x, axes], opset=20, constants=(1,), keepdims=0)
        np.testing.assert_array_equal(y, [[low, np.nan]])


def test_maxima_of_whole_numbers_and_of_nothing_stay() -> None:
    x = full_range("int8", 1, 2, 4, 4)
    (y,) = true_outputs("MaxPool", [x], kernel_shape=[4, 4])
    np.testing.assert_array_equal(y.reshape(-1), x.max((0, 2, 3)))
    empty = np.zeros((2, 0), f32)
    (y,) = true_outputs("ReduceMax", [empty, np.array([1])], opset=20, keepdims=0)
    np.testing.assert_array_equal(y, [-np.inf, -np.inf])


def test_a_model_without_such_nodes_is_run_as_it_is() -> None:
    model, _ = one_operator("Relu", [FAR])
    assert by_definition(model) is model


def test_every_value_can_be_asked_for() -> None:
    """What is written out keeps the names of values, so that a recording finds all of them."""
    model, feeds = in_branches()
    (value,) = (o for n in model.graph.node if n.op_type == "Product" for o in n.output)
    model.graph.output.append(onnx.ValueInfoProto(name=value))
    assert run_onnx(model, feeds)[1] == [[64770]]
    assert reference.run_onnx is run_onnx


@pytest.mark.parametrize(("axes", "kept"), [([1], 0), ([0, 2], 1), (None, 0)])
def test_a_sum_of_64_bits_is_exact(axes: list[int] | None, kept: int) -> None:
    data = np.random.default_rng(0).integers(-(2**63) // 60, 2**63 // 60, (3, 4, 5))
    given = [data] if axes is None else [data, np.array(axes)]
    (found,) = true_outputs("ReduceSum", given, keepdims=kept, constants=range(1, len(given)))
    wanted = data.sum(None if axes is None else tuple(axes), keepdims=bool(kept))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("op", "part"), [("ReduceL1", np.abs), ("ReduceSumSquare", np.square)])
def test_sums_of_magnitudes_and_squares_are_exact(op: str, part: Callable[..., Any]) -> None:
    largest = 2**30 if op == "ReduceSumSquare" else 2**58
    data = np.random.default_rng(0).integers(-largest, largest, (4, 7))
    (found,) = true_outputs(op, [data], axes=[1])
    np.testing.assert_array_equal(found, part(data).sum(1, keepdims=True))
