"""One rival in a child process of its own: load it, check its numbers, run rounds when told.

Nothing of the model is imported here: a rival is its exported module, as a user would load it
(or a toolchain's own Python session). Between rounds the child sleeps on its pipe.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from collage_engine.lowering.accuracy import worst
from collage_engine.placement.memory import MemoryWatch
from collage_engine.placement.npz import read_npz
from collage_engine.placement.python_session import open_session
from collage_engine.placement.stopwatch import time_kernels
from collage_engine.records.errors import ToolchainError


class OpenRival(msgspec.Struct, frozen=True, kw_only=True):
    """Load a module (``model.so``), or an ONNX file as a toolchain's users do from Python."""

    module: str | None = None
    onnx: str | None = None
    session: str | None = None
    """The toolchain whose Python interface opens ``onnx``."""
    threads: int = 1
    precision: str = "float32"
    device: str = "cpu"
    """Where the module runs."""
    sample: str
    """Folder with ``inputs.npz`` and ``outputs.npz``."""
    inputs: tuple[tuple[str, str], ...]
    """Name and element type, in argument order."""
    outputs: tuple[tuple[str, str], ...]


class RunRound(msgspec.Struct, frozen=True, kw_only=True):
    """Warm up, then time single calls: at least ``least``, for about ``seconds``.

    Calls that take a quarter of a second are timed once a round: noise is no matter there.
    """

    warm_s: float
    seconds: float
    least: int
    most: int = 400


class ProfileRival(msgspec.Struct, frozen=True, kw_only=True):
    """Time every kernel the VM calls, over a few runs."""

    runs: int = 9


class PeakMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for the resident sizes so far (``MemorySeen``)."""


Request = OpenRival | RunRound | ProfileRival | PeakMemory


class KernelTime(msgspec.Struct, frozen=True, kw_only=True):
    """A call the VM made, in its place in the order of calls."""

    kernel: str
    us: float


class RivalJob:
    """The child's state: a bound call."""

    def __init__(self) -> None:
        self._call: Callable[[], Any] | None = None
        self._vm: Any = None
        self._arguments: list[Any] = []
        self._memory: MemoryWatch | None = None

    def __call__(self, request: Request) -> Any:
        if isinstance(request, OpenRival):
            return self._open(request)
        if isinstance(request, RunRound):
            return self._round(request)
        if isinstance(request, ProfileRival):
            return self._profile(request)
        return MemoryWatch().seen() if self._memory is None else self._memory.seen()

    def _open(self, request: OpenRival) -> tuple[float, float]:
        """Largest absolute and relative error of the outputs on the sample."""
        sample = Path(request.sample)
        inputs = read_npz(sample / "inputs.npz", dict(request.inputs))
        truth = read_npz(sample / "outputs.npz", dict(request.outputs))
        if request.module is not None:
            import tvm.runtime  # noqa: F401  (what every artifact needs is no part of this one)

        self._memory = MemoryWatch()
        if request.module is not None:
            results = self._open_module(request, inputs)
        else:
            results = self._open_session(request, inputs)
        names = [name for name, _ in request.outputs]
        if len(results) != len(names):
            raise ToolchainError(f"{len(results)} outputs came back, {len(names)} were expected")
        return worst(zip(results, [truth[name] for name in names], strict=True))

    def _open_module(self, request: OpenRival, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        import tvm
        from tvm.runtime.vm import VirtualMachine

        from collage_engine.lowering.target import device_of
        from collage_engine.lowering.tensors import from_numpy, to_numpy
        from collage_engine.records.graph import TensorType

        library = tvm.runtime.load_module(str(request.module))
        device = device_of(request.device)
        self._vm = VirtualMachine(library, device)
        self._arguments = [
            from_numpy(inputs[name], TensorType(inputs[name].shape, dtype), device)
            for name, dtype in request.inputs
        ]
        main, arguments = self._vm["main"], self._arguments
        if request.device == "cpu":
            self._call = lambda: main(*arguments)
        else:

            def call() -> Any:
                result = main(*arguments)
                device.sync()  # calls return before the device is done
                return result

            self._call = call
        result = self._call()
        kinds = [TensorType((), dtype) for _, dtype in request.outputs]
        tensors = [result] if len(kinds) == 1 else list(result)
        assert self._memory is not None
        self._memory.loaded(library)
        return [to_numpy(t, kind) for t, kind in zip(tensors, kinds, strict=True)]

    def _open_session(self, request: OpenRival, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        assert request.session is not None
        self._call, results = open_session(
            request.session, str(request.onnx), request.threads, request.precision, inputs
        )
        self._call()
        found = results()
        assert self._memory is not None
        self._memory.loaded()
        return found

    def _round(self, request: RunRound) -> list[float]:
        """Seconds of single calls."""
        call = self._call
        if call is None:
            raise ToolchainError("the rival was not opened")
        clock = time.perf_counter
        begin = clock()
        end = begin + request.warm_s
        call()
        least = request.least if clock() - begin < 0.25 else 1
        while clock() < end:
            call()
        taken: list[float] = []
        end = clock() + request.seconds
        while len(taken) < least or (clock() < end and len(taken) < request.most):
            start = clock()
            call()
            taken.append(clock() - start)
        return taken

    def _profile(self, request: ProfileRival) -> list[KernelTime]:
        """Median time of every VM call, in order; nothing for a Python session."""
        if self._vm is None or self._call is None:
            return []
        times = time_kernels(self._vm, self._call, request.runs)
        return [KernelTime(kernel=name, us=us) for name, us in times]
