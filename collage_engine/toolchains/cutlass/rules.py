"""Proposes the partitions of CUTLASS.

They are products and convolutions with bias, residual sum and activation.
"""

from __future__ import annotations

from functools import partial

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import node_set, one_node
from collage_engine.partition.matching import Match
from collage_engine.partition.patterns import Pattern, anything, constant, op
from collage_engine.partition.rule_trees import PatternEntry, byoc_rules
from collage_engine.partition.spec import PartitionSpec
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.cutlass.dialect import DIALECT
from collage_engine.toolchains.cutlass.generate import dry_plan
from collage_engine.toolchains.runtime import chains, taken_along


def reason_against(
    graph: DataflowGraph, index: NodeIndex, precision: str = "float32"
) -> str | None:
    """Returns why CUTLASS computes an operator neither alone nor with others.

    The result is None where it does.
    """
    refuses = partial(refused, precision=precision)
    return taken_along.reason_against(graph, index, DIALECT, patterns(), refuses, precision)


def refused(graph: DataflowGraph, nodes: NodeSet, precision: str = "float32") -> str | None:
    """Returns why these calls are no partition for CUTLASS; None where they are."""
    calls = node_set(i for i in graph.operators if nodes >> i & 1)
    try:
        dry_plan(graph, calls, precision)
    except UnsupportedError as error:
        return str(error)
    return None


def _finished(anchor: Pattern) -> Pattern:
    """Returns the pattern of an anchor with optional bias, residual sum and activation."""
    biased = anchor.optional(lambda x: op("add", x, anything("bias")))
    summed = biased.optional(lambda x: op("add", x, anything("residual")))
    return summed.optional(
        lambda x: (
            op(tuple(DIALECT.activations), x, commutative=False)
            | chains.gelu_tanh(x)
            | chains.gelu_erf(x)
            | chains.silu(x)
        )
    )


def patterns() -> list[tuple[str, Pattern]]:
    """Returns the patterns of a product and of a convolution, with what can follow them.

    The right operand of the product may be transposed.
    """
    right = op("permute_dims", anything("right"), commutative=False) | anything("right")
    product = op("matmul", anything("left"), right, commutative=False)
    convolution = op("nn.conv2d", anything("x"), constant("weights"), commutative=False)
    return [("cutlass.matmul", _finished(product)), ("cutlass.conv2d", _finished(convolution))]


def partition_spec(name: str, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionSpec:
    """Returns the partition specification of CUTLASS for a graph."""
    precision = instance.precision

    def supported(graph: DataflowGraph, match: Match) -> str | None:
        return refused(graph, match.nodes, precision)

    def alone(graph: DataflowGraph, index: NodeIndex) -> str | None:
        return refused(graph, one_node(index), precision)

    def validate(sub_graph: SubGraph) -> str | None:
        return refused(sub_graph.graph, sub_graph.inside, precision)

    table: list[PatternEntry] = [(name, pattern, supported) for name, pattern in patterns()]
    rule = byoc_rules(table, "NoFusion", name=name, supports=alone)
    return PartitionSpec(name, rule, validate)
