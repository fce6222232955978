"""Names what CUTLASS takes: convolutions with bias, residual sum and activation."""

from __future__ import annotations

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import node_set
from collage_engine.partition.patterns import Pattern, anything, constant, op
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.numbering import NodeSet
from collage_engine.toolchains.cutlass.dialect import DIALECT
from collage_engine.toolchains.cutlass.generate import dry_plan
from collage_engine.toolchains.runtime import chains


def refused(graph: DataflowGraph, nodes: NodeSet) -> str | None:
    """Returns why these calls are no partition for CUTLASS; None where they are."""
    calls = node_set(i for i in graph.operators if nodes >> i & 1)
    try:
        dry_plan(graph, calls)
    except UnsupportedError as error:
        return str(error)
    return None


def patterns() -> list[tuple[str, Pattern]]:
    """Returns the pattern of a convolution with optional bias, residual sum and activation."""
    anchor = op("nn.conv2d", anything("x"), constant("weights"), commutative=False)
    biased = anchor.optional(lambda x: op("add", x, anything("bias")))
    summed = biased.optional(lambda x: op("add", x, anything("residual")))
    active = summed.optional(
        lambda x: op(tuple(DIALECT.activations), x, commutative=False) | chains.silu(x)
    )
    return [("cutlass.conv2d", active)]
