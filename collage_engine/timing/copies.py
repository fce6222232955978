"""Times copies between an NVIDIA device and its host, once per device.

As a placement pays them (``toolchains/runtime/host_src``): from and to pinned memory, on the one
stream. To the host the wait until the value is there belongs to it; to the device, launching the
CUDA graph that goes on there, which a partition on the host has interrupted. A copy of a few bytes
and one of some megabytes give a cost per call and one per byte.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from collage_engine.machine.cuda_runtime import WARM_S, CudaRuntime
from collage_engine.machine.worker import WorkerError, call_in_child
from collage_engine.records.format import TO_DEVICE, TO_HOST, byte_constant, call_constant
from collage_engine.records.versions import MEASURING_PROTOCOL
from collage_engine.store.keys import KeyContext, constant_name
from collage_engine.store.store import Store
from collage_engine.support.errors import MeasureError
from collage_engine.support.time_limits import WORK_S, Flag
from collage_engine.timing.protocol import DEFAULTS

JOB = "collage_engine.timing.copies:run_job"
SMALL, LARGE = 256, 4 << 20
"""Bytes of the two copies that a line is drawn through; chosen: a copy of next to nothing, and one
that the bus bounds."""
ROUNDS = DEFAULTS.max_rounds
_TO_HOST, _TO_DEVICE = 2, 1
"""cudaMemcpyKind"""


def copy_constants(
    context: KeyContext,
    *,
    store: Store,
    env: Mapping[str, str] | None = None,
    cancel: Flag | None = None,
    on_measuring: Callable[[], None] = lambda: None,
    job: str = JOB,
) -> dict[str, float]:
    """Return what copies between device and host cost, from the store or measured now.

    Args:
        context: what measurements depend on here.
        store: where known costs are, and new ones are kept.
        env: the child's variables.
        cancel: ends the child when it is set.
        on_measuring: called when they are not stored yet.
        job: the child's work; tests give another one.

    Returns:
        Microseconds by the names of ``records.format``.

    Raises:
        MeasureError: they cannot be measured.
    """
    name = constant_name("copies", [context.fingerprint, MEASURING_PROTOCOL])
    known = store.constant(name)
    if known is None:
        on_measuring()
        try:
            known = call_in_child(job, ROUNDS, timeout_s=WORK_S, cancel=cancel, env=env)
        except WorkerError as error:
            raise MeasureError(f"copies between device and host: {error}") from error
        store.put_constant(name, known)
    return dict(known)


# ---------------------------------------------------------------------- in the child


def run_job(rounds: int) -> dict[str, float]:
    """Time so many rounds of copies in this process, which loads the CUDA runtime."""
    from collage_engine.lowering.virtual_machine import load_cuda

    load_cuda()
    return measured(CudaRuntime(), rounds)


def measured(
    cuda: CudaRuntime,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the constants, by any runtime that answers like CUDA's."""
    pair = _Pair(cuda)
    found: dict[str, float] = {}
    for direction, work in ((TO_HOST, pair.to_host), (TO_DEVICE, pair.to_device)):
        began = clock()
        work(LARGE)
        while clock() - began < WARM_S:
            work(LARGE)
        taken: dict[int, list[float]] = {SMALL: [], LARGE: []}
        for _ in range(rounds):
            for size, times in taken.items():
                start = clock()
                work(size)
                times.append(clock() - start)
        small, large = (statistics.median(taken[size]) * 1e6 for size in (SMALL, LARGE))
        per_byte = max(0.0, large - small) / (LARGE - SMALL)
        found[byte_constant(direction)] = per_byte
        found[call_constant(direction)] = max(0.0, small - SMALL * per_byte)
    return found


class _Pair:
    """Memory on either side, a stream, and a graph that does next to nothing."""

    def __init__(self, cuda: CudaRuntime) -> None:
        self._cuda = cuda
        self._device, self._host = ctypes.c_void_p(), ctypes.c_void_p()
        size = ctypes.c_size_t(LARGE)
        library: Any = cuda.library
        cuda.check(library.cudaMalloc(ctypes.byref(self._device), size), "allocating on the device")
        cuda.check(library.cudaMallocHost(ctypes.byref(self._host), size), "pinning memory")
        self._stream = cuda.stream()
        self._graph = cuda.capture(self._stream, self._nothing)

    def _nothing(self) -> None:
        status = self._cuda.library.cudaMemsetAsync(
            self._device, ctypes.c_int(0), ctypes.c_size_t(4), self._stream
        )
        self._cuda.check(status, "setting memory")

    def _copy(self, to: ctypes.c_void_p, source: ctypes.c_void_p, size: int, kind: int) -> None:
        status = self._cuda.library.cudaMemcpyAsync(
            to, source, ctypes.c_size_t(size), ctypes.c_int(kind), self._stream
        )
        self._cuda.check(status, "copying")

    def to_host(self, size: int) -> None:
        self._copy(self._host, self._device, size, _TO_HOST)
        self._cuda.synchronize()

    def to_device(self, size: int) -> None:
        self._copy(self._device, self._host, size, _TO_DEVICE)
        self._cuda.launch(self._graph, self._stream)
        self._cuda.synchronize()
