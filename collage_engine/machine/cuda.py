"""Asks the driver (``libcuda``), in a child, what NVIDIA devices this machine has.

No package is needed for that: the driver's library is there wherever a device can be used. The
child keeps a broken driver, and a context nobody asked for, out of this process.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from collage_engine.machine.worker import WorkerError, WorkerTimeout, call_in_child
from collage_engine.records.toolchain import Device
from collage_engine.support.errors import UsageError
from collage_engine.support.time_limits import ANSWER_S

DEFAULT_ARCHITECTURE = "sm_90a"
"""The architecture that is compiled for where no device says otherwise: that of the devices in
``tests/gpu/RESULTS.md``."""


THREADS = 1024
"""Threads of a block, at most, on every architecture (CUDA C++ Programming Guide, table of
compute capabilities)."""
SHARED_BYTES = 48 << 10
"""Bytes of shared memory that a block has without asking for more, on every architecture (the
same guide)."""
REGISTERS = 65536
"""32-bit registers of a block, at most (the same table)."""

_ARCHITECTURE = re.compile(r"sm_\d{2,3}[af]?")

# CUdevice_attribute values of the driver API.
_L2_BYTES = 38
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76


@dataclass(frozen=True)
class CudaDevice:
    """One device as the driver describes it."""

    number: int
    name: str
    """The name that the driver gives the device, for example NVIDIA H200."""
    capability: tuple[int, int]
    memory_bytes: int
    l2_bytes: int
    driver: int
    """CUDA version the driver speaks, as 1000 × major + 10 × minor."""

    @property
    def architecture(self) -> str:
        """Return what is compiled for, like ``sm_90a`` for a compute capability of 9.0.

        From Hopper on the suffix unlocks instructions of that generation only.
        """
        major, minor = self.capability
        return f"sm_{major}{minor}" + ("a" if major >= 9 else "")

    def record(self) -> Device:
        """Return this device as a record, called ``cuda:N``."""
        text = json.dumps([asdict(self) | {"number": 0}], sort_keys=True)
        return Device(
            name=f"cuda:{self.number}",
            description=(
                f"{self.name}, {self.architecture}, {self.memory_bytes / 2**30:.0f} GiB, "
                f"CUDA {self.driver // 1000}.{self.driver % 1000 // 10}"
            ),
            threads=1,
            fingerprint=hashlib.sha256(text.encode()).hexdigest()[:16],
        )


@dataclass(frozen=True)
class CudaProbe:
    """The result of a probe: the CUDA devices, or the reason why there is none."""

    devices: tuple[CudaDevice, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class TargetChoice:
    """The target that the option ``--target`` asks for."""

    kind: str
    """The kind of target: ``cpu`` or ``cuda``."""
    architecture: str = ""
    """The architecture that a cuda target is compiled for; empty for cpu."""
    device: CudaDevice | None = None
    """The device that runs a cuda target; None where nothing can be measured here."""
    reason: str | None = None
    """A sentence on why there is no device, where there is none."""


def generation(architecture: str) -> int:
    """Return ten times the compute capability that an architecture names: 90 of ``sm_90a``."""
    return int(architecture.removeprefix("sm_").rstrip("af") or 0)


def choose_target(text: str) -> TargetChoice:
    """Read ``cpu``, ``cuda`` (this machine's first device) or ``cuda:sm_80``.

    An architecture that is not the device's own is compiled for, not measured.
    """
    kind, _, rest = text.partition(":")
    if kind in ("cpu", "llvm") and not rest:
        return TargetChoice(kind="cpu")
    if kind != "cuda" or (rest and not _ARCHITECTURE.fullmatch(rest)):
        raise UsageError(
            f"--target {text}: known targets are cpu, cuda, and cuda:ARCH with an architecture "
            "such as sm_90a"
        )
    probe = cuda_probe()
    device = probe.devices[0] if probe.devices else None
    if device is None:
        return TargetChoice("cuda", rest or DEFAULT_ARCHITECTURE, None, probe.reason)
    if rest and rest.rstrip("af") != device.architecture.rstrip("af"):
        return TargetChoice(
            "cuda",
            rest,
            None,
            f"the device here, {device.name}, is {device.architecture}, not {rest}",
        )
    return TargetChoice("cuda", rest or device.architecture, device)


@cache
def cuda_target(architecture: str) -> Any:
    """Return TVM's target for ``sm_90a`` and the like, with this machine's processor as host.

    Described, not asked of a device: it can be compiled for without one. Imports TVM.
    """
    from tvm.target import Target

    from collage_engine.machine.device import cpu_target

    device = {
        "kind": "cuda",
        "arch": architecture,
        "max_threads_per_block": THREADS,
        "max_shared_memory_per_block": SHARED_BYTES,
        "thread_warp_size": 32,
        "registers_per_block": REGISTERS,
    }
    return Target(device, host=Target(cpu_target()))


@cache
def cuda_probe() -> CudaProbe:
    """Return what a child process learns from the driver; asked once per process."""
    try:
        probe: CudaProbe = call_in_child(f"{__name__}:ask_driver", None, timeout_s=ANSWER_S)
    except WorkerTimeout as error:
        return CudaProbe(reason=f"the NVIDIA driver gave {error}")
    except WorkerError as error:
        return CudaProbe(reason=f"the NVIDIA driver crashed: {error}")
    return probe


def ask_driver(_: object = None) -> CudaProbe:
    """Return what the driver says; to be called in a child process."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return CudaProbe(reason="no NVIDIA driver: libcuda.so.1 is not on this machine")
    status = cuda.cuInit(0)
    if status:
        return CudaProbe(reason=f"the NVIDIA driver refuses to start: {_error(cuda, status)}")
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    status = cuda.cuDeviceGetCount(ctypes.byref(count))
    if status:
        return CudaProbe(reason=f"the NVIDIA driver counts no devices: {_error(cuda, status)}")
    if not count.value:
        return CudaProbe(reason="the NVIDIA driver finds no device")
    return CudaProbe(tuple(_describe(cuda, n, version.value) for n in range(count.value)))


def _describe(cuda: ctypes.CDLL, number: int, driver: int) -> CudaDevice:
    handle, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    cuda.cuDeviceGet(ctypes.byref(handle), number)
    cuda.cuDeviceGetName(name, len(name), handle)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)

    def attribute(which: int) -> int:
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), which, handle)
        return value.value

    return CudaDevice(
        number=number,
        name=name.value.decode(),
        capability=(attribute(_CAPABILITY_MAJOR), attribute(_CAPABILITY_MINOR)),
        memory_bytes=memory.value,
        l2_bytes=attribute(_L2_BYTES),
        driver=driver,
    )


def _error(cuda: ctypes.CDLL, status: int) -> str:
    text = ctypes.c_char_p()
    if cuda.cuGetErrorString(status, ctypes.byref(text)) == 0 and text.value:
        return f"{text.value.decode()} (error {status})"
    return f"error {status}"
