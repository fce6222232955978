"""Scripted children of a kernel device: kernels take as long as their own text says."""

from __future__ import annotations

import os
import zlib

import numpy as np

from collage_engine.kernels.tuning.device import Built
from collage_engine.machine.cuda_runtime import DeviceFault
from collage_engine.tuning.kernel_job import KernelJob


def seconds_of(kernel: str) -> float:
    """Between one and two milliseconds, equal for equal kernels."""
    return 1e-3 * (1 + zlib.crc32(kernel.encode()) % 1000 / 1000)


class Kernel:
    def __init__(self, seconds: float, wrong: bool = False) -> None:
        self.numbers = np.full(4, 2.0 if wrong else 1.0, np.float32)
        self._seconds = seconds

    def sample(self) -> float:
        return self._seconds

    def close(self) -> None:
        pass


class Canned(KernelJob):
    """Code ``crash`` ends the process, ``fault`` spoils the device, ``wrong`` gives other numbers;
    ``fast`` and ``slow`` are."""

    def load(self, built: Built, architecture: str) -> Kernel:
        if built.code == b"crash":
            os.abort()
        if built.code == b"fault":
            raise DeviceFault("an illegal address (700)")
        told = {b"fast": 1e-4, b"slow": 1e-2}.get(built.code)
        return Kernel(told or seconds_of(built.kernel), built.code == b"wrong")
