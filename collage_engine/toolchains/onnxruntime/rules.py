"""Proposes the operators that ONNX Runtime's optimiser fuses, and any operator by itself."""

from __future__ import annotations

from collage_engine.partition.quantized import pattern_table
from collage_engine.partition.rule_trees import PatternEntry, byoc_rules
from collage_engine.partition.spec import PartitionSpec
from collage_engine.toolchains.runtime.pattern_table import (
    Reason,
    against_match,
    against_sub_graph,
    anchor_patterns,
    chain_patterns,
)


def partition_spec(name: str, reason_against: Reason) -> PartitionSpec:
    """Returns the rule tree that proposes ONNX Runtime's candidates.

    A convolution with bias, sum and activation is one call (NCHWc); so are Gemm, GELU and the
    norms. Larger pieces come from blocks, greedy partitions and the whole model, which suit it
    better than what combiners would join.
    """
    takes = against_match(reason_against)
    table: list[PatternEntry] = [*pattern_table(name)]
    table += [
        (label, pattern, takes)
        for label, pattern in (
            *anchor_patterns(name),
            *chain_patterns(name),
        )
    ]
    rule = byoc_rules(table, "NoFusion", max_depth=8, name=name, supports=reason_against)
    return PartitionSpec(name, rule, against_sub_graph(reason_against))
