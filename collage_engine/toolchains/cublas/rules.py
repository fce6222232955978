"""Proposes products with transposed operands and with epilogues, as cuBLASLt runs them."""

from __future__ import annotations

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import one_node
from collage_engine.partition.matching import Match
from collage_engine.partition.patterns import Pattern, anything, op
from collage_engine.partition.rule_trees import byoc_rules
from collage_engine.partition.spec import PartitionSpec
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.cublas.products import DIALECT
from collage_engine.toolchains.runtime import chains, taken_along
from collage_engine.toolchains.runtime.products import refusal


def reason_against(
    graph: DataflowGraph, index: NodeIndex, precision: str = "float32"
) -> str | None:
    """Return why cuBLASLt runs an operator neither alone nor in an epilogue; None when it does."""
    return taken_along.reason_against(graph, index, DIALECT, patterns(), refused)


def refused(graph: DataflowGraph, nodes: NodeSet, precision: str = "float32") -> str | None:
    """Return why these calls are no partition for it, in whatever precision; None when they are."""
    return refusal(graph, nodes, DIALECT)


def _alone(graph: DataflowGraph, index: NodeIndex) -> str | None:
    return refused(graph, one_node(index))


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


def _supported(graph: DataflowGraph, match: Match) -> str | None:
    return refused(graph, match.nodes)


def _validate(sub_graph: SubGraph) -> str | None:
    return refused(sub_graph.graph, sub_graph.inside)


def partition_spec(name: str, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionSpec:
    """Return the products with their epilogues, nothing joined."""
    table = [(name, pattern, _supported) for name, pattern in patterns()]
    rule = byoc_rules(table, "NoFusion", name=name, supports=_alone)
    return PartitionSpec(name, rule, _validate)
