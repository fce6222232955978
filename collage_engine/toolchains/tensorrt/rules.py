"""Proposes the partitions of TensorRT: what it fuses into one kernel, and groups of siblings.

An engine takes seconds to build. Larger partitions come from blocks, regions and the whole model,
which suit it best: inside an engine it uses its own layouts and fuses as it likes.
"""

from __future__ import annotations

from collections.abc import Callable

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.quantized import pattern_table
from collage_engine.partition.rule_trees import anchor_rules, composite_rules, union_rules
from collage_engine.partition.spec import PartitionSpec
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.numbering import NodeIndex


def partition_spec(
    name: str,
    graph: DataflowGraph,
    reason_against: Callable[[NodeIndex], str | None],
) -> PartitionSpec:
    """Returns the rule tree: quantised composites and groups of siblings, of supported calls."""
    reasons = {index: reason_against(index) for index in graph.operators}

    def validate(sub_graph: SubGraph) -> str | None:
        for index in graph.operators:
            if sub_graph.inside >> index & 1 and reasons[index] is not None:
                return reasons[index]
        return None

    integers = composite_rules("quantized", pattern_table(name))
    return PartitionSpec(name, union_rules(name, integers, anchor_rules()), validate)
