"""Timing on an NVIDIA device, against a runtime that answers from a script."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

from collage_engine.lowering.compile_cuda import copies_wanted
from collage_engine.machine.cuda_runtime import CudaRuntime, DeviceFault, DeviceTimer
from collage_engine.records.errors import MeasureError
from tests.support.command import python


class Device:
    """A device on which every call takes ``call_ms`` on its own clock."""

    def __init__(self, call_ms: float = 0.05) -> None:
        self.call_ms = call_ms
        self.clock_ms = 0.0
        self.capturing: list[str] | None = None
        self.graphs: dict[int, list[str]] = {}
        self.events: dict[int, float] = {}
        self.issued: list[str] = []
        self.launches = 0
        self.handles = 100
        self.fails: dict[str, int] = {}

    def work(self, name: str) -> None:
        if self.capturing is not None:
            self.capturing.append(name)
        else:
            self.issued.append(name)
            self.clock_ms += self.call_ms

    def _new(self, reference: Any) -> int:
        self.handles += 1
        ctypes.cast(reference, ctypes.POINTER(ctypes.c_void_p))[0] = self.handles
        return self.handles

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name in self.fails:
                return self.fails[name]
            return getattr(self, "do_" + name, lambda *a: 0)(*arguments)

        if name.startswith("cuda"):
            return call
        raise AttributeError(name)

    def do_cudaStreamCreateWithFlags(self, out: Any, flags: Any) -> int:
        self._new(out)
        return 0

    do_cudaEventCreateWithFlags = do_cudaStreamCreateWithFlags

    def do_cudaStreamBeginCapture(self, stream: Any, mode: Any) -> int:
        self.capturing = []
        return 0

    def do_cudaStreamEndCapture(self, stream: Any, out: Any) -> int:
        assert self.capturing is not None
        self.graphs[self._new(out)] = self.capturing
        self.capturing = None
        return 0

    def do_cudaGraphInstantiate(self, out: Any, graph: Any, flags: Any) -> int:
        self.graphs[self._new(out)] = self.graphs[graph.value]
        return 0

    def do_cudaGraphLaunch(self, graph: Any, stream: Any) -> int:
        self.launches += 1
        self.clock_ms += self.call_ms * len(self.graphs[graph.value])
        return 0

    def do_cudaEventRecord(self, event: Any, stream: Any) -> int:
        self.events[event.value] = self.clock_ms
        return 0

    def do_cudaEventElapsedTime(self, out: Any, begin: Any, end: Any) -> int:
        elapsed = self.events[end.value] - self.events[begin.value]
        ctypes.cast(out, ctypes.POINTER(ctypes.c_float))[0] = elapsed
        return 0

    def do_cudaGetErrorString(self, status: int) -> bytes:
        return b"said the device"


class Library:
    """What ctypes would give: functions with a ``restype``."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._functions: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        do = getattr(self._device, name)

        class Function:
            restype: Any = None

            def __call__(self, *arguments: Any) -> Any:
                return do(*arguments)

        return self._functions.setdefault(name, Function())


def timer(device: Device, names: tuple[str, ...] = ("a",)) -> DeviceTimer:
    @contextlib.contextmanager
    def use(stream: ctypes.c_void_p) -> Iterator[None]:
        yield

    calls = [lambda name=name: device.work(name) for name in names]
    return DeviceTimer(calls, CudaRuntime(Library(device)), use)


def test_a_graph_is_replayed_and_its_time_shared_out() -> None:
    device = Device(call_ms=0.05)
    measured = timer(device)
    assert measured.captured >= 1
    before, launches = len(device.issued), device.launches
    assert measured(10) == pytest.approx(10 * 0.05e-3)
    assert len(device.issued) == before, "nothing is issued outside the graph"
    assert device.launches - launches == -(-10 // measured.captured)


def test_copies_of_the_weights_take_turns() -> None:
    device = Device()
    measured = timer(device, ("a", "b", "c"))
    graph = device.graphs[max(device.graphs)]
    assert len(graph) % 3 == 0
    assert graph[:3] == ["a", "b", "c"]
    assert measured(3) == pytest.approx(3 * 0.05e-3)


def test_what_cannot_be_captured_is_timed_call_by_call() -> None:
    device = Device()
    device.fails["cudaStreamEndCapture"] = 901
    measured = timer(device)
    assert measured.captured == 0
    assert measured.refused == "ending a capture: said the device (901)"
    device.capturing = None
    before = len(device.issued)
    assert measured(4) >= 4 * 0.05e-3, "at least the device's time"
    assert len(device.issued) - before == 4


def test_a_call_that_fails_in_the_capture_ends_it() -> None:
    device = Device()

    def work(name: str) -> None:
        if device.capturing is not None:
            raise RuntimeError("it waits for the device")

    device.work = work  # type: ignore[method-assign]
    measured = timer(device)
    assert measured.refused == "it cannot be captured: it waits for the device"
    assert device.capturing is None, "the stream is out of capture again"


def test_errors_and_faults_are_told_apart() -> None:
    cuda = CudaRuntime(Library(Device()))
    cuda.check(0, "fine")
    with pytest.raises(MeasureError, match=r"a launch: said the device \(9\)"):
        cuda.check(9, "a launch")
    with pytest.raises(DeviceFault, match="700"):
        cuda.check(700, "a launch")


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
