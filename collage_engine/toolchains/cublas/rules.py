"""What cuBLASLt proposes: products with transposed operands and with epilogues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import Match, Pattern, anything, op
from collage_engine.partition.rule_trees import byoc_rules
from collage_engine.partition.spec import PartitionSpec
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.cublas.products import DIALECT, check_product
from collage_engine.toolchains.native import chains
from collage_engine.toolchains.native.products import in_an_epilogue_only, refusal

if TYPE_CHECKING:
    from collage_engine.toolchains.cublas.toolchain import CublasToolchain


def reason_against(graph: DataflowGraph, index: int) -> str | None:
    """Why cuBLASLt cannot run an operator by itself; None when it can."""
    node = graph.nodes[index]
    if node.op != "matmul":
        return in_an_epilogue_only(node.op, DIALECT)
    try:
        check_product(graph, node)
    except UnsupportedError as error:
        return str(error)
    return None


def _operand(name: str) -> Pattern:
    return op("permute_dims", anything(name), commutative=False) | anything(name)


def patterns() -> list[tuple[str, Pattern]]:
    """A product, with its operands transposed or not; bias, residual sum, activation."""
    product = op("matmul", _operand("left"), _operand("right"), commutative=False)
    added = product.optional(lambda x: op("add", x, anything("bias")))
    summed = added.optional(lambda x: op("add", x, anything("residual")))
    active = summed.optional(
        lambda x: op(("nn.relu", "nn.gelu", "nn.gelu_tanh"), x, commutative=False)
        | chains.gelu_tanh(x)
        | chains.gelu_erf(x)
    )
    return [("cublas.matmul", active)]


def _supported(graph: DataflowGraph, match: Match) -> str | None:
    return refusal(graph, match.nodes, DIALECT)


def _validate(sub_graph: SubGraph) -> str | None:
    return refusal(sub_graph.graph, sub_graph.inside, DIALECT)


def partition_spec(
    toolchain: CublasToolchain, instance: ToolchainInstance, graph: DataflowGraph
) -> PartitionSpec:
    table = [(name, pattern, _supported) for name, pattern in patterns()]
    rule = byoc_rules(table, "NoFusion", name=toolchain.name, supports=reason_against)
    return PartitionSpec(toolchain.name, instance, rule, _validate)
