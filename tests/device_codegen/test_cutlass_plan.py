"""CUTLASS plans: which steps the device is asked for; ``tests/gpu`` has their numbers."""

from __future__ import annotations

import pytest

from collage_engine.model.importer import ImportedModel
from collage_engine.records.toolchain import Target
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.cutlass.toolchain import DIALECT
from collage_engine.toolchains.registry import get
from tests.device_codegen.cuda_plans import Ints, model_of, normal, plan_of


def half(inputs: str, nodes: str, **weights: Ints) -> ImportedModel:
    """A model in half precision."""
    arrays = {n: (0.3 * normal(*s, dtype="float16")).astype("float16") for n, s in weights.items()}
    return model_of(inputs, nodes, **arrays)


def refused(model: ImportedModel) -> str:
    with pytest.raises(UnsupportedError) as caught:
        plan_of(DIALECT, model)
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
def test_what_follows_a_convolution_is_its_epilogue(name: str) -> None:
    model, expected = CONVOLUTIONS[name]
    plan, _ = plan_of(DIALECT, model)
    assert [s["epilogue"] for s in plan["steps"] if s["op"] != "transpose"] == expected
    # Images are turned on the way in and out, and between two kernels nothing is.
    assert sum(s["op"] == "transpose" for s in plan["steps"]) == len(model.inputs) + 1


def test_sizes_stand_in_the_order_of_the_runtimes_problem() -> None:
    """Images, height, width, channels; filters and kernel; result; padding, strides, dilation."""
    model = half(
        "float16[2,8,9,7] x",
        "y = Conv<pads=[1, 0, 1, 0], strides=[2, 1], dilations=[1, 2]>(x, w)",
        w=(16, 8, 3, 2),
    )
    plan, _ = plan_of(DIALECT, model)
    (step,) = (s for s in plan["steps"] if s["op"] == "conv")
    assert step["sizes"] == [2, 9, 7, 8, 16, 3, 2, 5, 5, 1, 0, 2, 1, 1, 2]


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
    assert cutlass.takes_set(graph, instance, graph.everything)
    assert not cutlass.takes_set(graph, instance, 1 << graph.operators[-1])
    assert not cutlass.instances(Target.cuda("sm_75"), "tf32")
