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
from collage_engine.toolchains.native import chains, taken_along

if TYPE_CHECKING:
    from collage_engine.toolchains.cutlass.toolchain import CutlassToolchain


def reason_against(graph: DataflowGraph, index: int) -> str | None:
    """Why CUTLASS runs an operator neither alone nor in an epilogue; None when it does."""
    return taken_along.reason_against(graph, index, DIALECT, patterns(), refused)


def refused(graph: DataflowGraph, nodes: int) -> str | None:
    """Why these calls are no partition for it; None when they are."""
    calls = sum(1 << i for i in graph.operators if nodes >> i & 1)
    try:
        dry_plan(graph, calls)
    except UnsupportedError as error:
        return str(error)
    return None


def _alone(graph: DataflowGraph, index: int) -> str | None:
    return refused(graph, 1 << index)


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
    return refused(graph, match.nodes)


def _validate(sub_graph: SubGraph) -> str | None:
    return refused(sub_graph.graph, sub_graph.inside)


def partition_spec(
    toolchain: CutlassToolchain, instance: ToolchainInstance, graph: DataflowGraph
) -> PartitionSpec:
    table = [(name, pattern, _supported) for name, pattern in patterns()]
    rule = byoc_rules(table, "NoFusion", name=toolchain.name, supports=_alone)
    return PartitionSpec(toolchain.name, instance, rule, _validate)
