"""Tango applies one function to every element of a float32 tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.rule_trees import byoc_rules
from collage_engine.partition.rules import PartitionRule
from collage_engine.records.graph import OperatorNumber, members
from collage_engine.records.toolchain import (
    RuntimeLibrary,
    Target,
    ToolchainAbout,
    ToolchainInstance,
)
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime.builder import RuntimeSource
from collage_engine.toolchains.runtime.places import Places
from collage_engine.toolchains.runtime.toolchain import CppToolchain

OPERATORS = ("nn.relu", "abs", "tanh")


def reason_against(graph: DataflowGraph, index: OperatorNumber) -> str | None:
    """Why Tango cannot compute a call; None when it can."""
    node = graph.nodes[index]
    if node.op not in OPERATORS:
        return f"Tango dances no {node.op}"
    if node.type.dtype != "float32":
        return f"Tango knows no {node.type.dtype}"
    return None


class TangoToolchain(CppToolchain):
    """Without a colour, letters or a pattern: they are generated."""

    about = ToolchainAbout(name="tango", title="Tango", licence="MIT", whole_model=False)

    def version(self) -> str:
        return "0.3"

    def source(self) -> RuntimeSource:
        main = Path(__file__).parent / "src" / "tango_module.cc"
        return RuntimeSource(self.name, main, plan_version=1, library_version="0.3")

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        return (ToolchainInstance(toolchain=self.name, threads=target.threads),)

    def supports(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> str | None:
        return reason_against(graph, index)

    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionRule:
        return byoc_rules((), "TVMFusion", name=self.name, supports=reason_against)

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        graph = function.graph
        places = Places(graph, function.inputs, function.outputs, function.constant)
        steps = [
            {
                "what": graph.nodes[index].op,
                "count": graph.values[index].type.elements,
                "reads": places.read(graph.nodes[index].inputs[0]),
                "writes": places.write(index),
            }
            for index in members(function.nodes)
        ]
        return {"steps": steps, "scratch": places.scratch}, b""

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        part = RuntimeLibrary(
            file=str(Path(__file__).parent / "part.py"),
            name="tango_part.py",
            toolchain=self.name,
            version=self.version(),
            licence="Zlib",
            python="math",
        )
        return self.own_library(), part
