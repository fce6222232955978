"""Implements the part of the contract that every BLAS shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from collage_engine.records.format import NHWC, PLAIN
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime.toolchain import CppToolchain

if TYPE_CHECKING:
    from collage_engine.model.dataflow_graph import DataflowGraph
    from collage_engine.partition.candidate_source import Composites
    from collage_engine.partition.rule_trees import PatternEntry
    from collage_engine.partition.spec import PartitionSpec

PLAN_VERSION = 1


class BlasToolchain(CppToolchain):
    """Products and convolutions by ``sgemm``, with what follows applied to cache-hot results."""

    depends = ("collage_engine.partition.patterns",)

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        """Return its configurations; see ``Toolchain.instances``."""
        return (ToolchainInstance(toolchain=self.name, threads=target.threads),)

    def formats(self, instance: ToolchainInstance) -> tuple[str, ...]:
        """Implements ``capabilities.BorderFormats``."""
        return (PLAIN, NHWC)

    def supports(
        self, graph: DataflowGraph, index: NodeIndex, instance: ToolchainInstance
    ) -> str | None:
        """Implements ``Toolchain.supports``."""
        from collage_engine.toolchains.blas.supports import reason_against

        return reason_against(graph, index)

    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionSpec:
        """Implements ``Toolchain.partition_spec``."""
        from collage_engine.toolchains.blas.rules import partition_spec

        return partition_spec(self.name)

    def composites_of(
        self, graph: DataflowGraph, instance: ToolchainInstance, nodes: NodeSet
    ) -> Composites | None:
        """Refuses a set without a product: what goes along with one is no candidate alone."""
        from collage_engine.toolchains.blas.supports import holds_anchor

        return () if holds_anchor(graph, nodes) else None

    def library_table(self) -> Sequence[PatternEntry]:
        """Implements ``capabilities.LibraryForKernels``."""
        from collage_engine.toolchains.blas.rules import patterns

        return patterns(self.name)

    def library_call(self, function: Function) -> Any:
        """Implements ``capabilities.LibraryForKernels``."""
        return self.compile(function)

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        """Return the plan and the weights of a function, for its C++ runtime."""
        from collage_engine.toolchains.blas.generate import generate

        program = generate(
            function.graph,
            function.nodes,
            function.inputs,
            function.outputs,
            function.constant,
            function.takes,
            function.gives,
        )
        return program.as_json(), bytes(program.blob)
