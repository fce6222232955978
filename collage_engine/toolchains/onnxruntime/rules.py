"""What ONNX Runtime proposes: the operators its optimiser fuses, and anything on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import Match
from collage_engine.partition.quantized import pattern_table
from collage_engine.partition.rule_trees import PatternEntry, anchor_rules, byoc_rules, union_rules
from collage_engine.partition.spec import PartitionSpec
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.native.pattern_table import anchor_patterns, chain_patterns
from collage_engine.toolchains.onnxruntime.supports import reason_against

if TYPE_CHECKING:
    from collage_engine.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain


def _refused(graph: DataflowGraph, nodes: int) -> str | None:
    for index in graph.operators:
        if nodes >> index & 1:
            reason = reason_against(graph, index)
            if reason is not None:
                return reason
    return None


def _supported(graph: DataflowGraph, match: Match) -> str | None:
    return _refused(graph, match.nodes)


def _validate(sub_graph: SubGraph) -> str | None:
    return _refused(sub_graph.graph, sub_graph.inside)


def partition_spec(
    toolchain: OnnxRuntimeToolchain, instance: ToolchainInstance, graph: DataflowGraph
) -> PartitionSpec:
    """Conv with bias, sum and activation is one call (NCHWc); so are Gemm, GELU and the norms.

    Larger pieces come from blocks, regions and the whole model, which suit it better than what
    combiners would join.
    """
    name = toolchain.name
    table: list[PatternEntry] = [*pattern_table(name)]
    table += [
        (label, pattern, _supported)
        for label, pattern in (
            *anchor_patterns(name, residual=True), *chain_patterns(name),
        )
    ]  # fmt: skip
    rule = union_rules(
        name,
        byoc_rules(table, "NoFusion", max_depth=8, name=name, supports=reason_against),
        anchor_rules(),
    )
    return PartitionSpec(name, instance, rule, _validate)
