"""Compile one candidate so that it can be called and timed alone.

An external toolchain's module is called directly, without a VM: writing its plan is all there is
to build. What TVM compiles is run by the VM, in process, nothing exported.

On an NVIDIA device it is timed as a deployment runs it: calls captured into a CUDA graph and
replayed between events, activations hot, weights cold where the whole model's exceed the last-level
cache (several copies of them take turns). What cannot be captured is timed call by call; it then
costs what the host takes to issue it, if that is longer than the device's work.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.lowering.link import link_shared, pack_imports
from collage_engine.lowering.tensors import empty, from_numpy, to_numpy
from collage_engine.machine.cuda import cuda_probe
from collage_engine.machine.cuda_runtime import CudaRuntime, DeviceTimer
from collage_engine.machine.processes import on_all_processors
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import ToolchainError, short_reason
from collage_engine.toolchains import registry
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.capabilities import LowersToTir
from collage_engine.toolchains.runtime.weight_files import forget

if TYPE_CHECKING:
    import numpy as np

MOST_COPIES = 12
"""Copies of a candidate's weights, at most. Chosen: it bounds the device's memory."""
CACHES_BETWEEN_USES = 2.0
"""How many times the bytes of the last-level cache pass between two uses of the same weights.
Chosen: what was read that long ago is gone under any replacement."""

Timer = Callable[[int], float]
"""Makes this many calls in a row; returns their total seconds."""


class Compiled:
    """A candidate, compiled for this machine or its device, until it is closed."""

    def __init__(self, function: Function, library: Path | None = None) -> None:
        """Compile a function.

        Args:
            function: The function.
            library: What ``compile_ahead`` made of it, which is removed; None: nothing.

        Raises:
            ToolchainError: The toolchain cannot take it; the sentence says why.
        """
        from tvm import relax

        from collage_engine.lowering.virtual_machine import device_of

        self.function = function
        self.toolchain = registry.get(function.instance.toolchain)
        self.module: Any = None
        """What the toolchain made of the function, a runtime module or TIR, while it is known."""
        self._timer: Timer | None = None
        self._cuda: CudaRuntime | None = None
        self.device = device_of(function.instance.device)
        copies = 1
        if function.instance.architecture:
            if not self.device.exist:
                raise ToolchainError(f"there is no device {function.instance.device} here")
            self._cuda = CudaRuntime()
            weights = sum(function.graph.values[index].type.bytes for index in function.constants)
            cache = max((device.l2_bytes for device in cuda_probe().devices), default=0)
            copies = copies_wanted(weights, function.model.record.weights_bytes, cache)
        self._outputs: list[Any] = []
        """What the outputs are written to; empty: calls return them."""
        if isinstance(self.toolchain, LowersToTir):
            executable = self._executable(library)
            machines = [relax.VirtualMachine(executable, self.device) for _ in range(copies)]
            self._copies, self._symbol = machines, "main"
        else:
            self._copies = [self.toolchain.compile(function) for _ in range(copies)]
            self.module, self._symbol = self._copies[-1], function.symbol
            given = () if function.returns else function.outputs
            self._outputs = [empty(function.output_type(index), self.device) for index in given]

    def _executable(self, library: Path | None) -> Any:
        """Return what TVM compiles of the function, for its virtual machine."""
        from tvm.runtime import load_module

        from collage_engine.lowering.executable import Executable
        from collage_engine.lowering.virtual_machine import use_threads

        instance = self.function.instance
        if not instance.architecture:
            use_threads(instance.threads)
        if library is not None and library.exists():
            executable = load_module(str(library))
            library.unlink()
            return executable
        assert isinstance(self.toolchain, LowersToTir)
        self.module = self.toolchain.lower(self.function)
        try:
            return Executable(self.module, instance.architecture)
        except Exception as error:
            raise ToolchainError(f"TVM cannot build it: {short_reason(error)}") from error

    def _arguments(self, inputs: Sequence[np.ndarray]) -> list[Any]:
        """Return what a call is given: tensors of the inputs, and those of the outputs.

        Raises:
            ToolchainError: Their number, shapes or element types are not the function's.
        """
        wanted = self.function.inputs
        if len(inputs) != len(wanted):
            raise ToolchainError(
                f"{self.function.symbol} takes {len(wanted)} inputs, {len(inputs)} were given"
            )
        kinds = map(self.function.input_type, wanted)
        tensors = [from_numpy(*each, self.device) for each in zip(inputs, kinds, strict=True)]
        return tensors + self._outputs

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run the function once.

        Args:
            inputs: Its inputs in order, as they are stored in their formats.

        Returns:
            Its outputs in order, as they are stored in their formats.

        Raises:
            DeviceFault: The device's context is lost.
        """
        arguments = self._arguments(inputs)
        try:
            result = self._copies[0][self._symbol](*arguments)
        finally:
            if self._cuda is not None:
                self._cuda.synchronize()  # raises DeviceFault if the context is lost
        result = self._outputs or result
        is_single = len(self.function.outputs) == 1 and not isinstance(result, list)
        outputs = [result] if is_single else list(result)
        kinds = map(self.function.output_type, self.function.outputs)
        return [to_numpy(*each) for each in zip(outputs, kinds, strict=True)]

    def timer(self, inputs: Sequence[np.ndarray]) -> Timer:
        """Bind inputs; return what makes ``n`` calls in a row and returns their total seconds."""
        self._timer = timer_of(self._copies, self._symbol, self._arguments(inputs), self._cuda)
        return self._timer

    def inside(self) -> dict[str, Any]:
        """Return what the toolchain says of its module."""
        return self.toolchain.inside(self.module)

    def close(self) -> None:
        """Give weights and threads back, and remove files of weights that only it needs."""
        if isinstance(self._timer, DeviceTimer):
            self._timer.close()
        if not isinstance(self.toolchain, LowersToTir):
            for module in self._copies:
                forget(module)
        self._timer = self.module = None
        self._copies, self._outputs = [], []

    def __enter__(self) -> Compiled:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


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


