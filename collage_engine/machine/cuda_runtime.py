"""Calls the CUDA runtime's functions that timing needs: streams, events and graphs.

Through ctypes on the copy of ``libcudart`` that TVM has loaded. Every status is looked at: an
error that spoils the context for good (a *fault*) must end the process, not be blamed on the
next candidate.

Work on a device is timed as CUDA graphs of calls between events, or call by call.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from collage_engine.machine.device import WARM_S
from collage_engine.support.errors import MeasureError, short_reason

SUCCESS = 0
NON_BLOCKING = 1
CAPTURE_THREAD_LOCAL = 1
"""Values of cudaError_t, of cudaStreamNonBlocking and of cudaStreamCaptureMode."""
FAULTS = frozenset({214, 220, 226, 700, 702, 710, 713, 714, 715, 716, 717, 718, 719})
"""cudaError values after which the context is unusable: uncorrectable ECC, NVLink and contained
faults, illegal addresses and instructions, launch time-outs and failures, device assertions."""

LOST_DEVICE = os.EX_SOFTWARE
"""Exit status of a child process whose device context is spoiled for good."""

LIBRARY = "libcudart.so.13"


class DeviceFault(Exception):
    """The device's context is lost; the process must end."""


class CudaRuntime:
    """Calls of the CUDA runtime, each of them checked.

    ``library`` has the C functions; tests give one of their own.
    """

    def __init__(self, library: Any = None) -> None:
        self.library = ctypes.CDLL(LIBRARY) if library is None else library

    def check(self, status: int, what: str) -> None:
        """Check the status that a call of the CUDA runtime returned.

        Args:
            status: The status.
            what: What was called, for the message.

        Raises:
            DeviceFault: The error spoils the context.
            MeasureError: The call failed otherwise.
        """
        if status == SUCCESS:
            return
        self.library.cudaGetLastError()
        text = f"{what}: {self.text(status)}"
        if status in FAULTS:
            raise DeviceFault(text)
        raise MeasureError(text)

    def text(self, status: int) -> str:
        """Return what the runtime calls a status."""
        describe = self.library.cudaGetErrorString
        describe.restype = ctypes.c_char_p
        description = describe(status)
        return f"{description.decode()} ({status})" if description else f"CUDA error {status}"

    def synchronize(self) -> None:
        """Wait until the device is done; an error of earlier work is raised here."""
        self.check(self.library.cudaDeviceSynchronize(), "the device")

    def _handle(self, call: Callable[..., int], what: str, *arguments: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.check(call(ctypes.byref(handle), *arguments), what)
        return handle

    def stream(self) -> ctypes.c_void_p:
        """Return a new stream that does not wait for the default one."""
        call = self.library.cudaStreamCreateWithFlags
        return self._handle(call, "creating a stream", ctypes.c_uint(NON_BLOCKING))

    def event(self) -> ctypes.c_void_p:
        """Return a new event that takes times."""
        call = self.library.cudaEventCreateWithFlags
        return self._handle(call, "creating an event", ctypes.c_uint(0))

    def record(self, event: ctypes.c_void_p, stream: ctypes.c_void_p) -> None:
        """Have the event happen when the stream comes to it."""
        self.check(self.library.cudaEventRecord(event, stream), "recording an event")

    def seconds_between(self, begin: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Wait for the later event and return the seconds since the earlier one."""
        self.check(self.library.cudaEventSynchronize(end), "waiting for the device")
        ms = ctypes.c_float()
        self.check(
            self.library.cudaEventElapsedTime(ctypes.byref(ms), begin, end), "reading events"
        )
        return ms.value / 1000

    def capture(self, stream: ctypes.c_void_p, work: Callable[[], object]) -> ctypes.c_void_p:
        """Capture what ``work`` enqueues on the stream as an executable graph.

        Raises:
            MeasureError: The work cannot be captured: it allocates, or waits for the device.
        """
        self.check(
            self.library.cudaStreamBeginCapture(stream, ctypes.c_int(CAPTURE_THREAD_LOCAL)),
            "beginning a capture",
        )
        graph = ctypes.c_void_p()
        failed: Exception | None = None
        try:
            work()
        except DeviceFault:
            raise
        except Exception as error:
            failed = error
        status = self.library.cudaStreamEndCapture(stream, ctypes.byref(graph))
        if failed is not None:
            self.library.cudaGetLastError()
            raise MeasureError(f"it cannot be captured: {short_reason(failed)}") from failed
        self.check(status, "ending a capture")
        try:
            call = self.library.cudaGraphInstantiate
            return self._handle(call, "making a graph", graph, ctypes.c_ulonglong(0))
        finally:
            self.library.cudaGraphDestroy(graph)

    def launch(self, graph: ctypes.c_void_p, stream: ctypes.c_void_p) -> None:
        """Run a graph on a stream; it returns before the graph is done."""
        self.check(self.library.cudaGraphLaunch(graph, stream), "launching a graph")


GRAPH_S = 0.001
"""Seconds that a sample of several calls lasts, such as a graph on a device: two thousand times
what an event resolves (half a microsecond, ``cudaEventElapsedTime``)."""


class DeviceTimer:
    """Times calls on a stream of its own: graphs of them, or one by one."""

    def __init__(self, calls: Sequence[Callable[[], object]], cuda: CudaRuntime) -> None:
        """Capture the calls in a graph, or note why they cannot be captured.

        Args:
            calls: They do the same work with different copies of the weights, in turns.
            cuda: The runtime.
        """
        self._calls = calls
        self._turn = 0
        self._cuda = cuda
        self._stream = cuda.stream()
        self._begin, self._end = cuda.event(), cuda.event()
        self._graph: ctypes.c_void_p | None = None
        with self._on_stream():
            once = self._warm()
        count = max(1, round(GRAPH_S / once))
        self._captured = count = -(-count // len(calls)) * len(calls)
        """Calls in the graph, where there is one."""
        try:
            with self._on_stream():
                self._graph = cuda.capture(self._stream, lambda: self._issue(count))
        except MeasureError:  # calls are then issued one by one
            cuda.synchronize()

    def _on_stream(self) -> Any:
        """Have TVM and the toolchains' runtimes work on the timer's stream."""
        import tvm_ffi

        return tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), self._stream.value or 0)

    def close(self) -> None:
        """Frees the graph of calls."""
        if self._graph is not None:
            self._cuda.library.cudaGraphExecDestroy(self._graph)
            self._graph = None

    def _issue(self, count: int) -> None:
        """Issues so many calls, going on with the copy of the weights whose turn it is."""
        for _ in range(count):
            self._calls[self._turn]()
            self._turn = (self._turn + 1) % len(self._calls)

    def _warm(self) -> float:
        """Return the seconds of one call, once the clocks have risen."""
        self._issue(len(self._calls))
        self._cuda.synchronize()
        began, done = time.perf_counter(), 0
        while True:
            self._issue(len(self._calls))
            self._cuda.synchronize()
            done += len(self._calls)
            taken = time.perf_counter() - began
            if taken >= WARM_S:
                return taken / done

    def __call__(self, calls: int) -> float:
        """Return the seconds of so many calls, whatever multiple of them was run for it."""
        with self._on_stream():
            if self._graph is not None:
                launches = -(-calls // self._captured)
                self._cuda.record(self._begin, self._stream)
                for _ in range(launches):
                    self._cuda.launch(self._graph, self._stream)
                self._cuda.record(self._end, self._stream)
                seconds = self._cuda.seconds_between(self._begin, self._end)
                return seconds * calls / (launches * self._captured)
            start = time.perf_counter()
            self._cuda.record(self._begin, self._stream)
            self._issue(calls)
            issued = time.perf_counter() - start
            self._cuda.record(self._end, self._stream)
            return max(issued, self._cuda.seconds_between(self._begin, self._end))
