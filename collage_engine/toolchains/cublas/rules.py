"""Names what cuBLASLt takes: products with transposed operands and with epilogues."""

from __future__ import annotations

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import Pattern, anything, op
from collage_engine.records.numbering import NodeSet
from collage_engine.toolchains.cublas.products import DIALECT
from collage_engine.toolchains.runtime import chains
from collage_engine.toolchains.runtime.products import refusal


def refused(graph: DataflowGraph, nodes: NodeSet) -> str | None:
    """Return why these calls are no partition for it, in whatever precision; None when they are."""
    return refusal(graph, nodes, DIALECT)


def _operand(name: str) -> Pattern:
    return op("permute_dims", anything(name), commutative=False) | anything(name)


def patterns() -> list[tuple[str, Pattern]]:
    """Return a product, with its operands transposed or not; bias, residual sum, activation."""
    product = op("matmul", _operand("left"), _operand("right"), commutative=False)
    added = product.optional(lambda x: op("add", x, anything("bias")))
    summed = added.optional(lambda x: op("add", x, anything("residual")))
    active = summed.optional(
        lambda x: (
            op(("nn.relu", "nn.gelu", "nn.gelu_tanh"), x, commutative=False)
            | chains.gelu_tanh(x)
            | chains.gelu_erf(x)
        )
    )
    return [("cublas.matmul", active)]
