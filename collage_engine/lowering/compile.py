"""Compile one candidate so that it can be called and timed alone.

An external toolchain's module is called directly, without a VM: writing its plan is all there is
to build. What TVM compiles is run by the VM, in process, nothing exported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.lowering.link import link_shared, pack_imports
from collage_engine.lowering.tensors import Compiled, Timer, empty
from collage_engine.machine.processes import on_all_processors
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import ToolchainError, short_reason
from collage_engine.toolchains.base import Function, Toolchain
from collage_engine.toolchains.capabilities import LowersToTir
from collage_engine.toolchains.runtime.weight_files import forget

if TYPE_CHECKING:
    import numpy as np


def compile_function(function: Function, library: Path | None = None) -> Compiled:
    """Compile a function for this machine, or for the device of its instance.

    Args:
        function: The function.
        library: What ``compile_ahead`` made of it, which is removed; None: nothing.

    Returns:
        The compiled function, which can be run and timed until it is closed.

    Raises:
        ToolchainError: The toolchain cannot take it; the sentence says why.
    """
    from collage_engine.toolchains.registry import get

    toolchain = get(function.instance.toolchain)
    if function.instance.architecture:
        return _for_cuda(function, toolchain)
    if isinstance(toolchain, LowersToTir):
        return NativeCompiled(function, toolchain, library)
    return ExternalCompiled(function, toolchain)


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
        For each function a library for ``compile_function``; where it is left out there is no file.
    """
    from collage_engine.lowering.executable import build_module
    from collage_engine.toolchains.registry import get

    libraries = [folder / f"{number}.so" for number in range(len(functions))]

    def work(number: int) -> None:
        function = functions[number]()
        toolchain = get(function.instance.toolchain)
        assert isinstance(toolchain, LowersToTir)
        executable = build_module(toolchain.lower(function), "")
        whole = folder / f"{number}.whole.so"
        executable.export_library(
            str(whole), fcompile=link_shared, libraries=[], fpack_imports=pack_imports
        )
        whole.rename(libraries[number])

    on_all_processors(work, len(functions), limit_s)
    return libraries


def has_kernels(instance: ToolchainInstance) -> bool:
    """Tell whether an instance's candidates are kernels for the processor that TVM compiles."""
    from collage_engine.toolchains.registry import get

    return not instance.architecture and isinstance(get(instance.toolchain), LowersToTir)


def _for_cuda(function: Function, toolchain: Toolchain) -> Compiled:
    from collage_engine.lowering.compile_cuda import CudaCompiled, copies_wanted, weight_bytes
    from collage_engine.machine.cuda import cuda_probe

    cache = max((device.l2_bytes for device in cuda_probe().devices), default=0)
    model = function.model.record.weights_bytes
    return CudaCompiled(function, toolchain, copies_wanted(weight_bytes(function), model, cache))


def timer_of(owner: Any, symbol: str, *arguments: Any) -> Timer:
    """Return what times a single call, or several by TVM's evaluator, which adds 15 ns to each.

    Args:
        owner: A module or a virtual machine.
        symbol: Name of its function.
        arguments: What the function is called with.
    """
    import tvm

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


class ExternalCompiled(Compiled):
    """A toolchain's runtime module, which is called as ``symbol(*inputs, *outputs)``.

    Where the size of an output depends on the data it returns its outputs instead.
    """

    def __init__(self, function: Function, toolchain: Toolchain) -> None:
        super().__init__(function, toolchain)
        self.module = toolchain.compile(function)
        self._call = self.module.get_function(function.symbol)
        given = () if function.returns else function.outputs
        self._outputs = [empty(function.output_type(index)) for index in given]

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Call the module on these inputs; see ``Compiled``."""
        made = self._call(*self._bind(inputs), *self._outputs)
        return self._arrays(made if self.function.returns else self._outputs)

    def timer(self, inputs: Sequence[np.ndarray]) -> Timer:
        """Time direct calls of the module on bound inputs; see ``Compiled``."""
        arguments = (*self._bind(inputs), *self._outputs)
        return timer_of(self.module, self.function.symbol, *arguments)

    def close(self) -> None:
        """Drop the module and its outputs, and the files of weights that only it needs."""
        if self.module is not None:
            forget(self.module)
        self._call = self.module = None
        self._outputs = []


class NativeCompiled(Compiled):
    """A function that TVM compiled, run by the VM as it is in a whole model."""

    def __init__(
        self, function: Function, toolchain: Toolchain, library: Path | None = None
    ) -> None:
        super().__init__(function, toolchain)
        from tvm import relax
        from tvm.runtime import cpu, load_module

        from collage_engine.lowering.executable import build_module
        from collage_engine.lowering.virtual_machine import use_threads

        self.module: Any = None
        use_threads(function.instance.threads)
        if library is not None and library.exists():
            executable = load_module(str(library))
            library.unlink()
        else:
            assert isinstance(toolchain, LowersToTir)
            self.module = toolchain.lower(function)
            try:
                executable = build_module(self.module, "")
            except Exception as error:
                raise ToolchainError(f"TVM cannot build it: {short_reason(error)}") from error
        self.vm = relax.VirtualMachine(executable, cpu())
        self._main = self.vm["main"]

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run ``main`` in the virtual machine; see ``Compiled``."""
        return self._arrays(self._main(*self._bind(inputs)))

    def timer(self, inputs: Sequence[np.ndarray]) -> Timer:
        """Time a saved closure of ``main`` on bound inputs; see ``Compiled``."""
        # A saved closure spares the dictionary look-ups and the copy of the return value.
        self.vm.save_function("main", "collage_timed", *self._bind(inputs), include_return=False)
        return timer_of(self.vm, "collage_timed")

    def close(self) -> None:
        """Drop the virtual machine and what it runs."""
        self._main = self.vm = self.module = None
