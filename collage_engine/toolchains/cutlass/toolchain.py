"""Runs convolutions with fused epilogues by CUTLASS, kernels chosen by time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.machine.cuda import generation
from collage_engine.records.toolchain import (
    RuntimeLibrary,
    Target,
    ToolchainAbout,
    ToolchainInstance,
)
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.cutlass.library import need_nvcc
from collage_engine.toolchains.cutlass.rules import DIALECT
from collage_engine.toolchains.runtime.builder import RuntimeSource
from collage_engine.toolchains.runtime.cuda import CudaToolchain

if TYPE_CHECKING:
    from collage_engine.model.dataflow_graph import DataflowGraph
    from collage_engine.records.graph import OperatorSet
    from collage_engine.toolchains.cutlass.library import Family


FIRST = 80
"""Architecture (Ampere) that CUTLASS's 2.x kernels with asynchronous copies are for (CUTLASS's
``cutlass/arch/arch.h``, ``Sm80``)."""


class CutlassToolchain(CudaToolchain):
    """Convolutions in half precision with what follows them, by CUTLASS's 2.x templates.

    Kernels are compiled per family when a partition first needs them; probing compiles none.
    """

    about = ToolchainAbout(
        name="cutlass",
        title="CUTLASS",
        licence="BSD-3-Clause",
        targets=("cuda",),
        whole_model=False,
        install="install the CUDA toolkit (nvcc), and pip install 'collage-explorer[cuda]'",
        colour="#9cec74",
        letters="CU",
        pattern="dots",
    )
    depends = ("collage_engine.partition.patterns",)
    dialect = DIALECT
    choice = "kernel"

    def version(self) -> str:
        """Return the version of the library that is installed here."""
        from collage_engine.toolchains.cutlass import library

        return library.version()

    def source(self) -> RuntimeSource:
        """Return the sources of its C++ runtime, and the libraries that it links."""
        need_nvcc()
        return self.runtime_source(Path(__file__).parent / "src" / "cutlass_module.cc")

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        """Return its configurations; see ``Toolchain.instances``."""
        if generation(target.architecture) < FIRST:
            return ()  # older than its kernels
        return super().instances(target, precision)

    def rounds_to(self, architecture: str, precision: str) -> str | None:
        """Return None: its kernels read half precision only, as the model has it."""
        return None

    def precompile(
        self,
        graph: DataflowGraph,
        instance: ToolchainInstance,
        sets: Sequence[OperatorSet],
        now: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        """Compile the kernel libraries that these candidates choose from."""
        from collage_engine.toolchains.cutlass import library

        wanted: set[Family] = set()
        for calls in dict.fromkeys(sets):
            with contextlib.suppress(UnsupportedError):
                plan = self.dry_plan(graph, calls)
                wanted.update(self.families(plan, instance.architecture).values())
        library.build_many(wanted, now, stop)

    def families(self, plan: dict[str, Any], architecture: str) -> dict[str, Family]:
        """Return the families of kernels that a plan needs, by activation."""
        from collage_engine.toolchains.cutlass.library import Family

        steps = [step for step in plan["steps"] if "epilogue" in step]
        return {s["epilogue"]: Family(s["dtype"], s["epilogue"], architecture) for s in steps}

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        """Return the plan and the weights, after compiling the libraries that are missing."""
        plan, weights = super().plan(function)
        built = self.kernels(plan, function.instance.architecture)
        for step in plan["steps"]:
            # Any of them turns images.
            step["library"] = built[step.get("epilogue", min(built))].name
        return plan, weights

    def kernels(self, plan: dict[str, Any], architecture: str) -> dict[str, Path]:
        """Return the libraries that a plan needs, open in this process, by activation."""
        from collage_engine.toolchains.cutlass import library

        families = self.families(plan, architecture)
        kernels = {activation: library.build(family) for activation, family in families.items()}
        for path in kernels.values():
            library.open_library(path)
        return kernels

    def libraries_for(self, functions: Sequence[Function]) -> tuple[RuntimeLibrary, ...]:
        """Return the runtime, and the kernels among which these functions may choose."""
        libraries: dict[str, RuntimeLibrary] = {}
        for function in functions:
            plan = self.dry_plan(function.graph, function.nodes)
            for path in self.kernels(plan, function.instance.architecture).values():
                libraries[path.name] = self.carried(path)
        return (*self.runtime_libraries(), *libraries.values())
