"""Runs a device's speed probe: a kernel whose time is known, before and after a sample.

A device raises its clocks when work comes and lowers them when it gets hot or another process
takes its power; candidates timed at different clocks must not be compared. The probe's kernel does
nothing but arithmetic, so its time tells the clock. It sets the level once the clocks have settled;
a sample with the probe off that level is taken again.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collage_engine.machine.cuda_runtime import SUCCESS, CudaRuntime
from collage_engine.records.errors import MeasureError

THREADS = 256
"""Threads of a block of the speed probe; chosen."""
STEPS = 20_000
"""Dependent multiply-adds of a thread of the speed probe; chosen, for some 50 µs at 1.7 GHz and
four cycles each."""

FUNCTION = b"collage_speed_probe"
SOURCE = """
extern "C" __global__ void collage_speed_probe(float* out, int steps) {
  float value = threadIdx.x;
  for (int i = 0; i < steps; ++i) value = fmaf(value, 0.999f, 0.5f);
  if (value < 0.0f) *out = value;
}
"""
"""Never writes: the values stay positive, which the compiler does not know."""


@dataclass(frozen=True)
class SamplerSettings:
    """When the device's clock counts as steady; times are seconds."""

    drift: float = 0.03
    """Off the level by more, relative: the sample is taken again."""
    settled: float = 0.01
    """The last readings lie this near each other: the clocks have settled."""
    readings: int = 5
    settle_s: float = 0.5
    """At most, for settling; then the level is what was read last."""
    retries: int = 3


class SteadySampler:
    """Takes each sample between two readings of the speed probe's kernel."""

    def __init__(
        self,
        read: Callable[[], float],
        settings: SamplerSettings | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Take ``read``, which runs the kernel once and returns its seconds."""
        self._read = read
        self._settings = settings or SamplerSettings()
        self._clock = clock
        self.level: float | None = None
        """Seconds of the kernel at the clocks samples are taken at."""
        self.repeated = 0
        """Samples taken again."""
        self.unsteady = 0
        """Samples kept though the clocks never stood still: the least disturbed of each."""

    def settle(self) -> float:
        """Run the kernel until its time no longer changes, and return that time in seconds."""
        s, began = self._settings, self._clock()
        readings: list[float] = []
        while True:
            readings.append(self._read())
            last = readings[-s.readings :]
            middle = statistics.median(last)
            steady = len(last) == s.readings and max(last) - min(last) <= s.settled * middle
            if steady or self._clock() - began >= s.settle_s:
                self.level = middle
                return middle

    def sample(self, take: Callable[[], float]) -> float:
        """Takes a sample while the clock is at its level, or the least disturbed of several."""
        level = self.settle() if self.level is None else self.level
        best: tuple[float, float] | None = None
        for attempt in range(self._settings.retries + 1):
            before = self._read()
            value = take()
            after = self._read()
            off = max(abs(before / level - 1), abs(after / level - 1))
            if off <= self._settings.drift:
                return value
            if best is None or off < best[0]:
                best = off, value
            self.repeated += attempt < self._settings.retries
        assert best is not None
        self.unsteady += 1
        return best[1]


class SpeedProbeKernel:
    """The speed probe's kernel on the device, timed between events.

    Needs a context (any CUDA call made one).
    """

    def __init__(
        self, cuda: CudaRuntime, cubin: bytes, multiprocessors: int, driver: Any = None
    ) -> None:
        """Take ``driver``: ``libcuda``, or what answers like it."""
        self._cuda = cuda
        self._driver = ctypes.CDLL("libcuda.so.1") if driver is None else driver
        self._blocks = multiprocessors
        self._stream = cuda.stream()
        self._begin, self._end = cuda.event(), cuda.event()
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._image = cubin
        self._check(self._driver.cuModuleLoadData(ctypes.byref(module), cubin))
        self._check(
            self._driver.cuModuleGetFunction(ctypes.byref(self._function), module, FUNCTION)
        )
        self._out, self._steps = ctypes.c_void_p(0), ctypes.c_int(STEPS)
        self._arguments = (ctypes.c_void_p * 2)(
            ctypes.cast(ctypes.byref(self._out), ctypes.c_void_p),
            ctypes.cast(ctypes.byref(self._steps), ctypes.c_void_p),
        )

    def _check(self, status: int) -> None:
        if status != SUCCESS:
            self._cuda.check(status, "the speed probe's kernel")

    def __call__(self) -> float:
        """Run the kernel once and return its seconds."""
        self._cuda.record(self._begin, self._stream)
        self._check(
            self._driver.cuLaunchKernel(
                self._function,
                self._blocks,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                self._stream,
                self._arguments,
                None,
            )
        )
        self._cuda.record(self._end, self._stream)
        seconds = self._cuda.seconds_between(self._begin, self._end)
        if seconds <= 0:
            raise MeasureError("the speed probe's kernel took no time")
        return seconds
