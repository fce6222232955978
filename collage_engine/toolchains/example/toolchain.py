"""Runs element-wise operators and one product in plain C++ loops, as an example.

It is slow on purpose (nothing of it is in the way of reading it) and is used only by whoever
asks for it: ``collage place MODEL -o DIR --toolchains example,tvm``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.records.numbering import NodeIndex
from collage_engine.records.toolchain import (
    RuntimeLibrary,
    Target,
    ToolchainAbout,
    ToolchainInstance,
)
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime.builder import RuntimeSource
from collage_engine.toolchains.runtime.toolchain import CppToolchain

if TYPE_CHECKING:
    from collage_engine.model.dataflow_graph import DataflowGraph
    from collage_engine.partition.spec import PartitionSpec

VERSION = "1.0"
"""Of the library that the runtime calls: it has none, so it is the example's own."""


class ExampleToolchain(CppToolchain):
    """It computes element-wise operators and the product of rows with a matrix, in float32."""

    about = ToolchainAbout(
        name="example",
        title="Example",
        licence="Apache-2.0",
        install="install g++ or clang++, which compiles its runtime",
        colour="#4b3f72",
        letters="EX",
        pattern="grid",
        direct_convolutions=True,
    )
    depends = ("collage_engine.partition.patterns",)

    def version(self) -> str:
        """Return its own: no package has to be installed."""
        return VERSION

    def source(self) -> RuntimeSource:
        """Return one translation unit, without a library of others."""
        return RuntimeSource(
            toolchain=self.name,
            main=Path(__file__).parent / "src" / "example_module.cc",
            plan_version=1,
            library_version=VERSION,
        )

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        """Return one, in float32: it has nothing to configure and no lower precision."""
        return (ToolchainInstance(toolchain=self.name, threads=target.threads),)

    def supports(
        self, graph: DataflowGraph, index: NodeIndex, instance: ToolchainInstance
    ) -> str | None:
        """See ``operators.reason_against``."""
        from collage_engine.toolchains.example.operators import reason_against

        return reason_against(graph, index)

    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionSpec:
        """See ``rules.partition_spec``."""
        from collage_engine.toolchains.example.rules import partition_spec

        return partition_spec(self.name)

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        """See ``operators.plan_of``."""
        from collage_engine.toolchains.example.operators import plan_of

        return plan_of(function)

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return its compiled runtime, which is all that an artifact needs."""
        return (self.own_library(),)
