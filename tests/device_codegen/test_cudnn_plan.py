"""cuDNN plans, carried out in numpy: what the device is asked to do is what the model says."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.lib.stride_tricks import as_strided

from collage_engine.lowering.extract import function_of
from collage_engine.lowering.reference import TrueValues
from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.records.graph import OperatorSet, members
from collage_engine.records.toolchain import Target
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.cudnn.toolchain import DIALECT
from collage_engine.toolchains.registry import get
from tests.device_codegen.cuda_plans import (
    EXPORTED,
    FlatMemory,
    carried_out,
    convolved,
    model_of,
    normal,
)


class Machine(FlatMemory):
    """The runtime's steps in numpy."""

    def __init__(self, plan: dict[str, Any], weights: bytes, arguments: list[np.ndarray]) -> None:
        super().__init__(plan, weights, arguments)
        for step in plan["steps"]:
            getattr(self, step["op"])(step)

    def tensor(self, about: dict[str, Any]) -> np.ndarray:
        flat = self.flat(about, about["dtype"])
        flat = flat[about.get("offset", 0) // flat.itemsize :]
        strides = [s * flat.itemsize for s in about["strides"]]
        return as_strided(flat, about["dims"], strides)

    def pointwise(self, s: dict[str, Any]) -> None:
        self.tensor(s["y"])[...] = self.post(self.tensor(s["x"]).astype(np.float32), s["posts"])

    def matmul(self, s: dict[str, Any]) -> None:
        y = self.tensor(s["x"]).astype(np.float32) @ self.tensor(s["w"]).astype(np.float32)
        self.tensor(s["y"])[...] = self.post(y, s["posts"])

    def attention(self, s: dict[str, Any]) -> None:
        q, k, v = (self.tensor(s[name]).astype(np.float32) for name in "qkv")
        k, v = (np.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))
        scores = q @ k.swapaxes(2, 3) * s["scale"]
        if "mask" in s:
            scores = scores + self.tensor(s["mask"])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        self.tensor(s["y"])[...] = weights / weights.sum(axis=-1, keepdims=True) @ v

    def post(self, value: np.ndarray, posts: list[dict[str, Any]]) -> np.ndarray:
        for p in posts:
            mode = p["mode"]
            if "other" in p:
                value = getattr(np, mode)(value, self.tensor(p["other"]))
            elif mode == "relu":
                value = np.where(value > 0, value, value * p.get("slope", 0.0))
            elif mode in ("sigmoid", "swish"):
                value = (value if mode == "swish" else 1) / (1 + np.exp(-value))
            else:
                value = getattr(np, mode)(value)
        return value

    def conv(self, s: dict[str, Any]) -> None:
        x, w = self.tensor(s["x"]), self.tensor(s["w"])
        y = convolved(
            x,
            w,
            pads=[*s["pre"], *s["post"]],
            strides=s["stride"],
            dilations=s["dilation"],
            group=x.shape[1] // w.shape[1],
        )
        self.tensor(s["y"])[...] = self.post(y, s["posts"])


run = partial(carried_out, DIALECT, Machine)
"""The plan of a model, its result, the model's own."""

CASES: dict[str, tuple[ImportedModel, list[str]]] = {
    "convolution, bias, residual, relu": (
        model_of(
            "float[2,4,6,5] x",
            "p = Conv<pads=[1, 1, 1, 1]>(x, w, b) q = Add(p, x) y = Relu(q)",
            w=(4, 4, 3, 3),
            b=(4,),
        ),
        ["conv"],
    ),
    "strides, dilation, uneven padding, groups": (
        model_of(
            "float[1,4,9,8] x",
            "y = Conv<pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2], group=2>(x, w)",
            w=(6, 2, 3, 3),
        ),
        ["conv"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_plans_compute_what_the_model_says(name: str) -> None:
    model, ops = CASES[name]
    plan, result, truth = run(model)
    assert [s["op"] for s in plan["steps"]] == ops
    np.testing.assert_allclose(result, truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["Relu", "MaxPool", "Softmax"])
def test_what_is_no_convolution_is_refused(op: str) -> None:
    how = "<kernel_shape=[2, 2]>" if op == "MaxPool" else ""
    model = model_of("float[1,4,4,4] x", f"y = {op}{how}(x)")
    with pytest.raises(UnsupportedError, match="cuDNN takes only convolutions of images"):
        run(model)


def test_tensor_cores_are_kept_from_single_precision_only() -> None:
    """Half precision loses nothing on them, and its fastest engines have no others."""
    for kind, dtype, math in (("float", "float32", "float32"), ("float16", "float16", "any")):
        weight = normal(8, 8, 1, 1, dtype=dtype)
        model = model_of(f"{kind}[1,8,4,4] x", "y = Conv(x, w)", w=weight)
        plan, *_ = run(model)
        assert [s["math"] for s in plan["steps"]] == [math]


def test_what_follows_a_convolution_counts_as_supported() -> None:
    cudnn = get("cudnn")
    (instance,) = cudnn.instances(Target.cuda("sm_90a"), "float32")
    graph = CASES["convolution, bias, residual, relu"][0].graph
    assert not [r for i in graph.operators if (r := cudnn.supports(graph, i, instance))]
    spec = cudnn.partition_spec(instance, graph)
    sizes = [len(c.sub_graph.members) for c in spec.candidates(graph)]
    assert len(graph.operators) in sizes


def joined_by_cudnn(model: ImportedModel) -> list[tuple[OperatorSet, dict[str, Any]]]:
    """The candidates of cuDNN but convolutions, the largest first, and their plans."""
    cudnn = get("cudnn")
    (instance,) = cudnn.instances(Target.cuda("sm_90a"), "float32")
    rule = cudnn.partition_spec(instance, model.graph)
    sets = {c.sub_graph.inside for c in rule.candidates(model.graph)}
    plans = [(nodes, cudnn.dry_plan(model.graph, nodes)) for nodes in sets]  # type: ignore[attr-defined]
    found = [each for each in plans if each[1]["steps"][-1]["op"] != "conv"]
    return sorted(found, key=lambda each: each[0].bit_count(), reverse=True)


@pytest.mark.parametrize("name", EXPORTED.namelist())
def test_attention_and_gates_of_exported_models(name: str, tmp_path: Path) -> None:
    """It is found as exporters write it, and its plan gives what the model says."""
    model = import_onnx(onnx.load_model_from_string(EXPORTED.read(name)))
    cudnn: Any = get("cudnn")
    (instance,) = cudnn.instances(Target.cuda("sm_90a"), "float32")
    found = joined_by_cudnn(model)
    assert len(found) >= 3  # with what moves the heads back, and without
    joins = not name.startswith("qwen2")  # which turns query and key before it multiplies them
    ops = {tuple(step["op"] for step in plan["steps"]) for _, plan in found}
    assert ops == {("attention",), ("matmul", "attention" if joins else "pointwise")}
    values = model.random_inputs(0)
    if "attention_mask" in values:
        values["attention_mask"] = np.array([[1] * 6 + [0] * 2])
    truth = TrueValues.record(model, values, tmp_path)
    for nodes, _ in found:
        function = function_of(model, instance, tuple(members(nodes)), "candidate")
        plan, weights = cudnn.plan(function)
        (expected,) = truth.outputs_of(function)
        result = np.full(expected.shape, np.nan, expected.dtype)
        Machine(plan, weights, [*truth.inputs_of(function), result])
        np.testing.assert_allclose(result, expected, rtol=2e-2, atol=2e-3)
