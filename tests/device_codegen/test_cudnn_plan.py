"""cuDNN plans, carried out in numpy: what the device is asked to do is what the model says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from onnx import TensorProto

from collage_engine.model.importer import ImportedModel
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.toolchain import Target
from collage_engine.toolchains.cudnn.generate import plan_of
from collage_engine.toolchains.registry import get
from tests.device_codegen.cuda_plans import (
    attend,
    attention_model,
    carried_out,
    model_of,
    node,
    normal,
    quantized_conv,
    stored_formats,
    whole,
)


class Machine:
    """Flat memory, and the runtime's steps in numpy."""

    def __init__(self, plan: dict[str, Any], weights: bytes, arguments: list[np.ndarray]) -> None:
        self.memory = {
            "weight": np.frombuffer(weights + b"\0" * 8, np.uint8),
            "scratch": np.zeros(plan["scratch_bytes"] + 8, np.uint8),
        }
        self.arguments = arguments
        for step in plan["steps"]:
            getattr(self, step["op"])(step)

    def tensor(self, about: dict[str, Any]) -> np.ndarray:
        if about["where"] == "argument":
            flat = self.arguments[about["at"]].reshape(-1)
        else:
            raw = self.memory[about["where"]][about["at"] :]
            size = np.dtype(about["dtype"]).itemsize
            flat = raw[: len(raw) // size * size].view(about["dtype"])
        strides = [s * flat.itemsize for s in about["strides"]]
        return as_strided(flat, about["dims"], strides)

    def post(self, value: np.ndarray, posts: list[dict[str, Any]]) -> np.ndarray:
        for p in posts:
            mode = p["mode"]
            if "other" in p:
                a, b = value, self.tensor(p["other"])
                a, b = (b, a) if p["swapped"] else (a, b)
                value = getattr(np, mode)(a, b)
            elif mode == "relu":
                value = np.where(value > 0, value, value * p.get("slope", 0.0))
            elif mode == "clip":
                value = np.clip(value, p["low"], p["high"])
            elif mode == "sigmoid":
                value = 1 / (1 + np.exp(-value))
            else:
                value = getattr(np, mode)(value)
        return value

    def pointwise(self, s: dict[str, Any]) -> None:
        self.tensor(s["y"])[...] = self.post(self.tensor(s["x"]), s["posts"])

    def conv(self, s: dict[str, Any]) -> None:
        x, w = self.tensor(s["x"]), self.tensor(s["w"])
        if "sums" in s:
            x, w = x.astype(np.int64), w.astype(np.int64)
        pads = [(0, 0), (0, 0), *zip(s["pre"], s["post"], strict=True)]
        x = np.pad(x, pads)
        rank = x.ndim - 2
        reach = [(w.shape[2 + d] - 1) * s["dilation"][d] + 1 for d in range(rank)]
        windows = sliding_window_view(x, reach, axis=tuple(range(2, 2 + rank)))
        steps = tuple(slice(None, None, s["stride"][d]) for d in range(rank))
        taps = tuple(slice(None, None, s["dilation"][d]) for d in range(rank))
        windows = windows[(slice(None), slice(None), *steps, *taps)]
        groups, many = x.shape[1] // w.shape[1], w.shape[0]
        parts = []
        for g in range(groups):
            channels = slice(g * w.shape[1], (g + 1) * w.shape[1])
            filters = w[g * many // groups : (g + 1) * many // groups]
            axes = list(range(2 + rank, 2 + 2 * rank))
            parts.append(
                np.tensordot(windows[:, channels], filters, ([1, *axes], [1, *range(2, 2 + rank)]))
            )
        y = self.post(np.moveaxis(np.concatenate(parts, axis=-1), -1, 1), s["posts"])
        into = self.tensor(s["y"])
        into[...] = np.clip(np.rint(y), -128, 127) if into.dtype == np.int8 else y

    def attention(self, s: dict[str, Any]) -> None:
        mask = self.tensor(s["bias"]) if "bias" in s else None
        q, k, v = (self.tensor(s[name]) for name in "qkv")
        y = attend(q, k, v, s["scale"], mask)
        self.tensor(s["y"])[...] = y

    def pool(self, s: dict[str, Any]) -> None:
        x = self.tensor(s["x"])
        pads = [(0, 0), (0, 0), *((p, p) for p in s["pad"])]
        empty = -np.inf if s["mode"] == "max" else 0.0
        rank = x.ndim - 2

        def gather(values: np.ndarray, fill: float) -> np.ndarray:
            padded = np.pad(values, pads, constant_values=fill)
            found = sliding_window_view(padded, s["window"], axis=tuple(range(2, 2 + rank)))
            steps = tuple(slice(None, None, v) for v in s["stride"])
            return found[(slice(None), slice(None), *steps)]

        axes = tuple(range(2 + rank, 2 + 2 * rank))
        windows = gather(x, empty)
        if s["mode"] == "max":
            y = windows.max(axes)
        elif s["mode"] == "avg_include":
            y = windows.mean(axes)
        else:
            y = windows.sum(axes) / gather(np.ones_like(x), 0.0).sum(axes)
        self.tensor(s["y"])[...] = y

    def softmax(self, s: dict[str, Any]) -> None:
        x = self.tensor(s["x"])
        e = np.exp(x - x.max(1, keepdims=True))
        self.tensor(s["y"])[...] = e / e.sum(1, keepdims=True)


def run(model: ImportedModel, nhwc: bool = False) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """(plan, its result in logical order, the model's own)."""
    nodes, inputs, outputs = whole(model)
    formats = stored_formats(model, nhwc)
    plan, weights = plan_of(model.graph, nodes, inputs, outputs, model.constant, formats=formats)
    result, truth = carried_out(model, formats, lambda given: Machine(plan, weights, given))
    return plan, result, truth


CASES: dict[str, tuple[ImportedModel, list[str]]] = {
    "convolution, bias, residual, relu": (
        model_of(
            [
                node("Conv", ["x", "w", "b"], "p", pads=[1, 1, 1, 1]),
                node("Add", ["p", "x"], "q"),
                node("Relu", ["q"], "y"),
            ],
            {"x": (2, 4, 6, 5)},
            {"w": normal(4, 4, 3, 3), "b": normal(4)},
            (2, 4, 6, 5),
        ),
        ["conv"],
    ),
    "strides, dilation, uneven padding, groups": (
        model_of(
            [
                node(
                    "Conv",
                    ["x", "w"],
                    "y",
                    pads=[1, 0, 2, 1],
                    strides=[2, 1],
                    dilations=[1, 2],
                    group=2,
                )
            ],
            {"x": (1, 4, 9, 8)},
            {"w": normal(6, 2, 3, 3)},
            (1, 6, 5, 5),
        ),
        ["conv"],
    ),
    "two convolutions and a pool": (
        model_of(
            [
                node("Conv", ["x", "u"], "p", pads=[1, 1, 1, 1]),
                node("Relu", ["p"], "q"),
                node("MaxPool", ["q"], "r", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
                node("Conv", ["r", "w"], "y"),
            ],
            {"x": (1, 3, 8, 8)},
            {"u": normal(5, 3, 3, 3), "w": normal(2, 5, 1, 1)},
            (1, 2, 4, 4),
        ),
        ["conv", "pool", "conv"],
    ),
    "average pool that leaves padding out": (
        model_of(
            [node("AveragePool", ["x"], "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
            {"x": (1, 3, 5, 5)},
            {},
            (1, 3, 5, 5),
        ),
        ["pool"],
    ),
    "global average pool": (
        model_of([node("GlobalAveragePool", ["x"], "y")], {"x": (2, 3, 5, 4)}, {}, (2, 3, 1, 1)),
        ["pool"],
    ),
    "a gate of its own value": (
        model_of(
            [
                node("Conv", ["x", "w"], "p"),
                node("Sigmoid", ["p"], "s"),
                node("Mul", ["p", "s"], "y"),
            ],
            {"x": (1, 3, 4, 4)},
            {"w": normal(3, 3, 1, 1)},
            (1, 3, 4, 4),
        ),
        ["conv", "pointwise", "pointwise"],
    ),
}


@pytest.mark.parametrize("nhwc", [False, True], ids=["plain", "nhwc"])
@pytest.mark.parametrize("name", CASES)
def test_plans_compute_what_the_model_says(name: str, nhwc: bool) -> None:
    model, ops = CASES[name]
    plan, result, truth = run(model, nhwc)
    assert [s["op"] for s in plan["steps"]] == ops
    np.testing.assert_allclose(result, truth, rtol=1e-4, atol=1e-5)


def test_a_signal_is_convolved_as_an_image_of_one_row() -> None:
    model = model_of(
        [node("Conv", ["x", "w", "b"], "y", pads=[1, 2], strides=[2])],
        {"x": (2, 3, 9)},
        {"w": normal(4, 3, 3), "b": normal(4)},
        (2, 4, 5),
    )
    plan, result, truth = run(model)
    assert plan["steps"][0]["stride"] == [1, 2]
    np.testing.assert_allclose(result, truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_softmax_over_any_axis(axis: int) -> None:
    model = model_of([node("Softmax", ["x"], "y", axis=axis)], {"x": (2, 3, 4)}, {}, (2, 3, 4))
    _, result, truth = run(model)
    np.testing.assert_allclose(result, truth, rtol=1e-4, atol=1e-6)


def test_what_it_has_no_function_for_is_refused() -> None:
    model = model_of(
        [node("Gather", ["x", "i"], "y", axis=0)], {"x": (4, 3)}, {"i": np.array([1, 2])}, (2, 3)
    )
    with pytest.raises(UnsupportedError, match="cuDNN has no function for it"):
        run(model)


@pytest.mark.parametrize(
    ("mask", "heads_outside"), [("", False), ("added", True), ("selected", True)]
)
def test_attention_in_half_precision_is_one_step(mask: str, heads_outside: bool) -> None:
    """As BERT and GPT-2 write it: masks added or selected by, heads moved by transpositions."""
    model = attention_model(mask, heads_outside=heads_outside, dtype="float16", batch=2)
    plan, result, truth = run(model)
    (step,) = plan["steps"]
    assert (step["op"], step["math"]) == ("attention", "any")
    assert step["scale"] == pytest.approx(8**-0.5, rel=1e-3)
    assert [step[name]["dims"] for name in "qkvy"] == [[2, 2, 16, 8]] * 4
    np.testing.assert_allclose(result, truth, rtol=1e-2, atol=1e-2)


def test_attention_in_single_precision_is_left_to_others() -> None:
    with pytest.raises(UnsupportedError):
        run(attention_model())


def test_tensor_cores_are_kept_from_single_precision_only() -> None:
    """Half precision loses nothing on them, and its fastest engines have no others."""
    for dtype, math in (("float32", "float32"), ("float16", "any")):
        kind = TensorProto.FLOAT16 if dtype == "float16" else TensorProto.FLOAT
        model = model_of(
            [node("Conv", ["x", "w"], "y")],
            {"x": (1, 8, 4, 4)},
            {"w": normal(8, 8, 1, 1, dtype=dtype)},
            (1, 8, 4, 4),
            kind,
        )
        plan, *_ = run(model)
        assert [s["math"] for s in plan["steps"]] == [math]


QUANTIZED = {
    "bias and relu": quantized_conv(TensorProto.INT8, 0),
    "another tensor added": quantized_conv(TensorProto.INT8, 0, residual=True),
    "a zero point and no padding": quantized_conv(TensorProto.INT8, 7, pad=0),
    "a float result": quantized_conv(TensorProto.INT8, 0, quantize=False, relu=False),
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_convolutions_in_8_bits_are_one_step(name: str) -> None:
    model = QUANTIZED[name]
    plan, result, truth = run(model, nhwc=True)
    (step,) = plan["steps"]
    assert (step["op"], step["sums"], step["math"]) == ("conv", "int32", "any")
    assert result.dtype == truth.dtype
    if truth.dtype == np.float32:
        np.testing.assert_allclose(result, truth, rtol=1e-4, atol=1e-4)
    else:
        assert np.abs(result.astype(int) - truth.astype(int)).max() <= 1
        assert (result != truth).mean() < 0.01  # ties only
    with pytest.raises(UnsupportedError, match="channels do not lie innermost"):
        run(model)


def test_8_bit_composites_and_attention_count_as_supported() -> None:
    cudnn = get("cudnn")
    (instance,) = cudnn.instances(Target.cuda("sm_90a"), "float32")
    for model in (QUANTIZED["bias and relu"], attention_model("added", dtype="float16")):
        graph = model.graph
        assert not [r for i in graph.operators if (r := cudnn.supports(graph, i, instance))]
        spec = cudnn.partition_spec(instance, graph)
        sizes = [len(graph.to_operators(c.sub_graph.inside)) for c in spec.candidates(graph)]
        assert len(graph.operators) in sizes
