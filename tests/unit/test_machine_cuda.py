"""NVIDIA devices, targets and timing, as far as no driver and no device is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collage_engine.lowering.compile_cuda import copies_wanted
from collage_engine.machine import cuda
from collage_engine.support.errors import UsageError
from tests.support.command import python

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


def test_a_device_is_described() -> None:
    record = H200.record()
    assert record.name == "cuda:0"
    assert record.description == "NVIDIA H200, sm_90a, 150 GiB, CUDA 13.0"
    assert record.fingerprint


def test_equal_devices_share_measurements_and_others_do_not() -> None:
    fingerprint = H200.record().fingerprint
    assert replace(H200, number=1).record().fingerprint == fingerprint
    assert replace(H200, driver=13010).record().fingerprint != fingerprint


def test_the_driver_is_asked_in_a_child() -> None:
    reason = cuda.cuda_probe().reason
    assert reason is None or "NVIDIA driver" in reason, reason


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
