"""What CUTLASS proposes: products and convolutions with bias, residual sum and activation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import Match, Pattern, anything, constant, op
from collage_engine.partition.rule_trees import byoc_rules
from collage_engine.partition.spec import PartitionSpec
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.cutlass.generate import DIALECT, dry_plan
from collage_engine.toolchains.native import chains
from collage_engine.toolchains.native.products import in_an_epilogue_only

if TYPE_CHECKING:
    from collage_engine.toolchains.cutlass.toolchain import CutlassToolchain


def reason_against(graph: DataflowGraph, index: int) -> str | None:
    """Why CUTLASS cannot run an operator by itself; None when it can."""
    op_name = graph.nodes[index].op
    if op_name not in DIALECT.channel_axes:
        return in_an_epilogue_only(op_name, DIALECT)
    return _refused(graph, 1 << index)


def _refused(graph: DataflowGraph, nodes: int) -> str | None:
    calls = sum(1 << i for i in graph.operators if nodes >> i & 1)
    try:
        dry_plan(graph, calls)
    except UnsupportedError as error:
        return str(error)
    return None


def _finished(anchor: Pattern) -> Pattern:
    """An anchor with bias, residual sum and activation, each there or not."""
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
    """A product whose right operand is transposed or not; a convolution."""
    right = op("permute_dims", anything("right"), commutative=False) | anything("right")
    product = op("matmul", anything("left"), right, commutative=False)
    convolution = op("nn.conv2d", anything("x"), constant("weights"), commutative=False)
    return [("cutlass.matmul", _finished(product)), ("cutlass.conv2d", _finished(convolution))]


def _supported(graph: DataflowGraph, match: Match) -> str | None:
    return _refused(graph, match.nodes)


def _validate(sub_graph: SubGraph) -> str | None:
    return _refused(sub_graph.graph, sub_graph.inside)


def partition_spec(
    toolchain: CutlassToolchain, instance: ToolchainInstance, graph: DataflowGraph
) -> PartitionSpec:
    table = [(name, pattern, _supported) for name, pattern in patterns()]
    rule = byoc_rules(table, "NoFusion", name=toolchain.name, supports=reason_against)
    return PartitionSpec(toolchain.name, instance, rule, _validate)
