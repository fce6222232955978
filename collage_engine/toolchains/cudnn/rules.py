"""Proposes the partitions of cuDNN: convolutions with what follows them."""

from __future__ import annotations

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import node_set, one_node
from collage_engine.partition.matching import Match
from collage_engine.partition.patterns import Pattern, anything, constant, op
from collage_engine.partition.rule_trees import byoc_rules
from collage_engine.partition.spec import PartitionSpec
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.cudnn.generate import CONVOLUTIONS, DECONVOLUTIONS, UNARY, dry_plan
from collage_engine.toolchains.runtime.taken_along import taken_along


def reason_against(
    graph: DataflowGraph, index: NodeIndex, precision: str = "float32"
) -> str | None:
    """Returns why cuDNN computes an operator neither by itself nor with others.

    The result is None where it does.
    """
    reason = _alone(graph, index)
    if reason is not None and taken_along(graph, "cuDNN", patterns(), refused) >> index & 1:
        return None
    return reason


def _alone(graph: DataflowGraph, index: NodeIndex) -> str | None:
    """Returns why cuDNN does not compute an operator by itself; None where it does."""
    return refused(graph, one_node(index))


def refused(graph: DataflowGraph, nodes: NodeSet, precision: str = "float32") -> str | None:
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


def _supported(graph: DataflowGraph, match: Match) -> str | None:
    return refused(graph, match.nodes)


def _validate(sub_graph: SubGraph) -> str | None:
    return refused(sub_graph.graph, sub_graph.inside)


def partition_spec(name: str, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionSpec:
    """Returns the partition specification of cuDNN for a graph."""
    table = [(name, pattern, _supported) for name, pattern in patterns()]
    rule = byoc_rules(table, "NoFusion", max_depth=6, name=name, supports=_alone)
    return PartitionSpec(name, rule, _validate)
