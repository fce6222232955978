"""A toolchain whose author made a mistake: it raises when it is asked about a model."""

from __future__ import annotations

import msgspec

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import OperatorNumber
from collage_engine.records.toolchain import ToolchainInstance
from collage_tango.toolchain import TangoToolchain


class ClumsyToolchain(TangoToolchain):
    """Asks for an attribute that no node has."""

    about = msgspec.structs.replace(TangoToolchain.about, name="clumsy", title="Clumsy")

    def supports(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> str | None:
        return graph.nodes[index].steps
