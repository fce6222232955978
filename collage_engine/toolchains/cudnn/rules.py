"""Names what cuDNN takes: convolutions with what follows them."""

from __future__ import annotations

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import node_set
from collage_engine.partition.patterns import Pattern, anything, constant, op
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.numbering import NodeSet
from collage_engine.toolchains.cudnn.generate import CONVOLUTIONS, DECONVOLUTIONS, UNARY, dry_plan


def refused(graph: DataflowGraph, nodes: NodeSet) -> str | None:
    """Return why these calls are no partition for it; None when they are."""
    calls = node_set(i for i in graph.operators if nodes >> i & 1)
    try:
        dry_plan(graph, calls)
    except UnsupportedError as error:
        return str(error)
    return None


def patterns() -> list[tuple[str, Pattern]]:
    """Returns the patterns of a convolution with bias, residual sum or gate, and activation."""
    anchor = op(
        (*CONVOLUTIONS, *DECONVOLUTIONS), anything("x"), constant("weights"), commutative=False
    )
    biased = anchor.optional(lambda x: op("add", x, constant("bias")))
    summed = biased.optional(lambda x: op("add", x, anything("residual")))
    active = summed.optional(lambda x: op((*UNARY, "clip", "nn.leakyrelu"), x, commutative=False))
    gated = active.optional(lambda x: op(("multiply", "add"), x, anything("gate")))
    return [("cudnn.conv", gated)]
