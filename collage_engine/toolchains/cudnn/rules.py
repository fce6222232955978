"""What cuDNN proposes: convolutions with what follows them, attention, single functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import Match, Pattern, anything, constant, op
from collage_engine.partition.rule_trees import byoc_rules, union_rules
from collage_engine.partition.spec import PartitionSpec
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.cudnn import attention
from collage_engine.toolchains.cudnn.generate import (
    CONVOLUTIONS,
    DECONVOLUTIONS,
    UNARY,
    VIEWS,
    dry_plan,
)
from collage_engine.toolchains.native import attention as written_out

if TYPE_CHECKING:
    from collage_engine.toolchains.cudnn.toolchain import CudnnToolchain


def reason_against(graph: DataflowGraph, index: int) -> str | None:
    """Why cuDNN cannot run an operator by itself; None when it can."""
    if graph.nodes[index].op in VIEWS:
        return f"{graph.nodes[index].op}: cuDNN computes nothing for it"
    return _refused(graph, 1 << index)


def _refused(graph: DataflowGraph, nodes: int) -> str | None:
    calls = sum(1 << i for i in graph.operators if nodes >> i & 1)
    try:
        dry_plan(graph, calls)
    except UnsupportedError as error:
        return str(error)
    return None


def patterns() -> list[tuple[str, Pattern]]:
    """A convolution, bias, residual sum or gate, activation; attention."""
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
    return attention.reason_against(graph, match) or _refused(graph, match.nodes)


def _validate(sub_graph: SubGraph) -> str | None:
    return _refused(sub_graph.graph, sub_graph.inside)


def partition_spec(
    toolchain: CudnnToolchain, instance: ToolchainInstance, graph: DataflowGraph
) -> PartitionSpec:
    table = [(name, pattern, _supported) for name, pattern in patterns()]
    whole = [("cudnn.attention", written_out.pattern(), _attention_supported)]
    rule = union_rules(
        toolchain.name,
        byoc_rules(table, "TVMFusion", max_depth=6, name=toolchain.name, supports=reason_against),
        byoc_rules(whole, name=toolchain.name),  # deeper than what is joined step by step
    )
    return PartitionSpec(toolchain.name, instance, rule, _validate)
