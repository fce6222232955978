"""Times what brings a value from one format, or one device, to another, in a child process.

The kernels between formats are those that a built placement calls.

Copies between an NVIDIA device and its host are timed as a placement pays them
(``toolchains/runtime/host_src``): from and to pinned memory, on the one stream. To the host the
wait until the value is there belongs to it; to the device, launching the CUDA graph that goes on
there, which a partition on the host has interrupted. A copy of a few bytes and one of some
megabytes give a cost per call and one per byte.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from collage_engine.machine.cuda_runtime import CudaRuntime
from collage_engine.machine.device import WARM_S
from collage_engine.records.format import (
    TO_DEVICE,
    TO_HOST,
    byte_constant,
    call_constant,
    conversion_constant,
    stored_type,
)
from collage_engine.records.graph import TensorType
from collage_engine.timing.protocol import time_interleaved
from collage_engine.toolchains.registry import format_converter

SMALL, LARGE = 256, 4 << 20
"""Bytes of the two copies that a line is drawn through; chosen: a copy of next to nothing, and one
that the bus bounds."""
_TO_HOST, _TO_DEVICE = 2, 1
"""cudaMemcpyKind"""

Conversion = tuple[TensorType, str, str]
"""Logical type, from format, to format."""


@dataclass(frozen=True)
class ConversionRequest:
    """Conversions to be timed, on so many threads."""

    conversions: tuple[Conversion, ...]
    threads: int


def time_conversions(request: ConversionRequest) -> dict[str, float]:
    """Build the kernels of all conversions as one module and time them in interleaved rounds.

    Args:
        request: The conversions, and what they run on.

    Returns:
        Microseconds by ``records.format.conversion_constant``.
    """
    import tvm

    from collage_engine.kernels.stack_buffers import PIPELINE
    from collage_engine.lowering.compile import timer_of
    from collage_engine.lowering.tensors import empty
    from collage_engine.lowering.virtual_machine import build_target, use_threads

    writer, functions = format_converter(), dict[str, Any]()
    for number, each in enumerate(request.conversions):
        symbol = f"conversion{number}"
        kernel = writer.conversion(*each, request.threads)
        functions[symbol] = kernel.with_attr("global_symbol", symbol)
    module = tvm.tirx.build(tvm.IRModule(functions), build_target(), PIPELINE)
    use_threads(request.threads)
    timed = []
    for symbol, (kind, source, target) in zip(functions, request.conversions, strict=True):
        arguments = [empty(stored_type(kind, name)) for name in (source, target)]
        for tensor in arguments:
            tensor.copyfrom(tensor.numpy() * 0)  # pages of its own, and no numbers that are slow
        timed.append(timer_of([module], symbol, arguments))
    timings = time_interleaved(timed, drops=False)
    return {
        conversion_constant(*each): timing.median * 1e6
        for each, timing in zip(request.conversions, timings, strict=True)
    }


def time_copies(_: object = None) -> dict[str, float]:
    """Time copies in this process, which loads the CUDA runtime."""
    from collage_engine.lowering.virtual_machine import load_cuda

    load_cuda()
    pair = _Pair(CudaRuntime())
    constants: dict[str, float] = {}
    for direction, work in ((TO_HOST, pair.to_host), (TO_DEVICE, pair.to_device)):

        def timed(size: int, calls: int, work: Callable[[int], None] = work) -> float:
            start = time.perf_counter()
            for _ in range(calls):
                work(size)
            return time.perf_counter() - start

        warm_s = 0.0
        while warm_s < WARM_S:
            warm_s += timed(LARGE, 1)
        timings = time_interleaved([partial(timed, SMALL), partial(timed, LARGE)], drops=False)
        small, large = (timing.median * 1e6 for timing in timings)
        per_byte = max(0.0, large - small) / (LARGE - SMALL)
        constants[byte_constant(direction)] = per_byte
        constants[call_constant(direction)] = max(0.0, small - SMALL * per_byte)
    return constants


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
