"""cuDNN plans, carried out in numpy: what the device is asked to do is what the model says."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from onnx import TensorProto, helper, numpy_helper

from collage_engine.lowering.reference import original_outputs
from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.format import NHWC
from collage_engine.toolchains.cudnn.generate import plan_of

RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def node(op: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], output, **attributes)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, ...]],
    constants: dict[str, np.ndarray],
    shape: tuple[int, ...],
    kind: int = TensorProto.FLOAT,
) -> ImportedModel:
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(n, kind, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("y", kind, shape)],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 9
    return import_onnx(model)


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
            flat = raw[: len(raw) // 4 * 4].view(np.float32)
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
        y = np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)
        self.tensor(s["y"])[...] = self.post(y, s["posts"])

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
    graph = model.graph
    nodes = graph.close(graph.to_indices(tuple(range(len(graph.operators)))))
    inputs, outputs = graph.boundary(nodes)
    formats = {
        i: NHWC for i in (*inputs, *outputs) if nhwc and len(graph.nodes[i].type.shape) == 4
    }
    plan, weights = plan_of(graph, nodes, inputs, outputs, model.constant, formats=formats)
    values = model.random_inputs(0)
    names = dict(zip(graph.record.inputs, (name for name, _ in model.inputs), strict=True))
    arguments = [values[names[i]] for i in inputs]
    kind = graph.nodes[outputs[0]].type
    shape = list(kind.shape)
    if formats:
        arguments = [np.ascontiguousarray(a.transpose(0, 2, 3, 1)) for a in arguments]
        shape = [shape[a] for a in (0, 2, 3, 1)]
    result = np.zeros(shape, kind.dtype)
    Machine(plan, weights, [*arguments, result])
    if formats:
        result = result.transpose(0, 3, 1, 2)
    return plan, result, original_outputs(model, values)["y"]


CASES: dict[str, tuple[ImportedModel, list[str]]] = {
    "convolution, bias, residual, relu": (
        model_of(
            [node("Conv", ["x", "w", "b"], "p", pads=[1, 1, 1, 1]), node("Add", ["p", "x"], "q"),
             node("Relu", ["q"], "y")],
            {"x": (2, 4, 6, 5)}, {"w": normal(4, 4, 3, 3), "b": normal(4)}, (2, 4, 6, 5),
        ), ["conv"],
    ),
    "strides, dilation, uneven padding, groups": (
        model_of(
            [node("Conv", ["x", "w"], "y", pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2],
                  group=2)],
            {"x": (1, 4, 9, 8)}, {"w": normal(6, 2, 3, 3)}, (1, 6, 5, 5),
        ), ["conv"],
    ),
    "two convolutions and a pool": (
        model_of(
            [node("Conv", ["x", "u"], "p", pads=[1, 1, 1, 1]), node("Relu", ["p"], "q"),
             node("MaxPool", ["q"], "r", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
             node("Conv", ["r", "w"], "y")],
            {"x": (1, 3, 8, 8)}, {"u": normal(5, 3, 3, 3), "w": normal(2, 5, 1, 1)}, (1, 2, 4, 4),
        ), ["conv", "pool", "conv"],
    ),
    "average pool that leaves padding out": (
        model_of(
            [node("AveragePool", ["x"], "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
            {"x": (1, 3, 5, 5)}, {}, (1, 3, 5, 5),
        ), ["pool"],
    ),
    "global average pool": (
        model_of([node("GlobalAveragePool", ["x"], "y")], {"x": (2, 3, 5, 4)}, {}, (2, 3, 1, 1)),
        ["pool"],
    ),
    "a gate of its own value": (
        model_of(
            [node("Conv", ["x", "w"], "p"), node("Sigmoid", ["p"], "s"),
             node("Mul", ["p", "s"], "y")],
            {"x": (1, 3, 4, 4)}, {"w": normal(3, 3, 1, 1)}, (1, 3, 4, 4),
        ), ["conv", "pointwise", "pointwise"],
    ),
}  # fmt: skip


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
        {"x": (2, 3, 9)}, {"w": normal(4, 3, 3), "b": normal(4)}, (2, 4, 5),
    )  # fmt: skip
    plan, result, truth = run(model)
    assert plan["steps"][0]["stride"] == [1, 2]
    np.testing.assert_allclose(result, truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_softmax_over_any_axis(axis: int) -> None:
    model = model_of([node("Softmax", ["x"], "y", axis=axis)], {"x": (2, 3, 4)}, {}, (2, 3, 4))
    _, result, truth = run(model)
    np.testing.assert_allclose(result, truth, rtol=1e-4, atol=1e-6)


def test_what_it_has_no_function_for_is_refused() -> None:
    model = model_of([node("Gather", ["x", "i"], "y", axis=0)], {"x": (4, 3)},
                     {"i": np.array([1, 2])}, (2, 3))  # fmt: skip
    with pytest.raises(UnsupportedError, match="cuDNN has no function for it"):
        run(model)


def attention_model(kind: int, swap: tuple[int, ...]) -> ImportedModel:
    dtype = np.float16 if kind == TensorProto.FLOAT16 else np.float32
    return model_of(
        [node("Transpose", ["k"], "t", perm=swap), node("MatMul", ["q", "t"], "s"),
         node("Mul", ["s", "c"], "u"), node("Softmax", ["u"], "w", axis=-1),
         node("MatMul", ["w", "v"], "y")],
        {"q": (1, 2, 8, 16), "k": (1, 2, 8, 16), "v": (1, 2, 8, 16)},
        {"c": np.array(0.25, dtype)}, (1, 2, 8, 16), kind,
    )  # fmt: skip


def test_attention_in_half_precision_is_one_step() -> None:
    model = attention_model(TensorProto.FLOAT16, (0, 1, 3, 2))
    graph = model.graph
    nodes = graph.close(graph.to_indices(tuple(range(len(graph.operators)))))
    plan, _ = plan_of(graph, nodes, *graph.boundary(nodes), model.constant)
    (step,) = plan["steps"]
    assert step["op"] == "attention"
    assert step["scale"] == pytest.approx(0.25)
    assert [step[name]["dims"] for name in "qkvy"] == [[1, 2, 8, 16]] * 4
    assert [step[name]["at"] for name in "qkvy"] == [
        *(graph.boundary(nodes)[0].index(graph.record.inputs[i]) for i in range(3)), 3,
    ]  # fmt: skip


def test_attention_in_single_precision_is_left_to_others() -> None:
    model = attention_model(TensorProto.FLOAT, (0, 1, 3, 2))
    graph = model.graph
    nodes = graph.close(graph.to_indices(tuple(range(len(graph.operators)))))
    with pytest.raises(UnsupportedError):
        plan_of(graph, nodes, *graph.boundary(nodes), model.constant)
