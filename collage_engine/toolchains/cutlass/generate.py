"""Generates the program of CUTLASS's kernels from a function of the dataflow graph."""

from __future__ import annotations

from typing import Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import node_set
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.toolchains.cutlass.dialect import DIALECT
from collage_engine.toolchains.cutlass.families import Family
from collage_engine.toolchains.cutlass.steps import Generator
from collage_engine.toolchains.runtime.places import Constants, Places, blank
from collage_engine.toolchains.runtime.products import products


def plan_of(
    graph: DataflowGraph,
    nodes: NodeSet,
    inputs: tuple[NodeIndex, ...],
    outputs: tuple[NodeIndex, ...],
    constants: Constants,
    *,
    dry: bool = False,
) -> tuple[dict[str, Any], bytes, tuple[Family, ...]]:
    """Returns the program, the weights, and the families whose libraries it needs.

    Steps name their family; the libraries are added later.

    Args:
        graph: The dataflow graph.
        nodes: The function's nodes.
        inputs: The nodes that it takes, in the order of its arguments.
        outputs: The nodes that it gives, in the order of its arguments.
        constants: Gives the values of constant nodes.
        dry: Whether the weights are left out.

    Raises:
        UnsupportedError: CUTLASS cannot compute it, for the reason in the message.
    """
    places = Places(graph, inputs, outputs, constants, dry)
    generator = Generator(places, outputs)
    leaving = node_set(outputs)
    left = nodes & ~node_set(inputs)
    for product in sorted(products(graph, left, leaving, DIALECT), key=lambda p: p.result):
        generator.emit(product)  # what it reads was made before
    plan = {"steps": generator.steps, "scratch_bytes": places.scratch}
    return plan, bytes(places.weights), tuple(sorted(generator.families))


def dry_plan(graph: DataflowGraph, nodes: NodeSet) -> tuple[Family, ...]:
    """Returns the families that some operators need, from the shapes of their weights only.

    Raises:
        UnsupportedError: CUTLASS cannot compute them, for the reason in the message.
    """
    closed = graph.close(nodes)
    inputs, outputs = graph.boundary(closed)
    return plan_of(graph, closed, inputs, outputs, blank(graph), dry=True)[2]
