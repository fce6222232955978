"""CUTLASS plans, carried out in numpy: what the device is asked to do is what the model says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from collage_engine.model.importer import ImportedModel
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.toolchain import Target
from collage_engine.toolchains.cutlass.families import Family
from collage_engine.toolchains.cutlass.generate import plan_of
from tests.device_codegen.cuda_plans import (
    carried_out,
    model_of,
    node,
    normal,
    stored_formats,
    whole,
)
from tests.device_codegen.cutlass_machine import Machine


def plan_for(
    model: ImportedModel, nhwc: bool = False, precision: str = "tf32"
) -> tuple[dict[str, Any], bytes, tuple[Family, ...]]:
    nodes, inputs, outputs = whole(model)
    formats = stored_formats(model, nhwc)
    return plan_of(model.graph, nodes, inputs, outputs, model.constant, precision, formats)


def run(
    model: ImportedModel, nhwc: bool = False, precision: str = "tf32"
) -> tuple[dict[str, Any], np.ndarray, np.ndarray, tuple[Family, ...]]:
    """(plan, its result in logical order, the model's own, families)."""
    plan, weights, families = plan_for(model, nhwc, precision)
    result, truth = carried_out(
        model, stored_formats(model, nhwc), lambda given: Machine(plan, weights, given)
    )
    return plan, result, truth, families


PRODUCTS: dict[str, tuple[ImportedModel, list[str]]] = {
    "bias, residual, relu": (
        model_of(
            [
                node("MatMul", ["x", "w"], "p"),
                node("Add", ["b", "p"], "q"),
                node("Add", ["q", "r"], "s"),
                node("Relu", ["s"], "y"),
            ],
            {"x": (2, 5, 8), "r": (2, 5, 6)},
            {"w": normal(8, 6), "b": normal(6)},
            (2, 5, 6),
        ),
        ["gemm_tf32_rows_relu_a1"],
    ),
    "gelu by erf": (
        model_of(
            [node("MatMul", ["x", "w"], "p"), node("Gelu", ["p"], "y")],
            {"x": (4, 8)},
            {"w": normal(8, 6)},
            (4, 6),
        ),
        ["gemm_tf32_rows_gelu_a1"],
    ),
    "gelu by tanh": (
        model_of(
            [node("MatMul", ["x", "w"], "p"), node("Gelu", ["p"], "y", approximate="tanh")],
            {"x": (4, 8)},
            {"w": normal(8, 6)},
            (4, 6),
        ),
        ["gemm_tf32_rows_gelu_tanh_a1"],
    ),
    "silu written out": (
        model_of(
            [
                node("MatMul", ["x", "w"], "p"),
                node("Sigmoid", ["p"], "s"),
                node("Mul", ["p", "s"], "y"),
            ],
            {"x": (4, 8)},
            {"w": normal(8, 6)},
            (4, 6),
        ),
        ["gemm_tf32_rows_silu_a1"],
    ),
    "a batch, transposed right": (
        model_of(
            [node("Transpose", ["k"], "t", perm=[0, 1, 3, 2]), node("MatMul", ["x", "t"], "y")],
            {"x": (1, 3, 4, 8), "k": (1, 3, 5, 8)},
            {},
            (1, 3, 4, 5),
        ),
        ["gemm_tf32_columns_none_a1"],
    ),
    "one left matrix for a batch": (
        model_of(
            [node("MatMul", ["w", "x"], "y")], {"x": (3, 8, 6)}, {"w": normal(4, 8)}, (3, 4, 6)
        ),
        ["gemm_tf32_rows_none_a1"],
    ),
    "a chain through scratch memory": (
        model_of(
            [
                node("MatMul", ["x", "u"], "p"),
                node("Relu", ["p"], "q"),
                node("MatMul", ["q", "w"], "r"),
                node("Add", ["r", "p2"], "y"),
            ],
            {"x": (4, 8), "p2": (4, 6)},
            {"u": normal(8, 10), "w": normal(10, 6)},
            (4, 6),
        ),
        ["gemm_tf32_rows_relu_a1", "gemm_tf32_rows_none_a1"],
    ),
}

CONVOLUTIONS: dict[str, tuple[ImportedModel, list[str]]] = {
    "bias, residual, relu": (
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
        ["conv_tf32_columns_relu_a4"],
    ),
    "strides, dilation, padding that differs at both ends": (
        model_of(
            [node("Conv", ["x", "w"], "y", pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2])],
            {"x": (1, 4, 9, 8)},
            {"w": normal(6, 4, 3, 3)},
            (1, 6, 5, 5),
        ),
        ["conv_tf32_columns_none_a1"],
    ),
    "a pointwise one is a product": (
        model_of(
            [node("Conv", ["x", "w", "b"], "p"), node("Add", ["p", "r"], "y")],
            {"x": (2, 4, 3, 5), "r": (2, 6, 3, 5)},
            {"w": normal(6, 4, 1, 1), "b": normal(6)},
            (2, 6, 3, 5),
        ),
        ["gemm_tf32_columns_none_a1"],
    ),
    "two of them, the second adds the first": (
        model_of(
            [
                node("Conv", ["x", "u"], "p", pads=[1, 1, 1, 1]),
                node("Relu", ["p"], "q"),
                node("Conv", ["q", "w"], "r", pads=[1, 1, 1, 1]),
                node("Add", ["r", "q"], "y"),
            ],
            {"x": (1, 3, 4, 4)},
            {"u": normal(5, 3, 3, 3), "w": normal(5, 5, 3, 3)},
            (1, 5, 4, 4),
        ),
        ["conv_tf32_columns_relu_a1", "conv_tf32_columns_none_a1"],
    ),
}


