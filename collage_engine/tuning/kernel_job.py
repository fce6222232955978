"""What the child of a ``KernelDevice`` does: load kernels, compare their numbers, time them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from collage_engine.kernels.tuning.device import Built, loaded
from collage_engine.machine.cuda_runtime import LOST_DEVICE, DeviceFault
from collage_engine.records.errors import ToolchainError

JOB = "collage_engine.tuning.kernel_job:KernelJob"
ROUNDS = 7
"""Rounds in which both kernels are timed, in turn; chosen."""
KEPT = 4
"""Kernels kept loaded; chosen."""
TOLERANCES = {"float16": 1e-2, "bfloat16": 2e-2}
"""Largest difference between two kernels' numbers, relative to the largest number, by type; chosen:
their sums are ordered differently."""
TOLERANCE = 2e-3
"""Largest difference between two kernels' numbers of other types, relative to the largest number;
chosen: tf32 is among float32."""
SMALL = 8
"""Random 8-bit values stay below it; chosen, so that sums of products stay exact."""


@dataclass(frozen=True)
class Compare:
    """Check a kernel's numbers against those of the best one, and time both.

    It is answered by the median seconds of both.
    """

    architecture: str
    best: Built
    challenger: Built


class Timed(Protocol):
    """A loaded kernel."""

    numbers: np.ndarray
    """Its result in float32, with the parts added."""

    def sample(self) -> float:
        """Return the seconds of a call."""
        ...

    def close(self) -> None:
        """Unload it."""
        ...


class KernelJob:
    """The worker's target: the child that times kernels on a device."""

    def __init__(self) -> None:
        self._loaded: dict[str, Timed] = {}

    def __call__(self, request: Compare) -> tuple[float, float]:
        """Compare two kernels, and return the median seconds of each.

        Raises:
            ToolchainError: The second one's numbers differ from the first one's by too much.
        """
        from collage_engine.kernels.verify import difference

        try:
            best = self._of(request.best, request.architecture, request.challenger.kernel)
            other = self._of(request.challenger, request.architecture, request.best.kernel)
            wrong = difference(best.numbers, other.numbers)
            if wrong > TOLERANCES.get(kind_of(request.best), TOLERANCE):
                raise ToolchainError(f"wrong numbers: {wrong:.2g}")
            times: tuple[list[float], list[float]] = [], []
            for number in range(ROUNDS):
                both = ((0, best), (1, other))
                for place, kernel in both if number % 2 else both[::-1]:
                    times[place].append(kernel.sample())
            first, second = (sorted(values)[ROUNDS // 2] for values in times)
            return first, second
        except DeviceFault:
            # Whatever ran in this process afterwards would fail for no fault of its own.
            os._exit(LOST_DEVICE)

    def _of(self, built: Built, architecture: str, beside: str) -> Timed:
        """Return a loaded kernel; of many, older ones are unloaded, but not the one beside it."""
        if built.kernel not in self._loaded:
            for name in [n for n in self._loaded if n != beside][: len(self._loaded) - KEPT + 1]:
                self._loaded.pop(name).close()
            self._loaded[built.kernel] = self.load(built, architecture)
        return self._loaded[built.kernel]

    def load(self, built: Built, architecture: str) -> Timed:
        """Load a kernel on the device."""
        return OnDevice(built, architecture)


def kind_of(built: Built) -> str:
    """Return the element type of a kernel's first operand, which says how exact its numbers are."""
    return str(loaded(built.kernel).params[0].dtype)


def operands(function: Any) -> list[np.ndarray]:
    """Return random arrays for a kernel's parameters, without the last one, which is the result.

    Equal parameters give equal arrays.
    """
    from collage_engine.kernels.program import shape_of

    random = np.random.default_rng(0)
    arrays = []
    for parameter in list(function.params)[:-1]:
        shape, dtype = shape_of(parameter), str(parameter.dtype)
        if "float" in dtype:
            arrays.append(random.standard_normal(shape, np.float32).astype(dtype))
        else:
            low = 0 if dtype.startswith("u") or dtype == "bool" else -SMALL
            high = 2 if dtype == "bool" else SMALL
            arrays.append(random.integers(low, high, shape).astype(dtype))
    return arrays


class OnDevice:
    """A kernel on ``cuda:0``, timed as graphs of its calls between events."""

    def __init__(self, built: Built, architecture: str) -> None:
        import tvm

        from collage_engine.kernels.cuda.product.intrinsics import finish_sources
        from collage_engine.kernels.program import shape_of
        from collage_engine.lowering.compile_cuda import device_timer
        from collage_engine.lowering.cubin import keep_cubin
        from collage_engine.lowering.target import build_target, device_of
        from collage_engine.machine.cuda_runtime import CudaRuntime

        finish_sources()
        device, target = device_of("cuda:0"), build_target(architecture)
        if not device.exist:
            raise ToolchainError("there is no device cuda:0 here")
        keep_cubin(built.source, architecture, built.code)
        function = loaded(built.kernel)
        module = tvm.IRModule({"kernel": function.with_attr("global_symbol", "kernel")})
        entry = tvm.tirx.build(module, target)["kernel"]
        given = [tvm.runtime.tensor(a, device) for a in operands(function)]
        output = function.params[-1]
        result = tvm.runtime.empty(shape_of(output), str(output.dtype), device)
        cuda = CudaRuntime()
        entry(*given, result)
        cuda.synchronize()
        numbers = result.numpy().astype(np.float32)
        self.numbers = numbers.sum(axis=0) if built.parts else numbers
        self._timer = device_timer([lambda: entry(*given, result)], cuda)

    def sample(self) -> float:
        """Return the seconds of a call, the mean of one graph of calls."""
        calls = self._timer.captured or 1
        return self._timer(calls) / calls

    def close(self) -> None:
        """Release the timer's events and graphs."""
        self._timer.close()
