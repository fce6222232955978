"""Precisions that only NVIDIA devices compute in: usage, instances, tolerances."""

from __future__ import annotations

import pytest

from collage_engine.candidates.open_model import check_precision, missing_precision
from collage_engine.kernels.cuda.problems import math_of
from collage_engine.lowering.accuracy import tolerance
from collage_engine.records.precision import BFLOAT16, FLOAT16, INT8, TF32, is_reduced
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.support.errors import UsageError
from collage_engine.toolchains.registry import get
from collage_engine.toolchains.tvm.toolchain import TvmToolchain
from tests.support.graphs import GraphBuilder
from tests.support.imported import imported_model

MODEL = imported_model(GraphBuilder().build())


@pytest.mark.parametrize("precision", [TF32, FLOAT16])
def test_on_a_processor_it_is_wrong_usage(precision: str) -> None:
    with pytest.raises(UsageError, match="is for NVIDIA devices"):
        check_precision(MODEL, precision, "cpu")
    check_precision(MODEL, precision, "cuda:sm_90a")


def test_a_reduced_instance_stands_beside_the_plain_one() -> None:
    """Softmax and the like are offered in float32 only, so that one must be there."""
    for precision in (FLOAT16, BFLOAT16):
        plain, reduced = TvmToolchain().instances(Target.cuda("sm_90a"), precision)
        assert not is_reduced(plain) and reduced.precision == FLOAT16
        assert reduced.architecture == "sm_90a" and reduced.device == "cuda:0"
        assert plain.id != reduced.id
    assert len(TvmToolchain().instances(Target.cuda("sm_90a"), INT8)) == 1
    assert len(TvmToolchain().instances(Target.cuda("sm_60"), FLOAT16)) == 1


@pytest.mark.parametrize("name", ["cublas", "cudnn"])
@pytest.mark.parametrize("precision", [TF32, FLOAT16, BFLOAT16])
def test_every_toolchain_offers_float32_beside_what_the_run_admits(
    name: str, precision: str
) -> None:
    plain, *lower = get(name).instances(Target.cuda("sm_90a"), precision)
    assert not is_reduced(plain) and plain.id == name
    assert lower and all(is_reduced(i) and i.option("precision") for i in lower)
    assert len({i.id for i in (plain, *lower)}) == 1 + len(lower)
    digits = {TF32: 10, FLOAT16: 10, BFLOAT16: 7}
    assert all(digits[i.precision] >= digits[precision] for i in lower)
    for other in ("float32", INT8):
        assert [i.id for i in get(name).instances(Target.cuda("sm_90a"), other)] == [name]


def test_older_devices_are_offered_what_they_have() -> None:
    assert len(get("cublas").instances(Target.cuda("sm_75"), FLOAT16)) == 2
    assert len(get("cublas").instances(Target.cuda("sm_75"), TF32)) == 1
    assert len(get("cudnn").instances(Target.cuda("sm_75"), TF32)) == 1
    assert get("cutlass").instances(Target.cuda("sm_75"), TF32) == ()


def test_arithmetic_follows_generation_and_type() -> None:
    assert math_of("float32", "float32", "sm_90a") == "plain"
    assert math_of("float32", FLOAT16, "sm_90a") == "f16"
    assert math_of("float16", "float32", "sm_75") == "f16"
    assert math_of("float16", "float32", "sm_60") == "plain"
    assert math_of("bfloat16", "float32", "sm_90a") == "plain"
    assert math_of("int8", "float32", "sm_90a") is None


def test_tolerances_and_the_warning() -> None:
    assert tolerance(TF32) == tolerance(FLOAT16) == 1e-2
    plain = ToolchainInstance(toolchain="tvm", device="cuda:0", architecture="sm_70")
    said = missing_precision(TF32, [plain])
    assert said is not None and "tf32" in said and "device" in said
