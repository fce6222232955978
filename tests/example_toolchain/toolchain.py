"""Runs element-wise operators and one product in plain C++ loops, as an example.

It is slow on purpose: nothing of it is in the way of reading it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.records.graph import OperatorNumber
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
    from collage_engine.partition.rules import PartitionRule

VERSION = "1.0"
"""Version of the library that the runtime calls. The example calls none, so it is its own
version."""


class ExampleToolchain(CppToolchain):
    """The example computes element-wise operators and rows times a matrix, in float32."""

    about = ToolchainAbout(
        name="example",
        title="Example",
        licence="Apache-2.0",
        own_threads=False,
        install="install g++ or clang++, which compiles its runtime",
        colour="#4b3f72",
        letters="EX",
        pattern="grid",
    )
    depends = ("collage_engine.partition.patterns",)

    def version(self) -> str:
        """Returns the example's own version: no package has to be installed."""
        return VERSION

    def source(self) -> RuntimeSource:
        """Returns one translation unit, which needs no other library."""
        return RuntimeSource(
            toolchain=self.name,
            main=Path(__file__).parent / "src" / "example_module.cc",
            plan_version=1,
            library_version=VERSION,
        )

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        """Returns one instance, in float32: nothing can be configured, no precision lowered."""
        return (ToolchainInstance(toolchain=self.name, threads=target.threads),)

    def supports(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> str | None:
        """Returns None, or the reason of ``operators.reason_against``."""
        from tests.example_toolchain.operators import reason_against

        return reason_against(graph, index)

    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionRule:
        """Returns the rules of ``rules.partition_spec``."""
        from tests.example_toolchain.rules import partition_spec

        return partition_spec(self.name)

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        """Returns the plan and the weights that ``operators.plan_of`` makes."""
        from tests.example_toolchain.operators import plan_of

        return plan_of(function)

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Returns the example's compiled runtime, which is all that an artifact needs."""
        return (self.own_library(),)