def compile_ahead(
    functions: Sequence[Callable[[], Function]], folder: Path, limit_s: float
) -> list[Path]:
    """Compile several functions on all processors at once; their kernels are kept.

    What fails is left out: it fails again, with its reason, when the function itself is compiled.

    Args:
        functions: Make the functions, each for an instance with ``has_kernels``.
        folder: Where the libraries are written, an empty one.
        limit_s: Seconds after which what is not compiled is left out.

    Returns:
        For each function a library for ``Compiled``; where it is left out there is no file.
    """
    from collage_engine.lowering.executable import Executable

    libraries = [folder / f"{number}.so" for number in range(len(functions))]

    def work(number: int) -> None:
        function = functions[number]()
        toolchain = registry.get(function.instance.toolchain)
        assert isinstance(toolchain, LowersToTir)
        executable = Executable(toolchain.lower(function), "")
        whole = folder / f"{number}.whole.so"
        executable.export_library(
            str(whole), fcompile=link_shared, libraries=[], fpack_imports=pack_imports
        )
        whole.rename(libraries[number])

    on_all_processors(work, len(functions), limit_s)
    return libraries


def has_kernels(instance: ToolchainInstance) -> bool:
    """Tell whether an instance's candidates are kernels for the processor that TVM compiles."""
    return not instance.architecture and isinstance(registry.get(instance.toolchain), LowersToTir)


def timer_of(
    owners: Sequence[Any], symbol: str, arguments: Sequence[Any], cuda: CudaRuntime | None = None
) -> Timer:
    """Return what times calls of a function; TVM's evaluator, for several, adds 15 ns to each.

    Args:
        owners: Modules or virtual machines of the function; those on a device take turns.
        symbol: The function's name.
        arguments: What it is called with.
        cuda: The runtime of their device; None: they are on the processor.
    """
    import tvm

    if cuda is not None:
        calls = [partial(owner[symbol], *arguments) for owner in owners]
        return DeviceTimer(calls, cuda)
    (owner,) = owners
    if isinstance(owner, tvm.relax.VirtualMachine):
        # A saved closure spares the dictionary look-ups and the copy of the return value.
        owner.save_function(symbol, "collage_timed", *arguments, include_return=False)
        symbol, arguments = "collage_timed", ()
    call, made = owner[symbol], dict[int, Any]()

    def timed(n: int) -> float:
        if n == 1:
            # The evaluator calls once before it times, and would warm what is meant to be cold.
            start = time.perf_counter()
            call(*arguments)
            return time.perf_counter() - start
        if n not in made:
            made[n] = owner.time_evaluator(symbol, tvm.cpu(), number=n, repeat=1)
        return float(made[n](*arguments).results[0]) * n

    return timed
