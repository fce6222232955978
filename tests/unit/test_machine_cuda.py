"""NVIDIA devices, targets and timing, as far as no driver and no device is needed.

Precisions that only NVIDIA devices compute in: usage, instances, tolerances.

ONNX Runtime's provider for NVIDIA devices: instances, plans and what an artifact carries.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from collage_engine.candidates.open_model import check_precision, missing_precision
from collage_engine.kernels.cuda.problems import math_of
from collage_engine.lowering.accuracy import tolerance
from collage_engine.lowering.compile import copies_wanted
from collage_engine.machine import cuda
from collage_engine.records.precision import BFLOAT16, FLOAT16, INT8, TF32, is_reduced
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.support.errors import UsageError
from collage_engine.toolchains.registry import get
from collage_engine.toolchains.tvm.toolchain import TvmToolchain
from tests.support.command import python
from tests.support.graphs import GraphBuilder
from tests.support.imported import imported_model

H200 = cuda.CudaDevice(
    number=0,
    name="NVIDIA H200",
    capability=(9, 0),
    memory_bytes=150 << 30,
    l2_bytes=60 << 20,
    driver=13000,
)


def there_is(monkeypatch: pytest.MonkeyPatch, probe: cuda.CudaProbe) -> None:
    monkeypatch.setattr(cuda, "cuda_probe", lambda: probe)


def test_equal_devices_share_measurements_and_others_do_not() -> None:
    fingerprint = H200.record().fingerprint
    assert replace(H200, number=1).record().fingerprint == fingerprint
    assert replace(H200, driver=13010).record().fingerprint != fingerprint


def test_targets_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    there_is(monkeypatch, cuda.CudaProbe(reason="no driver"))
    assert cuda.choose_target("cpu").kind == "cpu"
    default = cuda.choose_target("cuda")
    assert (default.architecture, default.device, default.reason) == ("sm_90a", None, "no driver")
    assert cuda.choose_target("cuda:sm_80").architecture == "sm_80"


def test_targets_with_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = cuda.CudaProbe((H200,))
    there_is(monkeypatch, probe)
    assert cuda.choose_target("cuda").device == probe.devices[0]
    assert cuda.choose_target("cuda:sm_90").device == probe.devices[0]
    other = cuda.choose_target("cuda:sm_80")
    assert other.device is None
    assert other.reason == "the device here, NVIDIA H200, is sm_90a, not sm_80"


@pytest.mark.parametrize("text", ["gpu", "cuda:90", "cuda:sm_90a:1", "cpu:1", ""])
def test_other_targets_are_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="known targets are cpu, cuda, and cuda:ARCH"):
        cuda.choose_target(text)


def test_a_fault_ends_the_child() -> None:
    child = python(
        "from collage_engine.timing.job import end_process, DeviceFault\n"
        "end_process(DeviceFault('an illegal address was read'))"
    )
    assert child.returncode == 70
    assert "an illegal address was read" in child.stderr


@pytest.mark.parametrize(
    ("weights", "model", "cache", "copies"),
    [
        (0, 1 << 30, 50 << 20, 1),  # nothing to keep cold
        (1 << 20, 40 << 20, 50 << 20, 1),  # the whole model stays in the cache
        (50 << 20, 100 << 20, 50 << 20, 3),
        (1 << 20, 100 << 20, 50 << 20, 12),  # no more than memory and patience allow
        (500 << 20, 600 << 20, 50 << 20, 2),
    ],
)
def test_copies_wanted(weights: int, model: int, cache: int, copies: int) -> None:
    assert copies_wanted(weights, model, cache) == copies


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
