"""CUTLASS plans, carried out in numpy: what the device is asked to do is what the model says."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from collage_engine.model.importer import ImportedModel
from collage_engine.records.toolchain import Target
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.cutlass.rules import DIALECT
from collage_engine.toolchains.registry import get
from tests.device_codegen.cuda_plans import (
    FlatMemory,
    Ints,
    carried_out,
    convolved,
    model_of,
    normal,
)


class Machine(FlatMemory):
    """Carries a plan out; results go into the last arguments."""

    def __init__(self, plan: dict[str, Any], weights: bytes, arguments: list[np.ndarray]) -> None:
        super().__init__(plan, weights, arguments)
        for step in plan["steps"]:
            getattr(self, step["op"])(step)

    def finish(self, y: np.ndarray, s: dict[str, Any], at: int) -> None:
        """Epilogue and store of rows of results, ``at`` elements into the result."""
        y = y.astype(np.float32)
        if "bias" in s:
            y = y + self.flat(s["bias"], s["dtype"])[: y.shape[1]]
        if "c" in s:
            y = y + self.flat(s["c"], s["dtype"])[at : at + y.size].reshape(y.shape)
        if s["epilogue"] == "relu":
            y = np.maximum(y, 0)
        elif s["epilogue"] == "silu":
            y = y / (1 + np.exp(-y))
        self.flat(s["d"], s["dtype"])[at : at + y.size] = y.reshape(-1)

    def operand(self, s: dict[str, Any], name: str) -> np.ndarray:
        """All of an operand."""
        return self.flat(s[name], s["dtype"]).astype(np.float32)

    def conv(self, s: dict[str, Any]) -> None:
        images = (s["images"], s["height"], s["width"], s["channels"])
        filters = (s["filters"], s["kernel_h"], s["kernel_w"], s["channels"])
        x = self.operand(s, "a")[: math.prod(images)].reshape(images)
        w = self.operand(s, "b")[: math.prod(filters)].reshape(filters)
        # Behind the image is as much nothing as the result's size asks for.
        pads = [s["pad_h"], s["pad_w"]]
        for d, c in enumerate("hw"):
            reach = (filters[1 + d] - 1) * s[f"dilation_{c}"] + 1
            read = (s[f"out_{c}"] - 1) * s[f"stride_{c}"] + reach
            pads.append(max(0, read - images[1 + d] - pads[d]))
        y = convolved(
            x.transpose(0, 3, 1, 2),
            w.transpose(0, 3, 1, 2),
            pads=pads,
            strides=[s["stride_h"], s["stride_w"]],
            dilations=[s["dilation_h"], s["dilation_w"]],
        )[:, :, : s["out_h"], : s["out_w"]]
        self.finish(y.transpose(0, 2, 3, 1).reshape(-1, s["filters"]), s, 0)

    def transpose(self, s: dict[str, Any]) -> None:
        shape = (s["batch"], s["rows"], s["columns"])
        size = math.prod(shape)
        given = self.flat(s["a"], s["dtype"])[:size].reshape(shape)
        self.flat(s["d"], s["dtype"])[:size] = given.transpose(0, 2, 1).reshape(-1)


def half(inputs: str, nodes: str, **weights: Ints) -> ImportedModel:
    """A model in half precision."""
    arrays = {n: (0.3 * normal(*s, dtype="float16")).astype("float16") for n, s in weights.items()}
    return model_of(inputs, nodes, **arrays)


run = partial(carried_out, DIALECT, Machine)
"""The plan of a model, its result, the model's own."""


def refused(model: ImportedModel) -> str:
    with pytest.raises(UnsupportedError) as caught:
        run(model)
    return str(caught.value)


CONVOLUTIONS: dict[str, tuple[ImportedModel, list[str]]] = {
    "bias, residual, relu": (
        half(
            "float16[2,8,6,5] x",
            "p = Conv<pads=[1, 1, 1, 1]>(x, w, b) q = Add(p, x) y = Relu(q)",
            w=(8, 8, 3, 3),
            b=(8,),
        ),
        ["relu"],
    ),
    "silu written out": (
        half("float16[1,8,4,4] x", "p = Conv(x, w) s = Sigmoid(p) y = Mul(p, s)", w=(16, 8, 3, 3)),
        ["silu"],
    ),
    "strides, dilation, padding that differs at both ends": (
        half(
            "float16[1,8,9,8] x",
            "y = Conv<pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2]>(x, w)",
            w=(16, 8, 3, 3),
        ),
        ["none"],
    ),
    "pointwise, and a residual that is given": (
        half(
            "float16[2,8,3,5] x, float16[2,16,3,5] r",
            "p = Conv(x, w, b) y = Add(p, r)",
            w=(16, 8, 1, 1),
            b=(16,),
        ),
        ["none"],
    ),
    "two of them, the second adds the first": (
        half(
            "float16[1,8,4,4] x",
            "p = Conv<pads=[1, 1, 1, 1]>(x, u) q = Relu(p) "
            "r = Conv<pads=[1, 1, 1, 1]>(q, w) y = Add(r, q)",
            u=(16, 8, 3, 3),
            w=(16, 16, 3, 3),
        ),
        ["relu", "none"],
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_compute_what_the_model_says(name: str) -> None:
    model, expected = CONVOLUTIONS[name]
    plan, result, truth = run(model)
    assert [s["epilogue"] for s in plan["steps"] if s["op"] != "transpose"] == expected
    # Images are turned on the way in and out, and between two kernels nothing is.
    assert sum(s["op"] == "transpose" for s in plan["steps"]) == len(model.inputs) + 1
    np.testing.assert_allclose(result, truth, rtol=1e-2, atol=1e-2)


def convolution(channels: int, filters: int, groups: int = 1) -> ImportedModel:
    return half(
        f"float16[1,{channels},4,4] x",
        f"y = Conv<pads=[1, 1, 1, 1], group={groups}>(x, w)",
        w=(filters, channels // groups, 3, 3),
    )


def test_odd_rows_and_groups_are_refused() -> None:
    assert refused(convolution(3, 8)).startswith("Conv: rows of 3 and 8 elements")
    assert refused(convolution(16, 16, groups=2)) == "Conv: CUTLASS's kernels here have no groups"


def test_float32_and_products_are_refused() -> None:
    model = model_of("float[1,4,4,4] x", "y = Conv(x, w)", w=(4, 4, 1, 1))
    assert refused(model) == "Conv: CUTLASS's kernels here take no float32"
    model = half("float16[4,8] x", "y = MatMul(x, w)", w=(8, 8))
    assert refused(model).startswith("MatMul: CUTLASS takes only convolutions of images")


def test_fused_candidates_are_offered_and_epilogues_alone_are_not() -> None:
    model, _ = CONVOLUTIONS["bias, residual, relu"]
    graph = model.graph
    for name, count in (("cutlass", 4), ("cublas", 0)):
        toolchain = get(name)
        (instance,) = toolchain.instances(Target.cuda("sm_90a"), "float32")
        supported = [i for i in graph.operators if toolchain.supports(graph, i, instance) is None]
        assert len(supported) == count
    cutlass = get("cutlass")
    (instance,) = cutlass.instances(Target.cuda("sm_90a"), "tf32")
    assert cutlass.composites_of(graph, instance, graph.everything) == ()
    assert cutlass.composites_of(graph, instance, 1 << graph.operators[-1]) is None
    assert not cutlass.instances(Target.cuda("sm_75"), "tf32")
