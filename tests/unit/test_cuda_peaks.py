"""Upper bounds of NVIDIA devices, against their datasheets, and where they are used."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from collage_engine.bounds.certified import machine_bounds
from collage_engine.machine.cuda import CudaDevice
from collage_engine.machine.cuda_peaks import device_peaks
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.toolchain import ToolchainInstance
from tests.support.graphs import GraphBuilder

H200 = CudaDevice(
    number=0,
    name="NVIDIA H200",
    capability=(9, 0),
    memory_bytes=141 << 30,
    multiprocessors=132,
    l2_bytes=60 << 20,
    driver=13000,
    clock_khz=1_980_000,
    memory_clock_khz=3_201_000,
    bus_bits=6144,
)

ON_DEVICE = ToolchainInstance(toolchain="tvm", device="cuda:0", architecture="sm_90a")


def test_no_peak_is_below_what_the_datasheet_says() -> None:
    """H200 (SXM), dense, in TFLOP/s; 4.8 TB/s."""
    peaks = device_peaks(H200)
    assert peaks is not None
    for dtype, tera in {
        "float32": 67,
        "float64": 67,
        "tf32": 495,
        "float16": 990,
        "bfloat16": 990,
        "int8": 1979,
    }.items():
        assert tera * 1e12 <= peaks.flops[dtype] <= 3 * tera * 1e12
    near, far = peaks.levels
    assert 4.8e12 <= far.bytes_per_s <= 6e12 and far.holds >= H200.l2_bytes
    assert near.holds == 0 and near.bytes_per_s > far.bytes_per_s


def test_an_unknown_generation_is_bounded_from_far_above_and_a_silent_driver_not_at_all() -> None:
    known, newer = device_peaks(H200), device_peaks(replace(H200, capability=(10, 3)))
    assert known is not None and newer is not None
    assert all(newer.flops[dtype] > rate for dtype, rate in known.flops.items())
    assert newer.flops["float32"] > 900e12
    assert device_peaks(replace(H200, clock_khz=0)) is None


def test_bounds_on_a_device_are_not_those_of_the_processor() -> None:
    """A product of 2 × 1024³ operations takes a core milliseconds, the device microseconds."""
    b = GraphBuilder((1024, 1024))
    g = b.build(b.call("matmul", b.parameter(), b.constant((1024, 1024))))
    record = make_candidate(g, ON_DEVICE, (0,), rule="operator")
    (found_us,) = machine_bounds(g, [record], None, H200).values()
    assert 1.0 < found_us < 35.0
    assert machine_bounds(g, [record], None, None) == {}
    half = msgspec.structs.replace(ON_DEVICE, precision="float16")
    reduced = msgspec.structs.replace(record, instance=half)
    (faster_us,) = machine_bounds(g, [reduced], None, H200).values()
    assert faster_us == pytest.approx(found_us / 6, rel=0.3)
