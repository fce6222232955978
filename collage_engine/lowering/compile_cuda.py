"""Compile one candidate for an NVIDIA device, so that it can be called and timed alone.

Timed as a deployment runs it: calls captured into a CUDA graph and replayed between events,
activations hot, weights cold where the whole model's exceed the last-level cache (several copies
of them take turns). What cannot be captured is timed call by call; it then costs what the host
takes to issue it, if that is longer than the device's work.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from collage_engine.lowering.tensors import Compiled, Timer, empty
from collage_engine.machine.cuda_runtime import CudaRuntime, DeviceTimer
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function, Toolchain
from collage_engine.toolchains.capabilities import LowersToTir

if TYPE_CHECKING:
    import numpy as np

MOST_COPIES = 12
"""Copies of a candidate's weights, at most. Chosen: it bounds the device's memory."""
CACHES_BETWEEN_USES = 2.0
"""How many times the bytes of the last-level cache pass between two uses of the same weights.
Chosen: what was read that long ago is gone under any replacement."""


def copies_wanted(weights: int, model_weights: int, cache: int) -> int:
    """Return how many copies of a candidate's weights take turns, so that they come from memory.

    Args:
        weights: Bytes of the candidate's weights.
        model_weights: Bytes of the whole model's; where the cache holds them all, one copy will do.
        cache: Bytes of the device's last-level cache.
    """
    if weights == 0 or model_weights <= cache:
        return 1
    return max(1, min(MOST_COPIES, math.ceil(CACHES_BETWEEN_USES * cache / weights) + 1))


def weight_bytes(function: Function) -> int:
    """Return the bytes of the constants inside a function."""
    return sum(function.graph.values[index].type.bytes for index in function.constants)


def device_timer(calls: Sequence[Callable[[], object]], cuda: CudaRuntime) -> DeviceTimer:
    """Return a timer whose stream TVM and the toolchains' runtimes work on."""
    import tvm_ffi

    device = tvm_ffi.device("cuda", 0)

    def use(stream: ctypes.c_void_p) -> Any:
        return tvm_ffi.use_raw_stream(device, stream.value or 0)

    return DeviceTimer(calls, cuda, use)


class CudaCompiled(Compiled):
    """A candidate on the device, compiled by its toolchain or by TVM."""

    def __init__(self, function: Function, toolchain: Toolchain, copies: int = 1) -> None:
        super().__init__(function, toolchain)
        from collage_engine.lowering.virtual_machine import device_of

        self.device = device_of(function.instance.device)
        if not self.device.exist:
            raise ToolchainError(f"there is no device {function.instance.device} here")
        self._cuda = CudaRuntime()
        self._timer: DeviceTimer | None = None
        self._modules: list[Any] = []
        self._outputs: list[Any] = []
        build = self._native if isinstance(toolchain, LowersToTir) else self._external
        self._bodies: list[Callable[..., Any]] = build(max(1, copies))

    def _external(self, copies: int) -> list[Callable[..., Any]]:
        self._outputs = [
            empty(self.function.output_type(index), self.device) for index in self.function.outputs
        ]
        bodies: list[Callable[..., Any]] = []
        for _ in range(copies):
            self.module = self.toolchain.compile(self.function)
            self._modules.append(self.module)
            entry = self.module.get_function(self.function.symbol)

            def body(*inputs: Any, entry: Any = entry) -> list[Any]:
                entry(*inputs, *self._outputs)
                return self._outputs

            bodies.append(body)
        return bodies

    def _native(self, copies: int) -> list[Callable[..., Any]]:
        from tvm import relax

        from collage_engine.lowering.executable import build_module

        assert isinstance(self.toolchain, LowersToTir)
        self.module = self.toolchain.lower(self.function)
        executable = build_module(self.module, self.function.instance.architecture)
        bodies: list[Callable[..., Any]] = []
        for _ in range(copies):
            vm = relax.VirtualMachine(executable, self.device)
            self._modules.append(vm)
            bodies.append(vm["main"])
        return bodies

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run once on the device; see ``Compiled``.

        Raises:
            DeviceFault: The device's context is lost.
        """
        try:
            results = self._bodies[0](*self._bind(inputs, self.device))
        except Exception:
            self._cuda.synchronize()  # raises DeviceFault if the context is lost
            raise
        self._cuda.synchronize()
        return self._arrays(results)

    def timer(self, inputs: Sequence[np.ndarray]) -> Timer:
        """Time the copies in turn on the device's own events; see ``Compiled``."""
        arguments = self._bind(inputs, self.device)
        calls = [lambda body=body: body(*arguments) for body in self._bodies]
        self._timer = device_timer(calls, self._cuda)
        return self._timer

    def inside(self) -> dict[str, Any]:
        """Return what the toolchain says of its module, and whether it was timed as a graph."""
        details = super().inside()
        if self._timer is not None:
            details["cuda_graph"] = self._timer.captured > 0
            if self._timer.refused:
                details["cuda_graph_refused"] = self._timer.refused
        return details

    def close(self) -> None:
        """Free the timer's graphs, the modules and the outputs."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None
        self._bodies, self._modules, self._outputs, self.module = [], [], [], None
