"""Samples between two readings of the speed probe of a device, on readings from a script."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

from collage_engine.machine.cuda_runtime import CudaRuntime, DeviceFault
from collage_engine.machine.cuda_speed_probe import SamplerSettings, SpeedProbeKernel, SteadySampler
from collage_engine.machine.cuda_timer import DeviceTimer
from tests.unit.test_cuda_timing import Device, Library


class Clock:
    """A device whose clock has a factor; readings and samples take longer when it is low."""

    def __init__(self, *factors: float) -> None:
        self._factors: Iterator[float] = iter(factors)
        self.factor = 1.0
        self.now = 0.0
        self.samples = 0

    def read(self) -> float:
        self.factor = next(self._factors, self.factor)
        self.now += 50e-6 * self.factor
        return 50e-6 * self.factor

    def take(self) -> float:
        self.samples += 1
        return 1e-3 * self.factor

    def sampler(self, **settings: Any) -> SteadySampler:
        return SteadySampler(self.read, SamplerSettings(**settings), lambda: self.now)


def test_the_level_is_that_of_settled_clocks() -> None:
    clock = Clock(5, 4, 3, 2, 1.5, 1.2, 1, 1, 1, 1, 1)
    assert clock.sampler().settle() == pytest.approx(50e-6)


def test_clocks_that_never_settle_do_not_hold_up_the_run() -> None:
    clock = Clock(*([1, 2] * 10_000))
    sampler = clock.sampler(settle_s=0.01)
    sampler.settle()
    assert clock.now < 0.011


def test_a_sample_with_the_probe_off_is_taken_again() -> None:
    clock = Clock(1, 1, 1, 1, 1, 1, 1.2, 1.2, 1, 1, 1)
    sampler = clock.sampler()
    assert sampler.sample(clock.take) == pytest.approx(1e-3)
    assert clock.samples == 3 and sampler.repeated == 2 and sampler.unsteady == 0


def test_small_drift_is_no_reason() -> None:
    clock = Clock(1, 1, 1, 1, 1, 1.02, 0.98)
    sampler = clock.sampler()
    sampler.sample(clock.take)
    assert clock.samples == 1 and sampler.repeated == 0


def test_the_least_disturbed_is_kept_when_clocks_never_come_back() -> None:
    clock = Clock(1, 1, 1, 1, 1, 2, 2, 1.5, 1.5, 1.1, 1.1, 3, 3)
    sampler = clock.sampler(retries=3)
    assert sampler.sample(clock.take) == pytest.approx(1.1e-3)
    assert sampler.unsteady == 1 and sampler.repeated == 3 and clock.samples == 4


class Driver:
    """``libcuda`` over a canned device."""

    def __init__(self, device: Device, fails: int = 0) -> None:
        self.device, self.fails = device, fails
        self.launches: list[tuple[int, int]] = []

    def cuModuleLoadData(self, out: Any, image: bytes) -> int:
        assert image == b"cubin"
        return self.fails

    def cuModuleGetFunction(self, out: Any, module: Any, name: bytes) -> int:
        assert name == b"collage_speed_probe"
        return 0

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        self.launches.append((rest[0], rest[3]))
        steps = ctypes.cast(rest[8][1], ctypes.POINTER(ctypes.c_int))[0]
        assert steps == 20_000
        self.device.clock_ms += 0.05
        return 0


def test_the_kernel_is_timed_between_events() -> None:
    device = Device()
    driver = Driver(device)
    kernel = SpeedProbeKernel(CudaRuntime(Library(device)), b"cubin", 132, driver)
    assert kernel() == pytest.approx(50e-6, rel=1e-4)
    assert driver.launches == [(132, 256)]


def test_a_lost_device_is_a_fault() -> None:
    device = Device()
    with pytest.raises(DeviceFault):
        SpeedProbeKernel(CudaRuntime(Library(device)), b"cubin", 132, Driver(device, fails=719))


def test_a_timer_brackets_its_samples() -> None:
    """A slow moment of the device: the timer's sample is the undisturbed one."""
    device = Device(call_ms=0.05)
    cuda = CudaRuntime(Library(device))
    readings = iter([1.0] * 5 + [1.3, 1.3, 1.0, 1.0])

    def read() -> float:
        factor = next(readings)
        device.call_ms = 0.05 * factor
        return 50e-6 * factor

    sampler = SteadySampler(read)
    timer = DeviceTimer(
        [lambda: device.work("a")], cuda, lambda stream: contextlib.nullcontext(), sampler
    )
    assert timer.captured > 0
    assert timer(20) / 20 == pytest.approx(50e-6, rel=1e-3)
    assert sampler.repeated == 1
