"""Runs convolutions with fused epilogues by CUTLASS, kernels chosen by time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.machine.cuda import generation
from collage_engine.records.errors import ToolchainError, UnsupportedError
from collage_engine.records.toolchain import (
    RuntimeLibrary,
    Target,
    ToolchainAbout,
    ToolchainInstance,
)
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime.builder import RuntimeSource
from collage_engine.toolchains.runtime.cuda import CudaToolchain, cudart_library
from collage_engine.toolchains.runtime.nvcc import need_nvcc

if TYPE_CHECKING:
    from collage_engine.model.dataflow_graph import DataflowGraph
    from collage_engine.records.numbering import NodeSet
    from collage_engine.toolchains.cutlass.families import Family


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

    def version(self) -> str:
        """Return the version of the library that is installed here."""
        from collage_engine.toolchains.cutlass import headers

        return headers.version()

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
        """Returns None: its kernels read half precision only, as the model has it."""
        return None

    def precompile(
        self,
        graph: DataflowGraph,
        instance: ToolchainInstance,
        sets: Sequence[NodeSet],
        now: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        """Compile the kernel libraries that these candidates choose from."""
        from collage_engine.toolchains.cutlass import library
        from collage_engine.toolchains.cutlass.rules import dry_plan

        wanted: set[Family] = set()
        for calls in dict.fromkeys(sets):
            try:
                wanted.update(dry_plan(graph, calls))
            except UnsupportedError:
                continue
        if wanted:
            library.build_many(sorted(wanted), instance.architecture, now, stop)

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        """Returns the program and the weights, after compiling the libraries that are missing."""
        from collage_engine.toolchains.cutlass.rules import plan_of

        plan, weights, families = plan_of(
            function.graph,
            function.nodes,
            function.inputs,
            function.outputs,
            function.constant,
        )
        built = self.kernels(families, function.instance.architecture)
        for step in plan["steps"]:
            if "family" in step:
                step["library"] = built[step["family"]].name
        plan["version"] = self.version()
        return plan, weights

    def kernels(self, families: Iterable[Family], architecture: str) -> dict[str, Path]:
        """Returns the library of each family by its name, open in this process."""
        from collage_engine.toolchains.cutlass import library

        found = {family.name: library.build(family, architecture) for family in families}
        for path in found.values():
            try:
                library.open_library(path)
            except OSError as error:
                raise ToolchainError(f"cannot load CUTLASS's kernels: {error}") from error
        return found

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries that its runtime links, and the runtime itself."""
        return cudart_library(self.name), self.own_library()

    def libraries_for(self, functions: Sequence[Function]) -> tuple[RuntimeLibrary, ...]:
        """Returns the runtime, and the kernels among which these functions may choose."""
        from collage_engine.toolchains.cutlass.rules import dry_plan

        found: dict[str, RuntimeLibrary] = {}
        for function in functions:
            families = dry_plan(function.graph, function.nodes)
            for path in self.kernels(families, function.instance.architecture).values():
                found[path.name] = self.carried(path)
        return (*self.runtime_libraries(), *found.values())
