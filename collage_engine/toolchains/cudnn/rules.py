"""Proposes the partitions of cuDNN.

They are convolutions with what follows them, also in 8 bits, attention, and single functions.
"""

from __future__ import annotations

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import node_set, one_node
from collage_engine.partition import quantized as qdq
from collage_engine.partition.matching import Match
from collage_engine.partition.patterns import Pattern, anything, constant, op
from collage_engine.partition.rule_trees import PatternEntry, byoc_rules, union_rules
from collage_engine.partition.spec import PartitionSpec
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.operator_titles import onnx_type
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.cudnn import attention, quantized
from collage_engine.toolchains.cudnn.generate import (
    CONVOLUTIONS,
    DECONVOLUTIONS,
    UNARY,
    VIEWS,
    dry_plan,
)
from collage_engine.toolchains.runtime import attention as written_out
from collage_engine.toolchains.runtime import taken_along


def reason_against(
    graph: DataflowGraph, index: NodeIndex, precision: str = "float32"
) -> str | None:
    """Returns why cuDNN computes an operator neither by itself nor with others.

    The result is None where it does.
    """
    if graph.nodes[index].op in VIEWS:
        return f"{onnx_type(graph.nodes[index].op)}: cuDNN computes nothing for it"
    reason = _refused(graph, one_node(index))
    if reason is not None and _with_others(graph) >> index & 1:
        return None
    return reason


def _with_others(graph: DataflowGraph) -> NodeSet:
    """Returns the calls that cuDNN computes as part of an 8-bit composite or an attention."""
    table = [("cudnn.attention", written_out.pattern())]
    table += [(name, pattern) for name, pattern, _ in qdq.pattern_table("cudnn", quantized.KINDS)]
    return taken_along.taken_along(graph, "cuDNN", table, _refused)


def _alone(graph: DataflowGraph, index: NodeIndex) -> str | None:
    """Returns why cuDNN does not compute an operator by itself; None where it does."""
    if graph.nodes[index].op in VIEWS:
        return f"{onnx_type(graph.nodes[index].op)}: cuDNN computes nothing for it"
    return _refused(graph, one_node(index))


def _refused(graph: DataflowGraph, nodes: NodeSet) -> str | None:
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
    return _refused(graph, match.nodes)


def _attention_supported(graph: DataflowGraph, match: Match) -> str | None:
    return written_out.reason_against(graph, match, attention.refused) or _refused(
        graph, match.nodes
    )


def _small_supported(graph: DataflowGraph, match: Match) -> str | None:
    return qdq.whole(graph, match) or _refused(graph, match.nodes)


def _validate(sub_graph: SubGraph) -> str | None:
    return _refused(sub_graph.graph, sub_graph.inside)


def partition_spec(name: str, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionSpec:
    """Returns the partition specification of cuDNN for a graph."""
    table = [(name, pattern, _supported) for name, pattern in patterns()]
    whole: list[PatternEntry] = [
        (name, pattern, _small_supported)
        for name, pattern, _ in qdq.pattern_table(name, quantized.KINDS)
    ]
    whole.append(("cudnn.attention", written_out.pattern(), _attention_supported))
    rule = union_rules(
        name,
        byoc_rules(table, "TVMFusion", max_depth=6, name=name, supports=_alone),
        byoc_rules(whole, name=name),  # deeper than what is joined step by step
    )
    return PartitionSpec(name, rule, _validate)
