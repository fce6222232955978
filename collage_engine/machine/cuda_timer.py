"""Times work on an NVIDIA device: CUDA graphs of calls between events, or calls one by one."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from collage_engine.machine.cuda_runtime import CudaRuntime
from collage_engine.records.errors import MeasureError

GRAPH_S = 0.001
"""Seconds that a sample of several calls lasts, such as a graph on a device; chosen: launching one,
and what a clock resolves, take microseconds."""
MOST_CALLS = 64
"""Calls in one graph, at most; chosen: a graph of more takes longer to make than to run."""
WARM_S = 0.005
"""Seconds of work before the first timing, because clocks rise when work comes; chosen."""


class DeviceTimer:
    """Times calls on a stream of its own: graphs of them, or one by one."""

    def __init__(
        self,
        calls: Sequence[Callable[[], object]],
        cuda: CudaRuntime,
        use_stream: Callable[[ctypes.c_void_p], AbstractContextManager[object]],
    ) -> None:
        """Captures the calls in a graph, or notes why they cannot be captured.

        Args:
            calls: They do the same work with different copies of the weights, in turns.
            cuda: The runtime.
            use_stream: Makes a stream the current one for as long as its context lasts.
        """
        self._calls = calls
        self._turn = 0
        self._cuda = cuda
        self._use = use_stream
        self._stream = cuda.stream()
        self._begin, self._end = cuda.event(), cuda.event()
        self._graph: ctypes.c_void_p | None = None
        self.captured = 0
        """Calls in the graph; 0: it could not be captured."""
        self.refused: str | None = None
        """Why not."""
        with self._use(self._stream):
            once = self._warm()
        count = max(1, min(MOST_CALLS, round(GRAPH_S / once))) if once > 0 else MOST_CALLS
        count = -(-count // len(calls)) * len(calls)
        try:
            with self._use(self._stream):
                self._graph = cuda.capture(self._stream, lambda: self._issue(count))
            self.captured = count
        except MeasureError as error:
            self.refused = str(error)
            cuda.synchronize()

    def close(self) -> None:
        """Frees the graph of calls."""
        if self._graph is not None:
            self._cuda.destroy_graph(self._graph)
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
        with self._use(self._stream):
            if self._graph is not None:
                launches = -(-calls // self.captured)
                self._cuda.record(self._begin, self._stream)
                for _ in range(launches):
                    self._cuda.launch(self._graph, self._stream)
                self._cuda.record(self._end, self._stream)
                seconds = self._cuda.seconds_between(self._begin, self._end)
                return seconds * calls / (launches * self.captured)
            start = time.perf_counter()
            self._cuda.record(self._begin, self._stream)
            self._issue(calls)
            issued = time.perf_counter() - start
            self._cuda.record(self._end, self._stream)
            return max(issued, self._cuda.seconds_between(self._begin, self._end))