def anchors(plan: dict[str, Any]) -> list[str]:
    return [s["family"] for s in plan["steps"] if s["op"] != "transpose"]


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_compute_what_the_model_says(name: str) -> None:
    model, expected = PRODUCTS[name]
    plan, result, truth, _ = run(model)
    assert anchors(plan) == expected
    np.testing.assert_allclose(result, truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nhwc", [False, True], ids=["plain", "nhwc"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_compute_what_the_model_says(name: str, nhwc: bool) -> None:
    model, expected = CONVOLUTIONS[name]
    plan, result, truth, _ = run(model, nhwc)
    assert anchors(plan) == expected
    transposed = sum(s["op"] == "transpose" for s in plan["steps"])
    # Plain images are turned on the way in and out, and between two kernels nothing is.
    inputs = len(model.inputs)
    assert transposed == (0 if nhwc else inputs + 1)
    np.testing.assert_allclose(result, truth, rtol=1e-4, atol=1e-5)


def test_float32_is_taken_only_where_it_may_be_rounded() -> None:
    model, _ = PRODUCTS["gelu by erf"]
    assert refused(model, "float32") == "MatMul: CUTLASS's kernels here round float32 to tf32"
    *_, families = run(model)
    assert families[0].dtype == "float32" and families[0].math == "tf32"


@pytest.mark.parametrize(("columns", "align"), [(16, 8), (6, 2)])
def test_half_precision_is_read_as_widely_as_its_rows_allow(columns: int, align: int) -> None:
    model = model_of(
        [node("MatMul", ["x", "w"], "p"), node("Relu", ["p"], "y")],
        {"x": (4, 8)},
        {"w": normal(8, columns, dtype="float16")},
        (4, columns),
        TensorProto.FLOAT16,
    )
    _, result, truth, families = run(model)
    assert families == (Family("gemm", "float16", "rows", "relu", align),)
    np.testing.assert_allclose(result, truth, rtol=1e-2, atol=1e-2)


def refused(model: ImportedModel, precision: str = "tf32") -> str:
    with pytest.raises(UnsupportedError) as caught:
        plan_for(model, precision=precision)
    return str(caught.value)


def test_odd_rows_in_half_precision_are_refused() -> None:
    reason = refused(
        model_of(
            [node("Conv", ["x", "w"], "y", pads=[1, 1, 1, 1])],
            {"x": (1, 3, 4, 4)},
            {"w": normal(8, 3, 3, 3, dtype="float16")},
            (1, 8, 4, 4),
            TensorProto.FLOAT16,
        )
    )
    assert reason.startswith("Conv: rows of 3 and 8 elements of float16")


def test_groups_are_refused() -> None:
    model = model_of(
        [node("Conv", ["x", "w"], "y", group=2)],
        {"x": (1, 4, 4, 4)},
        {"w": normal(4, 2, 1, 1)},
        (1, 4, 4, 4),
    )
    assert refused(model) == "Conv: CUTLASS's kernels here have no groups"


def test_a_transposed_left_matrix_is_refused() -> None:
    model = model_of(
        [node("Transpose", ["x"], "t", perm=[1, 0]), node("MatMul", ["t", "w"], "y")],
        {"x": (8, 4)},
        {"w": normal(8, 6)},
        (4, 6),
    )
    assert "left matrix" in refused(model)


def written_out(root: float) -> ImportedModel:
    """A product and ``y · (1 + erf(y / root)) / 2``."""

    def scalar(value: float) -> np.ndarray:
        return np.array(value, np.float32)

    return model_of(
        [
            node("MatMul", ["x", "w"], "p"),
            node("Div", ["p", "root"], "q"),
            node("Erf", ["q"], "e"),
            node("Add", ["e", "one"], "f"),
            node("Mul", ["p", "f"], "g"),
            node("Mul", ["g", "half"], "y"),
        ],
        {"x": (4, 8)},
        {"w": normal(8, 6), "root": scalar(root), "one": scalar(1), "half": scalar(0.5)},
        (4, 6),
    )


def test_a_written_out_activation_counts_only_with_its_own_numbers() -> None:
    plan, result, truth, _ = run(written_out(2**0.5))
    assert anchors(plan) == ["gemm_tf32_rows_gelu_a1"]
    np.testing.assert_allclose(result, truth, rtol=1e-4, atol=1e-5)
    assert refused(written_out(1.5)) == "gelu: 1.5 stands where 1.41421 must"


def test_fused_candidates_are_offered_and_epilogues_alone_are_not() -> None:
    from collage_engine.toolchains.registry import get

    model, _ = CONVOLUTIONS["bias, residual, relu"]
    graph = model.graph
    for name, count in (("cutlass", 4), ("cublas", 0)):
        toolchain = get(name)
        instance = toolchain.instances(Target.cuda("sm_90a"), "tf32")[-1]
        supported = [i for i in graph.operators if toolchain.supports(graph, i, instance) is None]
        assert len(supported) == count
    cutlass = get("cutlass")
    instance = cutlass.instances(Target.cuda("sm_90a"), "tf32")[-1]
    everything = graph.to_indices(tuple(range(len(graph.operators))))
    assert cutlass.composites_of(graph, instance, everything) == ()
    assert cutlass.composites_of(graph, instance, 1 << graph.operators[-1]) is None
    assert not cutlass.instances(Target.cuda("sm_75"), "tf32")


def test_what_fits_in_no_epilogue_is_refused() -> None:
    model = model_of(
        [node("MatMul", ["x", "w"], "p"), node("Tanh", ["p"], "y")],
        {"x": (4, 8)},
        {"w": normal(8, 6)},
        (4, 6),
    )
    assert refused(model) == "Tanh: CUTLASS runs it only in a product's epilogue"
