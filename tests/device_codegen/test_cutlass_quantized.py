"""8-bit composites and attention as CUTLASS's steps, carried out in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from collage_engine.records.errors import UnsupportedError
from collage_engine.records.toolchain import Target
from collage_engine.toolchains.cutlass import headers
from collage_engine.toolchains.cutlass.families import Family
from collage_engine.toolchains.registry import get
from tests.device_codegen.cuda_plans import (
    attention_model,
    model_of,
    node,
    normal,
    quantized_conv,
    scalar,
    small,
)
from tests.device_codegen.test_cutlass_plan import plan_for, run

INT8, UINT8 = TensorProto.INT8, TensorProto.UINT8


CONVOLUTIONS = {
    "int8 around 0": (quantized_conv(INT8, 0), "conv", "int8"),
    "uint8, zero point of its own, no padding": (
        quantized_conv(UINT8, 120, pad=0),
        "conv",
        "uint8",
    ),
    "another 8-bit tensor added": (quantized_conv(INT8, 0, residual=True), "conv", "int8"),
    "a pointwise one is a product": (
        quantized_conv(UINT8, 120, pad=0, kernel=1, residual=True),
        "gemm",
        "uint8",
    ),
    "a float result": (quantized_conv(INT8, 0, quantize=False, relu=False), "conv", "float32"),
}


@pytest.mark.parametrize("nhwc", [False, True], ids=["plain", "nhwc"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_in_8_bits(name: str, nhwc: bool) -> None:
    model, op, out = CONVOLUTIONS[name]
    plan, result, truth, families = run(model, nhwc)
    (step,) = (s for s in plan["steps"] if s["op"] != "transpose")
    assert (step["op"], families[0].align, families[0].out) == (op, 16, out)
    assert result.dtype == truth.dtype
    if out == "float32":
        np.testing.assert_allclose(result, truth, rtol=1e-4, atol=1e-4)
    else:
        assert np.abs(result.astype(int) - truth.astype(int)).max() <= 1
        assert (result != truth).mean() < 0.01  # ties only


def test_a_product_in_8_bits() -> None:
    model = model_of(
        [
            node("DequantizeLinear", ["x", "sx", "zx"], "xf"),
            node("DequantizeLinear", ["w", "sw", "zw"], "wf"),
            node("MatMul", ["xf", "wf"], "p"),
            node("Add", ["p", "b"], "q"),
            node("QuantizeLinear", ["q", "sy", "zx"], "y"),
        ],
        {"x": (3, 5, 8)},
        {
            "w": small(8, 12),
            "b": normal(12),
            "sx": scalar(0.03),
            "zx": scalar(128, np.uint8),
            "sw": scalar(0.02),
            "zw": scalar(0, np.int8),
            "sy": scalar(0.05),
        },
        (3, 5, 12),
        UINT8,
    )
    plan, result, truth, families = run(model)
    assert families == (Family("gemm", "uint8", "columns", "none", 4, "uint8"),)
    assert (plan["steps"][0]["m"], plan["steps"][0]["epilogue"]) == (15, "none")
    assert np.abs(result.astype(int) - truth.astype(int)).max() <= 1


def test_padding_of_data_with_a_zero_point_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="padding of data whose zero point is 120"):
        plan_for(quantized_conv(UINT8, 120))


def test_a_composite_is_offered_whole() -> None:
    """Its quantize and dequantize count as supported; alone they are no candidates."""
    model, *_ = CONVOLUTIONS["another 8-bit tensor added"]
    graph, cutlass = model.graph, get("cutlass")
    (instance,) = cutlass.instances(Target.cuda("sm_90a"), "float32")
    assert not [r for i in graph.operators if (r := cutlass.supports(graph, i, instance))]
    assert cutlass.composites_of(graph, instance, 1 << graph.operators[0]) is None
    spec = cutlass.partition_spec(instance, graph)
    found = [len(graph.to_operators(c.sub_graph.inside)) for c in spec.candidates(graph)]
    assert found == [len(graph.operators)]


needs_example = pytest.mark.skipif(
    headers.attention() is None, reason="CUTLASS came without its examples"
)


@needs_example
@pytest.mark.parametrize(
    ("mask", "heads_outside", "batch"),
    [
        ("", False, 2),
        ("", True, 2),
        ("added", False, 1),
        ("added", True, 2),
        ("selected", False, 2),
        ("selected", True, 1),
    ],
)
def test_attention_is_one_step(mask: str, heads_outside: bool, batch: int) -> None:
    model = attention_model(mask, batch=batch, heads_outside=heads_outside, divide=bool(mask))
    plan, result, truth, families = run(model)
    (step,) = plan["steps"]
    assert families == (Family("attention", "float32", "rows", "none", 4),)
    assert (step["heads"], step["batch"]) == ((2, batch) if heads_outside else (1, 2 * batch))
    np.testing.assert_allclose(result, truth, rtol=1e-4, atol=1e-5)


@needs_example
def test_attention_that_the_kernel_cannot_write_is_no_single_step() -> None:
    """A mask of each batch for all its heads: no one step leads from head to head."""
    model = attention_model("added", batch=2, heads_outside=False)
    with pytest.raises(UnsupportedError, match="Mul: CUTLASS runs it only"):
        plan_for(model)


@needs_example
def test_scores_set_to_what_a_softmax_sees_are_refused() -> None:
    model = attention_model("selected", fill=-5.0)
    with pytest.raises(UnsupportedError, match="still sees"):
        plan_for(model)
